"""The error of a call whose message may have been sent, since the request with it got no answer."""

from __future__ import annotations

from celery_exclusive.errors import StoreUnavailable


def may_be_sent(task: str, task_id: str, error: StoreUnavailable) -> StoreUnavailable:
    """Return the error that names the task, so that the caller looks for it before another call."""
    explained = StoreUnavailable(
        f"task {task}[{task_id}] may have been sent: {error}. If it was, it runs, and to call it again may "
        "run it twice: look for its result, its effect or its key first"
    )
    explained.task_id = task_id
    return explained
