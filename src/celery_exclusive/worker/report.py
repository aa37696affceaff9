"""Logs the outcome of a delivery."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_exclusive import notices
from celery_exclusive.options.preview import given_preview, preview
from celery_exclusive.publishing.long_lines import warn_of_long_line

if TYPE_CHECKING:
    from celery_exclusive.core.admission import Outcome
    from celery_exclusive.worker.reading import Received


def log_outcome(task: Any, delivery: Received, call: tuple[str, Any, Any, Any], outcome: Outcome) -> None:
    """Log the outcome of a delivery whose body does not run. Celery itself logs a failure."""
    if outcome.kind not in ("wait", "drop", "skip"):
        return
    id, name = call[0], name_of_key(task, delivery, call, outcome.key)
    if outcome.kind == "wait":
        notices.parked(task.name, id, name, outcome.position, outcome.by, outcome.others)
        if delivery.lock_option(outcome.key):
            warn_of_long_line(task.name, outcome.key, outcome.position)
    elif outcome.kind == "drop":
        notices.stale(task.name, id, name)
    elif outcome.reason == "duplicate":
        notices.duplicate(task.name, id, outcome.key, outcome.existing_id)
    elif outcome.reason == "replaced":
        notices.replaced(task.name, id, name, outcome.existing_id)
    elif outcome.reason == "given up":
        option = delivery.lock_option(outcome.key)
        seconds = option.give_up_after if option else None
        notices.given_up(task.name, id, name, seconds, outcome.by, outcome.others)
    elif outcome.reason == "full":
        notices.full(task.name, id, name, outcome.waiting, outcome.by, outcome.others)
    else:
        notices.skipped(task.name, id, name, outcome.by, outcome.others)


def name_of_key(task: Any, delivery: Received, call: tuple[str, Any, Any, Any], key: str) -> str:
    """Return the key of a lock with a preview of the arguments, only for log lines."""
    option = delivery.lock_option(key)
    if option is None or not task.app._celery_exclusive.settings.exclusive_preview:
        return key
    _, args, kwargs, request = call
    is_masked = delivery.header.masked
    shown = given_preview(request) if is_masked else preview(task.run, option, args, kwargs)
    return f"{key} ({shown})" if shown else key
