"""The objects of JSON that `--json` prints. Times are seconds, and no field is ever left out or renamed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from celery_exclusive.operate.answers import Answer
from celery_exclusive.operate.parts import PartState
from celery_exclusive.operate.states import KeyState
from celery_exclusive.task import LockHolder, WaitingTask


def key_record(state: KeyState) -> dict[str, Any]:
    """Return the object of a key, with the first ten tasks in its line."""
    return {
        "key": state.key,
        "task": state.task,
        "args": state.args,
        "state": state.state,
        "holders": [_holder_record(holder) for holder in state.holders],
        "waiting": state.all_waiting,
        "aside": state.aside,
        "oldest_wait": _rounded(state.oldest_wait),
        "limit": state.room.limit,
        "override": state.room.override and asdict(state.room.override),
        "opens_in": _rounded(state.room.opens_in),
        "rates": [asdict(rate) for rate in state.room.rates],
        "shut": state.shut,
        "parts": [_part_record(part) for part in state.parts],
        "line": [waiting_record(task) for task in state.line],
        **({"other_holders": state.other_holders} if state.other_holders else {}),
        **({"other_parts": state.other_parts} if state.other_parts else {}),
        **({"problem": state.problem} if state.problem else {}),
    }


def waiting_record(task: WaitingTask) -> dict[str, Any]:
    """Return the object of a task that waits."""
    return {
        "id": task.task_id,
        "age": _rounded(task.age),
        "offered": task.is_offered,
        "not_before": _rounded(task.not_before),
        "ends_in": _rounded(task.ends_in),
        "gives_up": task.gives_up,
        "place": task.place,
        "part": task.part or None,
        "aside": task.is_aside,
        "shut": task.is_shut,
        "over": task.over,
        "offers": task.offers,
        "deaths": task.deaths,
        "task": task.task,
        "args": task.args,
    }


def answer_record(answer: Answer) -> dict[str, Any]:
    """Return the object of an answer, with the facts behind its sentence."""
    return {
        "reason": answer.reason,
        "sentence": answer.sentence,
        "next_step": answer.next_step,
        "trouble": answer.is_trouble,
        "task_id": answer.task_id,
        "key": answer.key and key_record(answer.key),
        "waiting": answer.waiting and waiting_record(answer.waiting),
        "holder": answer.holder and _holder_record(answer.holder),
        "result": answer.result and asdict(answer.result),
    }


def _holder_record(holder: LockHolder) -> dict[str, Any]:
    return {
        "id": holder.task_id,
        "age": _rounded(holder.age),
        "lease_left": _rounded(holder.remaining),
        "fence": holder.fence,
        "phase": holder.phase,
        "renewed": _rounded(holder.renewed),
        "deaths": holder.deaths,
        "workers": [asdict(worker) for worker in holder.workers],
    }


def _part_record(part: PartState) -> dict[str, Any]:
    return {
        "part": part.name or None,
        "running": part.running,
        "in_line": part.in_line,
        "shut": part.shut,
        "weight": part.weight,
        "limit": part.room.limit,
        "override": part.room.override and asdict(part.room.override),
        "opens_in": _rounded(part.room.opens_in),
        "rates": [asdict(rate) for rate in part.room.rates],
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
