"""What happens before a message is sent: it is told its key and a publish id of its own."""

from __future__ import annotations

from dataclasses import replace
from functools import wraps
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from celery_exclusive.header import DELIVERY, HEADER, Header
from celery_exclusive.keys import key_of
from celery_exclusive.task import current_run, switches_off

if TYPE_CHECKING:
    from celery_exclusive.install import Installation


def wrap_send_task(installation: Installation) -> Any:
    """Make an app's `send_task`, which every publish passes, put our header on messages of our tasks."""
    app = installation.app
    send_task = app.send_task

    @wraps(send_task)
    def with_header(name: str, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        is_off = switches_off(name, options)
        headers = dict(options.get("headers") or {})
        previous = Header.read(headers)
        headers.pop(DELIVERY, None)
        if headers.pop(HEADER, None) is not None:
            headers.pop("redelivered", None)
        task = options.get("task_type") or app._tasks.get(name)
        if getattr(task, "exclusive", None) is not None or is_off:
            installation.settings  # noqa: B018 - wrong settings are an error for the caller
            header = _header(
                installation, task, args or (), kwargs or {}, options, previous, switched_off=is_off
            )
            if header:
                mark = None if header.x is None else installation.mark.read()
                headers[HEADER] = replace(header, store=mark).write()
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
        key = key_of(task.name, task.run, installation.option(task), args, kwargs)
    except TypeError:
        return None  # the arguments do not fit; the worker will refuse them
    return Header(token_hex(4), key, next=is_next)


def _same_arguments(task: Any, args: Any, kwargs: Any) -> bool:
    request = task.request
    if request.id is None:  # no body: the main process retries a task whose child was lost
        return True
    return list(args) == list(request.args or ()) and kwargs == (request.kwargs or {})
