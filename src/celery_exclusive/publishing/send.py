"""Puts our header on a message before it is sent: its keys, and a publish id of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from inspect import signature
from os import urandom
from typing import TYPE_CHECKING, Any, cast

from celery import Celery
from celery.signals import before_task_publish
from celery.utils import uuid

from celery_exclusive.errors import OptionError
from celery_exclusive.messages.header import HEADER, Header, read_header, rejections
from celery_exclusive.options.keys import key_of
from celery_exclusive.publishing.as_sent import as_sent
from celery_exclusive.publishing.call_options import CallOptions, pop_call_options
from celery_exclusive.publishing.late_keys import are_late, send_late
from celery_exclusive.publishing.ordered import OrderedPublish, takes_its_place_now
from celery_exclusive.publishing.origin import Origin
from celery_exclusive.publishing.unique_publish import UniquePublish
from celery_exclusive.run import current_run
from celery_exclusive.services import ATTRIBUTE

if TYPE_CHECKING:
    from celery_exclusive.services import Services

_BY_PLACE = list(signature(Celery.send_task).parameters)[4:]
"""The parameters that `send_task` accepts by position, after its name and arguments."""


def with_our_header(cls: type[Celery]) -> type[Celery]:
    """Return the class of an installed app, which puts our header on messages of our tasks.

    Our `send_task` stands between a class of the user's and Celery's own: it is given what theirs adds.
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
    services: Services | None = getattr(self, ATTRIBUTE, None)
    if services is None:  # another app of an installed app's class
        return send_task(name, args, kwargs, *rest, **options)
    options.update(zip(_BY_PLACE, rest, strict=False))
    rest = rest[len(_BY_PLACE) :]
    task = options.get("task_type") or _declared(self, name)
    call = pop_call_options(name, task, options)
    if not (call.exclusive or call.unique or call.off):
        if options.get("headers"):
            _pop_header(services, options)
        return _with_outcome(task, send_task(name, args, kwargs, *rest, **options))
    options = as_sent(services, task, name, args, kwargs, options)
    send, publish = partial(send_task, name, args, kwargs, *rest), partial(_publish, services, task, call)
    arguments = args or (), kwargs or {}
    if not (before_task_publish.receivers and are_late(services, task, call)):
        return publish(arguments, options, send)

    id = options.get("task_id") or uuid()

    def publish_late(headers: Any, producer: Any, push: Callable[..., Any]) -> Any:
        return publish(arguments, {**options, "headers": headers, "producer": producer}, push, id)

    return send_late(services, {**options, "task_id": id}, send, publish_late)


_Sender: Any = type("_Sender", (Celery,), {"send_task": _send_task})
"""Celery's own class, with our `send_task`."""


def _publish(
    services: Services,
    task: Any,
    call: CallOptions,
    arguments: tuple[Any, Any],
    options: dict[str, Any],
    send_message: Callable[..., Any],
    new_id: str | None = None,
) -> Any:
    """Put our header on a message and let `send_message` send it, unless its key is held.

    `new_id`: that of a task that is sent already, if its caller has given none.
    """
    previous = _pop_header(services, options) if options.get("headers") else None
    origin = partial(Origin.of, services, task, call.unique, options, has_header=previous is not None)
    header = _header(services, call, task, arguments, options, previous, origin)
    if header is None:
        return _with_outcome(task, send_message(**options))
    has_order = call.exclusive and call.exclusive.order == "published"
    ordered = call.exclusive if has_order and takes_its_place_now(header, options) else None

    def send(header: Header, id: str, producer: Any = None) -> Any:
        fields = services.signer.sign_header(header.write(), id)
        completed = {**options, "task_id": id, "headers": {**(options.get("headers") or {}), HEADER: fields}}
        if producer:
            completed["producer"] = producer
        else:
            _use_own_channels(services)
        if ordered is None or header.duplicate_of:
            return send_message(**completed)

        def publish(producer: Any) -> Any:
            return send_message(**{**completed, "producer": producer})

        goes_without = origin().has_to_be_sent
        message = OrderedPublish(services, task.name, ordered, header, id, goes_without=goes_without)
        return message.send(publish, options.get("producer"))

    if header.unique is None:
        return _with_outcome(task, send(header, options.get("task_id") or new_id or uuid()))
    unique = UniquePublish(services, task, call.unique, header, options, origin(), new_id)
    return unique.send(send, is_ordered=ordered is not None)


def _use_own_channels(services: Services) -> None:
    """Let our messages go through channels that keep their client, where the broker is a Redis."""
    if services.broker_place:
        from celery_exclusive.publishing.own_channel import use_own_channels

        use_own_channels(services.amqp)


def _pop_header(services: Services, options: dict[str, Any]) -> Header | None:
    """Remove what a worker, or an earlier publish, has put among the headers; return our header, if valid."""
    headers = options["headers"] = dict(options["headers"])
    previous = read_header(services, headers, options.get("task_id"))
    if headers.pop(HEADER, None) is not None:
        headers.pop("redelivered", None)
    return previous


def _is_masked(options: dict[str, Any], previous: Header | None) -> bool:
    """Whether log lines must not show the arguments: the caller gives other strings for them.

    A retry has lost these strings, so what the first call wanted is kept. Of one that another publisher sent
    without this library, it is not known.
    """
    if options.get("retries"):
        return previous is None or previous.masked
    return options.get("argsrepr") is not None or options.get("kwargsrepr") is not None


def _declared(app: Any, name: str) -> Any:
    """The task of this name, also where nothing has made it a task of the app yet."""
    if app.autofinalize and not app.finalized:
        app.finalize(auto=True)
    return app._tasks.get(name)


def _with_outcome(task: Any, result: Any) -> Any:
    """Add the outcome that each call of a task with `unique=` has, also where that is switched off."""
    if getattr(task, "unique", None):
        result.outcome, result.existing_id, result.key = "published", None, None
    return result


def _header(
    services: Services,
    call: CallOptions,
    task: Any,
    arguments: tuple[Any, Any],
    options: dict[str, Any],
    previous: Header | None,
    origin: Callable[[], Origin],
) -> Header | None:
    """Return a new header with its keys; None without options, or if the arguments do not fit."""
    if not (call.exclusive or call.unique or call.off):
        return None
    if previous and options.get("retries"):
        header = _of_retry(services, call, task, arguments, options, previous, origin)
    else:
        header = _with_new_keys(services, call, task, arguments, options, origin)
    if header is None:
        return None
    services.settings  # noqa: B018 - wrong settings are an error for the caller
    header.masked = _is_masked(options, previous)
    if options.get("headers"):
        header.rejections = rejections(options["headers"])
    return header


def _of_retry(
    services: Services,
    call: CallOptions,
    task: Any,
    arguments: tuple[Any, Any],
    options: dict[str, Any],
    previous: Header,
    origin: Callable[[], Origin],
) -> Header | None:
    if not call.off and _same_arguments(task, *arguments):
        return _with_same_keys(previous, call.values, options.get("task_id"))
    call = _with_options_of(previous, call)
    return _with_new_keys(services, call, task, arguments, options, origin)


def _with_same_keys(previous: Header, values: dict[str, Any], task_id: str | None) -> Header:
    """Return that of a retry with the keys of its run, also of one that its worker has acquired."""
    run = current_run.get()
    unique = previous.unique
    if unique is None and run and run.task_id == task_id and run.unique:
        unique = (run.unique.claim.key, run.unique.until)
    values = values or previous.values
    return Header(_publish_id(), previous.exclusive, unique, previous.switched_off, values)


def _with_options_of(previous: Header, call: CallOptions) -> CallOptions:
    """Switch off for a retry what its first call has switched off, unless the retry gives it again."""
    off = (*call.off, *(name for name in previous.switched_off if name not in (*call.off, *call.values)))
    return CallOptions(
        exclusive=None if "exclusive" in off else call.exclusive,
        unique=None if "unique" in off else call.unique,
        off=off,
        values=call.values or previous.values,
    )


def _with_new_keys(
    services: Services,
    call: CallOptions,
    task: Any,
    arguments: tuple[Any, Any],
    options: dict[str, Any],
    origin: Callable[[], Origin],
) -> Header | None:
    exclusive = unique = None
    of_message = options.get("headers"), services.key_headers
    try:
        if call.exclusive:
            exclusive = key_of(task.name, task.run, call.exclusive, *arguments, *of_message)
        if call.unique:
            key = key_of(task.name, task.run, call.unique, *arguments, *of_message)
            unique = (key, call.unique.held_until)
    except TypeError:
        return None  # the arguments do not fit; the worker will refuse them
    except OptionError:
        if not origin().is_celerys:
            raise
        exclusive = unique = None  # its worker cannot make them either, and fails this task with the error
    header = Header(_publish_id(), exclusive, unique, call.off, call.values)
    run = current_run.get()
    if run and (run.body_over or run.task_id == options.get("task_id")):
        header.published_by = run.task_id
    return header


def _publish_id() -> str:
    return urandom(4).hex()


def _same_arguments(task: Any, args: Any, kwargs: Any) -> bool:
    request = task.request
    if request.id is None:  # no body: the main process retries a task whose child was lost
        return True
    now, before = [*args], [*(request.args or ())]
    named = request.kwargs or {}
    if len(now) != len(before) or kwargs.keys() != named.keys():
        return False
    pairs = [*zip(now, before, strict=True), *((kwargs[name], named[name]) for name in named)]
    return all(_is_equal(one, other) for one, other in pairs)


def _is_equal(one: object, other: object) -> bool:
    """Arrays, data frames and queries answer neither True nor False, or raise: they count as different."""
    if one is other:
        return True
    try:
        return (one == other) is True
    except Exception:  # noqa: BLE001 - whatever a class of the user's does; Celery would drop the retry
        return False
