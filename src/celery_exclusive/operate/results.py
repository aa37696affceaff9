"""Reads the result of a task from the result backend of its app."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from celery.backends.base import DisabledBackend

from celery_exclusive.errors import LockHeld

if TYPE_CHECKING:
    from celery_exclusive.reasons import Reason
    from celery_exclusive.services import Services

_IS_OVER = ("SUCCESS", "FAILURE", "REVOKED")


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of a task that has ended, without its value.

    * `state`: Celery's state. `at`: the time when it was stored, "2027-01-31 03:12:44 UTC".
    * `reason`: why its body did not run; "finished" if it ran.
    * `key`, `holder_id`: of a task that was skipped, or failed, since another one held its key.
    * `error`: the type of the error, and of an error of this library its text.
    """

    state: str
    at: str = ""
    reason: Reason = "finished"
    key: str = ""
    holder_id: str = ""
    error: str = ""


def result_of(services: Services, task_id: str) -> TaskResult | None:
    """Return the result of a task that has ended. Never raises.

    None: the backend has none, or does not answer, or keeps results for their callers alone.
    """
    backend = services.app.backend
    if isinstance(backend, DisabledBackend) or services.has_rpc_results:
        return None
    with suppress(Exception):  # a backend that is down hides no lock
        meta = backend.get_task_meta(task_id, cache=False)
        if meta.get("status") in _IS_OVER:
            return _read(meta)
    return None


def _read(meta: Mapping[str, Any]) -> TaskResult:
    state, result, at = str(meta["status"]), meta.get("result"), _time(meta.get("date_done"))
    if state == "REVOKED":
        return TaskResult(state, at, "expired" if str(result) == "expired" else "revoked")
    if isinstance(result, LockHeld):
        return TaskResult(state, at, "held", result.key, result.holder, f"LockHeld: {result}")
    if state == "FAILURE":
        return TaskResult(state, at, error=type(result).__name__)
    skipped = result.get("skipped") if isinstance(result, dict) else None
    if isinstance(skipped, dict) and isinstance(skipped.get("key"), str):
        key = skipped["key"]
        reason: Reason = "held" if key.startswith("x") else "duplicate"
        return TaskResult(state, at, reason, key, str(skipped.get("existing_id") or ""))
    return TaskResult(state, at)


def _time(stored: object) -> str:
    """Return a time as a backend has it: as text, or as a datetime, in UTC even without its zone."""
    with suppress(ValueError):
        time = stored if isinstance(stored, datetime) else datetime.fromisoformat(str(stored))
        time = time.astimezone(timezone.utc) if time.tzinfo else time
        return f"{time:%Y-%m-%d %H:%M:%S} UTC"
    return ""
