"""Reports the outcome of a delivery."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from celery_exclusive import outcomes
from celery_exclusive.core.claim import LAST_CHANCE
from celery_exclusive.display import deaths
from celery_exclusive.options.preview import given_preview, preview
from celery_exclusive.outcomes import Subject
from celery_exclusive.publishing.long_lines import warn_of_long_line

if TYPE_CHECKING:
    from celery_exclusive.core.admission import Admission
    from celery_exclusive.run import Run
    from celery_exclusive.worker.reading import Received


def report(
    task: Any, delivery: Received, call: tuple[str, Any, Any, Any], outcome: Admission, run: Run
) -> None:
    """Log the outcome of a delivery whose body does not run, and note it for receivers."""
    subject = subject_of(task, delivery, call, outcome.key, run)
    option = delivery.lock_option(outcome.key)
    if outcome.kind == "wait":
        in_parts = option is not None and option.per is not None
        outcomes.parked(subject, outcome.position, outcome.by, outcome.others, in_parts=in_parts)
        if option:
            warn_of_long_line(task.name, outcome.key, outcome.position)
    elif outcome.kind == "drop":
        outcomes.stale(subject)
    else:
        seconds = option.longest_wait if option else None
        outcomes.ended_without_body(subject, outcome, seconds, waited(delivery))


def subject_of(task: Any, delivery: Received, call: tuple[str, Any, Any, Any], key: str, run: Run) -> Subject:
    """Return the subject of a delivery. Its log lines show a preview of the arguments beside the key."""
    id, args, kwargs, request = call
    option, shown = delivery.lock_option(key), ""
    if key == LAST_CHANCE:
        shown = deaths(delivery.deaths)
    elif option and task.app._celery_exclusive.settings.exclusive_preview:
        is_masked = delivery.header.masked
        shown = given_preview(request) if is_masked else preview(task.run, option, args, kwargs)
    return Subject(task.name, id, key, f"{key} ({shown})" if shown else "", run.note)


def waited(delivery: Received) -> float | None:
    """Return the seconds since a rescheduled task first found its key held. None: they are not known."""
    since = delivery.header.since
    return None if since is None else max(time.time() - since, 0)
