"""A duplicate that waits for the task with its unique key, and ends as that has."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from billiard.exceptions import SoftTimeLimitExceeded, WorkerLostError

from celery_exclusive import notices

if TYPE_CHECKING:
    from celery_exclusive.options.declared import UniqueOption
    from celery_exclusive.services import Services

_WAIT = 5
"""The longest time, in seconds, between the end of a body and its result in the backend."""
_PAUSE = 0.05
Ended = tuple[tuple[object] | None, Exception | None]
"""How a task has ended: with a result, or with an error."""
LOST: Ended = (None, None)


def may_join(
    services: Services, task: Any, request: Mapping[str, Any], option: UniqueOption | None, *, is_member: bool
) -> bool:
    """Whether a duplicate of this task waits for the one that holds its key, and reads the result then."""
    joins = option is not None and (option.shares or (is_member and option.hands_on_a_skip))
    return joins and services.may_join(task, option) and not request.get("ignore_result")


def result_of(services: Services, task_id: str, *, waits: bool = True) -> Ended | None:
    """Return how a task has ended, `LOST` if it ended without its body. None: it has no result.

    `waits`: its result may be on its way. A soft time limit that strikes meanwhile is returned as the error.
    """
    until = time.monotonic() + (_WAIT if waits else 0)
    try:
        while not (ended := _read(services.app.backend, task_id)) and time.monotonic() < until:
            time.sleep(_PAUSE)
    except SoftTimeLimitExceeded as limit:
        return None, limit
    except Exception as error:  # noqa: BLE001 - whatever a backend raises
        notices.trouble(f"the result of task {task_id}, which a duplicate waits for, is not known", error)
        return None
    return ended


def _read(backend: Any, task_id: str) -> Ended | None:
    meta = backend.get_task_meta(task_id, cache=False)
    state, result = meta["status"], meta.get("result")
    if state == "SUCCESS":
        return (result,), None
    if state in ("REVOKED", "IGNORED", "REJECTED") or isinstance(result, WorkerLostError):
        return LOST
    if state == "FAILURE":
        return None, result if isinstance(result, Exception) else RuntimeError(str(result))
    return None
