"""Puts our header on the calls of our tasks, between the class of an installed app and Celery's own."""

from __future__ import annotations

from dataclasses import replace
from functools import partial, wraps
from inspect import signature
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from celery import Celery
from celery.signals import before_task_publish
from celery.utils import uuid

from celery_exclusive.core.claim import WINDOW
from celery_exclusive.messages.header import HEADER, Header, read_header
from celery_exclusive.options.keys import needs_headers
from celery_exclusive.publishing.call_options import as_sent, pop_call_options
from celery_exclusive.publishing.debounced import DebouncedPublish
from celery_exclusive.publishing.message import Message, NotSent, header_of
from celery_exclusive.publishing.ordered import OrderedPublish
from celery_exclusive.publishing.publisher import PUBLISHER
from celery_exclusive.publishing.refusal import refused
from celery_exclusive.publishing.skipped_steps import HAS_NEXT_STEP, warn_of_skipped_step
from celery_exclusive.publishing.unique_publish import UniquePublish
from celery_exclusive.seams.celery_app import declared_task

if TYPE_CHECKING:
    from celery_exclusive.core.claim import UniqueUntil
    from celery_exclusive.publishing.call_options import CallOptions
    from celery_exclusive.publishing.publisher import Publisher
    from celery_exclusive.services import Services

_BY_PLACE = list(signature(Celery.send_task).parameters)[4:]
"""The parameters that `send_task` accepts by position, after its name and arguments."""


def with_our_header(cls: type[Celery]) -> type[Celery]:
    """Return the class of an installed app, which puts our header on messages of our tasks.

    Our `send_task` comes after a user's own, and so gets the options that this adds.
    """

    def __reduce__(self: Any) -> Any:  # noqa: N807 - a copy is of the class that can be imported
        make, arguments, *state = cast("Any", cls.__reduce__(self))
        return make, tuple(cls if it is type(self) else it for it in arguments), *state

    bases = (_Sender,) if cls is Celery else (cls, _Sender)
    looks = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls.__name__, bases, {**looks, "__reduce__": __reduce__})


@wraps(cast("Any", Celery.send_task))
def _send_task(self: Any, name: str, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
    send_task = super(_Sender, self).send_task
    publisher: Publisher | None = getattr(self, PUBLISHER, None)
    if publisher is None:  # another app of an installed app's class
        return send_task(name, args, kwargs, *rest, **options)
    if rest:
        options.update(zip(_BY_PLACE, rest, strict=False))
        rest = rest[len(_BY_PLACE) :]
    services = publisher.services
    task = options.get("task_type") or declared_task(self, name)
    call = pop_call_options(name, task, options)
    send = partial(send_task, name, args, kwargs, *rest)
    if not (call.exclusive or call.unique or call.off):
        if options.get("headers"):
            _pop_header(services, name, options)
        return _with_outcome(task, send(**options))
    options = as_sent(services, task, name, args, kwargs, options)
    message = Message(publisher, services, name, task, call, args or (), kwargs or {}, options, send)
    if name in publisher.refused_lately and (result := refused(message)):
        return result
    message.id = options.get("task_id") or uuid()
    if before_task_publish.receivers and _has_late_keys(services, task, call):
        return _send_late(message)
    return _send(message)


def _send(message: Message) -> Any:
    """Send a message with our header, unless its key is held. Arguments that do not fit get no header."""
    options = message.options
    if options.get("headers"):
        message.previous = _pop_header(message.services, message.name, options)
    header = header_of(message)
    if header is None:
        return _with_outcome(message.task, message.send_task(**options))
    if any(map(options.get, HAS_NEXT_STEP)):
        warn_of_skipped_step(message)
    run = message.inherit_lock(header) if header.exclusive and options.get("retries") else None
    ordered = message.order(header) if header.exclusive and not run else None
    if header.unique and _waits_for_calls(message, header.unique):
        result = DebouncedPublish(message, header, ordered).send()
    elif header.unique and header.unique[1] != WINDOW:
        result = UniquePublish(message, header, ordered).send()
    else:
        result = OrderedPublish(message, header, ordered).send() if ordered else message.send(header)
    if run:
        run.has_retried = True
    return result


def _waits_for_calls(message: Message, unique: tuple[str, UniqueUntil]) -> bool:
    """Whether a message waits in a window. A retry or replacement continues a call that has waited."""
    return unique[1] == WINDOW and not (message.origin.is_retry or message.origin.run)


def _pop_header(services: Services, task_name: str, options: dict[str, Any]) -> Header | None:
    """Remove the headers of a worker or of an earlier publish; return our header, if it is valid."""
    headers = options["headers"] = dict(options["headers"])
    if HEADER not in headers:
        return None
    id, run = options.get("task_id"), services.app.current_task
    if run is not None and run.request.id == id:  # a replacement may be another task
        task_name = run.request.task or run.name
    previous = read_header(services, headers, id, task_name)
    del headers[HEADER]
    headers.pop("redelivered", None)
    return previous


def _has_late_keys(services: Services, task: Any, call: CallOptions) -> bool:
    """Whether the keys of this call are made of headers that receivers of `before_task_publish` may add."""
    options = filter(None, (call.exclusive, call.unique))
    return any(needs_headers(option, task.run, services.key_headers) for option in options)


def _send_late(message: Message) -> Any:
    """Let Celery call the receivers before the key is computed, and send the message or drop it.

    Celery calls them last of all, so the producer computes the key. `after_task_publish` is not sent of a
    duplicate.
    """
    app, options = message.services.app, message.options
    with app.producer_or_acquire(options.get("producer")) as used:
        late = _LateProducer(used, message)
        try:
            result = message.send_task(**{**options, "task_id": message.id, "producer": late})
        except NotSent:
            app.AsyncResult(message.id)  # when it goes, Celery expects no result any more
            return late.result
    vars(result).update(vars(late.result))
    return result


class _LateProducer:
    """A stand-in for the producer of one message, and of its event after that."""

    def __init__(self, producer: Any, message: Message) -> None:
        self._producer, self._message = producer, message
        self.result: Any = None

    def publish(self, body: Any, **options: Any) -> Any:
        if self.result is not None:
            return self._producer.publish(body, **options)
        pushed: list[Any] = []

        def push(headers: Any, producer: Any, **_: Any) -> Any:
            pushed.append(producer.publish(body, **{**options, "headers": headers}))
            return SimpleNamespace()

        message = self._message
        final = {**message.options, "headers": options["headers"], "producer": self._producer}
        self.result = _send(replace(message, options=final, send_task=push, send_anew=message.send_task))
        if not pushed:
            raise NotSent
        return pushed[0]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)


def _with_outcome(task: Any, result: Any) -> Any:
    """Add the outcome to the result of a call of our tasks, also if its message has no header."""
    if getattr(task, "unique", None) or getattr(task, "exclusive", None):
        result.outcome, result.existing_id, result.key = "published", None, None
    return result


_Sender: Any = type("_Sender", (Celery,), {"send_task": _send_task})
"""Celery's own class, with our `send_task`."""
