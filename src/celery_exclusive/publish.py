"""What happens before a message is sent: it is told its key and a publish id of its own."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import wraps
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from celery_exclusive.errors import OptionError
from celery_exclusive.keys import exclusive_key
from celery_exclusive.task import current_run

if TYPE_CHECKING:
    from celery_exclusive.install import Installation

HEADER = "exclusive"
DELIVERY = "exclusive_delivery"
"""Where a worker hands a delivery to its child within the request; never published."""
VERSION = 1
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Header:
    """What travels with a message; headers survive redelivery and parking.

    `id` is the publish id, `x` the key that was meant (None: the call switched its options off), `promoted`
    the epoch of the store if this is the copy of an offer, `next` that it was published by the end of a task
    that may still hold its own lease: a chain's next step, a link, a chord's body.
    """

    id: str
    x: str | None
    promoted: str | None = None
    next: bool = False

    @classmethod
    def read(cls, headers: dict[str, Any]) -> Header | None:
        """Read it from a message; None if there is none that this version understands."""
        header: Any = headers.get(HEADER)
        if not isinstance(header, dict) or header.get("v") != VERSION or "x" not in header:
            return None
        id, key, promoted = header.get("id"), header.get("x"), header.get("promoted")
        if not (isinstance(id, str) and isinstance(key, str | None) and isinstance(promoted, str | None)):
            return None
        return cls(id, key, promoted, bool(header.get("next")))

    def write(self) -> dict[str, Any]:
        return {"v": VERSION, **asdict(self)}


def wrap_send_task(installation: Installation) -> Any:
    """Make an app's `send_task`, which every publish passes, put our header on messages of our tasks."""
    app = installation.app
    send_task = app.send_task

    @wraps(send_task)
    def with_header(name: str, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        asked = options.pop("exclusive", _MISSING)
        if asked is not _MISSING and asked is not None:
            raise OptionError(
                f"task {name}: exclusive={asked!r} is not an option of a call; options belong to the task, "
                "and a call can only switch them off with exclusive=None"
            )
        headers = dict(options.get("headers") or {})
        previous = Header.read(headers)
        headers.pop(DELIVERY, None)
        if headers.pop(HEADER, None) is not None:
            headers.pop("redelivered", None)
        task = options.get("task_type") or app._tasks.get(name)
        if getattr(task, "exclusive", None) is not None or asked is None:
            installation.settings  # noqa: B018 - wrong settings are an error for the caller
            header = _header(
                installation, task, args or (), kwargs or {}, options, previous, switched_off=asked is None
            )
            if header:
                headers[HEADER] = header.write()
        if headers or options.get("headers"):
            options["headers"] = headers
        return send_task(name, args, kwargs, *rest, **options)

    return with_header


def _header(
    installation: Installation,
    task: Any,
    args: Any,
    kwargs: Any,
    options: dict[str, Any],
    previous: Header | None,
    *,
    switched_off: bool,
) -> Header | None:
    run = current_run.get()
    is_next = run is not None and run.body_over
    if switched_off:
        return Header(token_hex(4), None, next=is_next)
    if previous and options.get("retries") and (previous.x is None or _same_arguments(task, args, kwargs)):
        return Header(token_hex(4), previous.x)
    try:
        key = exclusive_key(task.name, task.run, installation.option(task), args, kwargs)
    except TypeError:
        return None  # the arguments do not fit; the worker will refuse them
    return Header(token_hex(4), key, next=is_next)


def _same_arguments(task: Any, args: Any, kwargs: Any) -> bool:
    request = task.request
    return list(args) == list(request.args or ()) and kwargs == (request.kwargs or {})
