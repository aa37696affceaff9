"""Stands in each installed app between Celery and its calls, and lets those of our tasks have our header."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, cast

from celery import Celery
from celery.signals import before_task_publish
from celery.utils import uuid

from celery_exclusive.publishing.as_sent import as_sent
from celery_exclusive.publishing.call_options import pop_call_options
from celery_exclusive.publishing.late_keys import are_late, send_late
from celery_exclusive.publishing.publish import Publish, pop_header, with_outcome
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
    if rest:
        options.update(zip(_BY_PLACE, rest, strict=False))
        rest = rest[len(_BY_PLACE) :]
    task = options.get("task_type") or _declared(self, name)
    call = pop_call_options(name, task, options)
    if not (call.exclusive or call.unique or call.off):
        if options.get("headers"):
            pop_header(services, name, options)
        return with_outcome(task, send_task(name, args, kwargs, *rest, **options))
    options = as_sent(services, task, name, args, kwargs, options)
    send = partial(send_task, name, args, kwargs, *rest)
    args, kwargs = args or (), kwargs or {}
    if not (before_task_publish.receivers and are_late(services, task, call)):
        return Publish(services, name, task, call, (args, kwargs), options, send).send()

    id = options.get("task_id") or uuid()

    def publish_late(headers: Any, producer: Any, push: Callable[..., Any]) -> Any:
        late = {**options, "headers": headers, "producer": producer}
        return Publish(services, name, task, call, (args, kwargs), late, push, id).send()

    return send_late(services, {**options, "task_id": id}, send, publish_late)


_Sender: Any = type("_Sender", (Celery,), {"send_task": _send_task})
"""Celery's own class, with our `send_task`."""


def _declared(app: Any, name: str) -> Any:
    """The task of this name, also where nothing has made it a task of the app yet."""
    if app.autofinalize and not app.finalized:
        app.finalize(auto=True)
    return app._tasks.get(name)
