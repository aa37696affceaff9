"""The objects of JSON that `--json` prints: the fields of the Python API. Times are seconds."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_exclusive.operate.answers import Answer
    from celery_exclusive.operate.states import KeyState
    from celery_exclusive.task import WaitingTask


def record(found: Answer | KeyState | WaitingTask) -> dict[str, Any]:
    """Return all fields of an answer, a key or a task that waits, with times in whole milliseconds."""
    rounded: dict[str, Any] = _rounded(asdict(found))
    return rounded


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(of) for name, of in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(of) for of in value]
    return round(value, 3) if isinstance(value, float) else value
