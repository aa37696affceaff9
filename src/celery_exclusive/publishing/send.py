"""Puts our header on the calls of our tasks, between the class of an installed app and Celery's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, cast

from celery import Celery
from celery.signals import before_task_publish
from celery.utils import uuid

from celery_exclusive.publishing.call_options import as_sent, pop_call_options
from celery_exclusive.publishing.header_of_call import header_of
from celery_exclusive.publishing.late_keys import are_late, send_late
from celery_exclusive.publishing.message import Message, pop_header
from celery_exclusive.publishing.ordered import OrderedPublish
from celery_exclusive.publishing.publisher import PUBLISHER
from celery_exclusive.publishing.unique_publish import UniquePublish
from celery_exclusive.seams.celery_app import known_tasks

if TYPE_CHECKING:
    from celery_exclusive.publishing.call_options import CallOptions
    from celery_exclusive.publishing.publisher import Publisher

_BY_PLACE = list(signature(Celery.send_task).parameters)[4:]
"""The parameters that `send_task` accepts by position, after its name and arguments."""


def with_our_header(cls: type[Celery]) -> type[Celery]:
    """Return the class of an installed app, which puts our header on messages of our tasks.

    Our `send_task` stands between a class of the user and Celery's own, and so gets the options that the
    user's class adds.
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
    task = options.get("task_type") or _declared(self, name)
    call = pop_call_options(name, task, options)
    if not (call.exclusive or call.unique or call.off):
        if options.get("headers"):
            pop_header(services, name, options)
        return _with_outcome(task, send_task(name, args, kwargs, *rest, **options))
    options = as_sent(services, task, name, args, kwargs, options)
    send = partial(send_task, name, args, kwargs, *rest)
    new_id = options.get("task_id") or uuid()
    publish = partial(_send, publisher, name, task, call, (args or (), kwargs or {}), new_id)
    if not (before_task_publish.receivers and are_late(services, task, call)):
        return publish(options, send)

    def publish_late(headers: Any, producer: Any, push: Callable[..., Any]) -> Any:
        return publish({**options, "headers": headers, "producer": producer}, push)

    return send_late(services, {**options, "task_id": new_id}, send, publish_late)


def _send(
    publisher: Publisher,
    name: str,
    task: Any,
    call: CallOptions,
    arguments: tuple[Any, Any],
    id: str,
    options: dict[str, Any],
    send_task: Callable[..., Any],
) -> Any:
    """Send a message with our header, unless its key is held. Arguments that do not fit get no header."""
    services = publisher.services
    previous = pop_header(services, name, options) if options.get("headers") else None
    message = Message(publisher, services, name, task, call, *arguments, options, send_task, previous, id)
    header = header_of(message)
    if header is None:
        return _with_outcome(task, send_task(**options))
    ordered = message.order(header) if header.exclusive else None
    if header.unique:
        return UniquePublish(message, header, ordered).send()
    return OrderedPublish(message, ordered, header).send() if ordered else message.send(header)


def _with_outcome(task: Any, result: Any) -> Any:
    """Add the outcome to the result of a call of our tasks, also if its message has no header."""
    if getattr(task, "unique", None) or getattr(task, "exclusive", None):
        result.outcome, result.existing_id, result.key = "published", None, None
    return result


_Sender: Any = type("_Sender", (Celery,), {"send_task": _send_task})
"""Celery's own class, with our `send_task`."""


def _declared(app: Any, name: str) -> Any:
    """Return the task of this name. Pending tasks of the app are made first."""
    if app.autofinalize and not app.finalized:
        app.finalize(auto=True)
    return known_tasks(app).get(name)
