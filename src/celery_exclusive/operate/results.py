"""Reads the result of a task from the result backend of its app."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from celery.backends.base import DisabledBackend

from celery_exclusive.errors import FULL, Conflict, DuplicateTask
from celery_exclusive.operate.patience import NoAnswer, ask_backend, backend_name
from celery_exclusive.operate.states import task_of, tasks_by_key

if TYPE_CHECKING:
    from celery_exclusive.reasons import Reason
    from celery_exclusive.services import Services

_FORMAT: Final = "%Y-%m-%d %H:%M:%S UTC"
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

    def is_newer(self, age: float) -> bool:
        """Whether it was stored within this age, as far as its whole seconds say."""
        if not self.at:
            return False
        at = datetime.strptime(self.at, _FORMAT).replace(tzinfo=timezone.utc)
        return time.time() - at.timestamp() <= age + 1


def result_of(services: Services, task_id: str) -> TaskResult | None:
    """Return the result of a task. None: the backend has none, or keeps results for their callers alone."""
    try:
        meta = ask_backend(services, lambda: stored_result(services, task_id))
        return _read(services, meta) if meta.get("status") in _IS_OVER else None
    except NoAnswer:
        raise
    except Exception as error:
        text = f"{backend_name(services)} could not be read ({type(error).__name__})"
        raise NoAnswer(text) from error


def stored_result(services: Services, task_id: str) -> Mapping[str, Any]:
    """Return what the result backend has of a task; empty if the app stores no results there."""
    backend: Any = services.app.backend
    if services.has_rpc_results or isinstance(backend, DisabledBackend):
        return {}
    found: Mapping[str, Any] = backend.get_task_meta(task_id, cache=False)
    return found


def _read(services: Services, meta: Mapping[str, Any]) -> TaskResult:
    state, result, at = str(meta["status"]), meta.get("result"), _time(meta.get("date_done"))
    if state == "REVOKED":
        return TaskResult(state, at, "expired" if str(result) == "expired" else "revoked")
    if isinstance(result, Conflict) and result.key:
        why: Reason = "duplicate" if isinstance(result, DuplicateTask) else "held"
        why = "full" if FULL in str(result) else getattr(result, "reason", why)
        error = f"{type(result).__name__}: {result}"
        return TaskResult(state, at, why, result.key, result.holder, error)
    if state == "FAILURE":
        return TaskResult(state, at, error=type(result).__name__)
    skipped = result.get("skipped") if isinstance(result, dict) else None
    if isinstance(skipped, dict) and isinstance(skipped.get("key"), str):
        key = skipped["key"]
        reason: Reason = "held" if key.startswith("x") else "duplicate"
        name = task_of(key, tasks_by_key(services)) or meta.get("name")
        option = services.exclusive(services.app.tasks.get(name))
        if reason == "held" and option and option.replaces and option.on_give_up != "skip":
            reason = "superseded" if option.supersedes else "replaced"  # it is skipped for a newer one alone
        return TaskResult(state, at, reason, key, str(skipped.get("existing_id") or ""))
    return TaskResult(state, at)


def _time(stored: object) -> str:
    """Return a time as a backend has it: as text, or as a datetime, in UTC even without its zone."""
    with suppress(ValueError):
        at = stored if isinstance(stored, datetime) else datetime.fromisoformat(str(stored))
        at = at.astimezone(timezone.utc) if at.tzinfo else at
        return at.strftime(_FORMAT)
    return ""
