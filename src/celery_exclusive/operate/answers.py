"""Answers to `why`: a reason of the closed list, a sentence with its numbers, and the next step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from shlex import quote
from typing import TYPE_CHECKING, Final

from celery_exclusive.core.records import PUBLISHED
from celery_exclusive.display import deaths, duration, escaped, printable
from celery_exclusive.operate.parts import PartState, part_named
from celery_exclusive.operate.problems import NO_WORKER_AFTER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_exclusive.errors import StoreUnavailable
    from celery_exclusive.operate.patience import NoAnswer
    from celery_exclusive.operate.results import TaskResult
    from celery_exclusive.operate.states import KeyState
    from celery_exclusive.reasons import Reason
    from celery_exclusive.task import LockHolder, WaitingTask

EXAMINE: Final = "celery -A proj locks doctor"
_PARTS: Final = 3
"""The most parts that a sentence names."""
_IS_THERE_A_WORKER: Final = "celery -A proj inspect active_queues"

_REASONS: Final[dict[str, Reason]] = {"queued": "queued", "period": "duplicate"}
"""The reasons of states of a held key, if they are not "held"."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to why a task does not run, or why a key does not go on.

    * `reason`: one of `celery_exclusive.reasons.REASONS`. None: nothing keeps a call of the key from running.
    * `sentence`: the answer for people, without control characters.
    * `next_step`: a command for a shell; "" if there is nothing to do.
    * `is_trouble`: whether a person should act.
    * `task_id`: the task that was asked for, if it was. `key`: the state of the key.
    * `waiting`: the task's place, if it waits. `holder`: its lease, if it holds the key. `result`: its
      result, if it has ended.
    """

    reason: Reason | None
    sentence: str
    next_step: str = ""
    is_trouble: bool = False
    task_id: str | None = None
    key: KeyState | None = None
    waiting: WaitingTask | None = None
    holder: LockHolder | None = None
    result: TaskResult | None = None


def of_waiting(
    key: KeyState,
    task: WaitingTask,
    *,
    is_signed: bool = True,
    in_part: int = 1,
    part: PartState | None = None,
) -> Answer:
    """Answer for a task that waits. `is_signed`: workers may publish its message."""
    part = part or part_named(key.parts, task.part)
    show, lasts = command("locks", "show", key.key), f"for {duration(task.age)}"
    reason: Reason
    is_trouble = _is_stuck(key)
    if task.over is not None:
        reason = "replaced" if task.over else "given_up"
        cause = (
            f"the newer task {printable(task.over)} has taken its place" if task.over else "it has given up"
        )
        text = f"ENDS without a run: {cause} in the line of {named(key)}, {lasts}; a worker ends it soon"
        show = _IS_THERE_A_WORKER
    elif task.is_aside and not is_signed:
        reason, is_trouble = "aside", True
        text = (
            f"ASIDE in the line of {named(key)}, {lasts}: no exclusive_secret of this app has signed its "
            "message, so no worker publishes it"
        )
    elif task.is_aside:
        reason, is_trouble = "aside", True
        text = (
            f"ASIDE in the line of {named(key)}, {lasts}: no worker accepted its offers. Is "
            "there one for its queue that knows its task?"
        )
        show = _IS_THERE_A_WORKER
    elif task.is_offered and task.offers == PUBLISHED:
        reason, show = "queued", _IS_THERE_A_WORKER
        text = (
            f"QUEUED: {named(key)} is offered to it since it was published, {lasts}: its message is in queue "
            f"{printable(key.queue) or '?'}, and no worker has begun it"
        )
    elif task.is_offered:
        reason, show = "offered", _IS_THERE_A_WORKER
        text = (
            f"OFFERED: {named(key)} is offered to it, so its message is in queue "
            f"{printable(key.queue) or '?'} or on the way to a worker, and none has begun it; "
            f"it has waited {lasts}{'' if task.offers == 1 else ', and no worker accepted its offers before'}"
        )
    elif task.not_before is not None:
        reason = "not_before"
        text = (
            f"NOT BEFORE {duration(task.not_before)} from now: it waits for newer calls of {named(key)}, "
            f"{lasts}"
        )
    elif task.is_shut:
        reason = part.closed_by or "part"
        waits = part.text if reason in ("paused", "hold") else f"it waits for {part.text}"
        closed = f"; {key.room.closed_text}" if key.room.closed_by else ""
        text = (
            f"WAITING: number {in_part:,} of {part.named} for {named(key)}, {lasts}, and not in line yet; "
            f"{waits}{closed}"
        )
    else:
        reason = key.room.closed_by or "in_line"
        place = f"place {task.place:,} of {key.in_line:,}"
        place += f" (number {in_part:,} of {part.named})" if task.part else ""
        text = f"WAITING: {place} for {named(key)}, {lasts}; {_held(key)}"
        text += f"; {part.text}" if part.closed_by in ("paused", "hold") else ""
        show = show if key.holders or key.room.closed_by else _IS_THERE_A_WORKER
        if _is_left(key):
            text += ": is there a worker for its queue that knows its task?"
            is_trouble = True
        text += _circle(key, task)
    if task.ends_in is not None and task.over is None:
        text += f"; it {'gives up' if task.gives_up else 'expires'} in {duration(task.ends_in)}"
    text += and_deaths(task.deaths)
    return Answer(reason, text, show, is_trouble, task.task_id, key, waiting=task)


def of_holder(key: KeyState, holder: LockHolder) -> Answer:
    look = command("inspect", "query_task", holder.task_id)
    lasts, others = f"for {duration(holder.age)}", _others_wait(key)
    reason: Reason = "running"
    if holder.is_queued:
        reason = "queued"
        text = (
            f"QUEUED: {named(key)} is held for its message{_of_queue(key)}, {lasts}, and no worker has begun "
            f"it; without a run the key is free in {duration(holder.remaining)}{others}"
        )
    elif holder.phase == "period":
        reason = "duplicate"
        text = f"PERIOD: {named(key)} is held by the clock for another {duration(holder.remaining)}"
    elif holder.is_dead:
        text = (
            f"RUNNING, but its lease has expired: {worker_text(holder) or 'its worker'} has died or is cut "
            f"off. A worker that lives publishes it again; it holds {named(key)}, {lasts}{others}"
        )
        look = command("inspect", "ping")
    else:
        text = f"RUNNING{_on_worker(holder)}, {lasts}: it holds {named(key)}{renewed_text(holder)}{others}"
        text += _circle(key)
    text += and_deaths(holder.deaths)
    return Answer(reason, text, look, holder.is_dead, holder.task_id, key, holder=holder)


def of_key(key: KeyState) -> Answer:
    show = command("locks", "show", key.key)
    if not (key.holders or key.all_waiting) and key.room.closed_by:
        text = f"CLOSED: no task of {named(key)} starts: {key.room.closed_text}"
        return Answer(key.room.closed_by, text, show, key=key)
    if not (key.holders or key.all_waiting):
        text = f"FREE: no task holds or waits for {named(key)}: a call of it can run now{_closed_parts(key)}"
        return Answer(None, text, key=key)
    if key.holders:
        reason = "full" if key.is_full else key.room.closed_by or _REASONS.get(key.state, "held")
        word = {"queued": "QUEUED", "full": "FULL"}.get(reason, "HELD")
        full = f": its line takes no more calls (max_waiting={key.max_waiting})" if key.is_full else ""
        text = (
            f"{word}: {named(key)} is {_held(key)}{_others_wait(key)}{full}{_closed_parts(key)}{_circle(key)}"
        )
        return Answer(reason, text, show, _is_stuck(key), key=key)
    if key.shut and not (key.line or key.aside):
        of_parts: list[Reason] = [part.closed_by for part in key.parts if part.shut and part.closed_by]
        text = f"WAITING: {_held(key)}: {named(key)}{_others_wait(key)}{_closed_parts(key)}"
        of_parts.append("part")
        return Answer(key.room.closed_by or of_parts[0], text, show, key=key)
    if not key.line:
        text = (
            f"ASIDE: {key.aside:,} tasks wait for {named(key)}, and no worker accepts or publishes them, "
            "or they wait for their last chance: `locks why` with the id of one says why"
        )
        return Answer("aside", text, show, is_trouble=True, key=key)
    first = of_waiting(key, key.line[0])
    text = (
        f"no task holds {named(key)}{_others_wait(key)}. The first in line, {printable(first.task_id or '')}"
    )
    return Answer(first.reason, f"{text}: {first.sentence}", first.next_step, first.is_trouble, key=key)


def of_result(task_id: str, result: TaskResult) -> Answer:
    at = f" at {result.at}" if result.at else ""
    if result.key:
        word = "FAILED" if result.error else "SKIPPED"
        holder = printable(result.holder_id) or "another task"
        verb = f"{escaped(result.key)} was held by {holder}"
        if not result.holder_id and result.key.startswith("x"):
            verb = f"{escaped(result.key)} was held, or closed by its rate, a pause or a hold"
        if result.reason == "replaced":
            verb = f"the newer task {holder} has taken its place at {escaped(result.key)}"
        if result.reason == "superseded":
            verb = f"the newer task {holder} has superseded it at {escaped(result.key)}"
        text = f"{word}{at}: {printable(result.error) or verb}"
        return Answer(
            result.reason, text, command("locks", "why", result.key), task_id=task_id, result=result
        )
    words = {"revoked": "REVOKED", "expired": "EXPIRED"}
    failed = f", with {printable(result.error)}" if result.error else ""
    text = f"{words.get(result.reason, 'FINISHED')}{at}: its state is {result.state}{failed}"
    # For a task that has failed or was revoked `celery result` alone raises its error.
    steps = {"SUCCESS": command("result", task_id), "FAILURE": command("result", "--traceback", task_id)}
    return Answer(result.reason, text, steps.get(result.state, ""), task_id=task_id, result=result)


def with_result(answer: Answer, task_id: str, result: TaskResult) -> Answer:
    ended = of_result(task_id, result).sentence
    text = f"{ended}, and the store does not know: {answer.sentence}"
    if answer.task_id is None:
        text = f"{answer.sentence}. But {printable(task_id)} has ended: {ended}"
    if result.reason == "finished" and not (answer.holder and answer.holder.is_dead):
        text += ". A worker has run it that uses no locks, or another store or exclusive_prefix"
    return replace(
        answer, reason=result.reason, sentence=text, next_step=EXAMINE, is_trouble=True, result=result
    )


def with_silence(answer: Answer, silence: NoAnswer) -> Answer:
    return replace(answer, sentence=f"{answer.sentence}. But {silence}", is_trouble=True)


def with_silent_workers(answer: Answer) -> Answer:
    """Return the answer about a task whose queue workers may consume. Some have no remote control."""
    text = "Workers live, but none has said within a second which queues it consumes"
    return replace(answer, sentence=f"{answer.sentence}. {text}")


def with_queue(answer: Answer, queue: str, *, has_workers: bool, is_usual: bool) -> Answer:
    """Answer about a task whose message is in a queue that no worker consumes.

    `is_usual`: it is the queue of the task's calls, and the store does not know the queue of this one.
    """
    of = f"{'its usual ' * is_usual}queue {printable(queue)}" if queue else "its queue"
    if has_workers:
        text, step = f"no worker consumes {of}", command("control", "add_consumer", queue)
    else:
        text = f"no worker has answered within a second: is there one for {of}?"
        step = command("worker", "-Q", queue) if queue else "celery -A proj worker"
    return replace(answer, sentence=f"{answer.sentence}. But {text}", next_step=step, is_trouble=True)


def of_outage(error: StoreUnavailable) -> Answer:
    return Answer("store_down", f"STORE DOWN: {error}", EXAMINE, is_trouble=True)


def refusal(key: KeyState) -> str:
    """Return why a held key is not released, and what its release by force breaks."""
    first = key.holders[0]
    worker = worker_text(first)
    body = f"the body on {worker}" if worker else "its body, if it still runs,"
    following = ""
    if key.line:
        following = f", which is {printable(key.line[0].task_id)}"
    return (
        f"{named(key)} is {_held(key)}{_others_wait(key)}. It was not released: it is when its task ends or, "
        f"if the worker is dead, in {duration(max(first.remaining, 0))}. With --force and --reason it is "
        f"released at once, and {body} goes on beside the next holder{following}: only its own lease.check() "
        "would stop it"
    )


def command(*words: str) -> str:
    *verbs, last = words
    end = ["--"] if last.startswith("-") else []
    return " ".join(["celery -A proj", *verbs, *end, quote(escaped(last))])


def named(key: KeyState) -> str:
    return f"{escaped(key.key)} ({printable(key.args)})" if key.args else escaped(key.key)


def holder_text(holder: LockHolder) -> str:
    if holder.is_dead:
        return (
            f"{printable(holder.task_id)}{_on_worker(holder)} for {duration(holder.age)}, whose lease has "
            "expired: its worker has died or is cut off"
        )
    if holder.phase == "period":
        return f"{printable(holder.task_id)} by the clock for another {duration(holder.remaining)}"
    if holder.is_queued:
        return (
            f"{printable(holder.task_id)}, whose message no worker has begun, for {duration(holder.age)}; "
            f"without a run it is free in {duration(holder.remaining)}"
        )
    return f"{printable(holder.task_id)}{_on_worker(holder)} for {duration(holder.age)}{renewed_text(holder)}"


def _held(key: KeyState) -> str:
    closed = f"{key.room.closed_text}; " if key.room.closed_by else ""
    if not key.holders:
        return f"{closed}no task holds it"
    others = len(key.holders) - 1 + key.other_holders
    more = f", and by {others:,} more (limit {key.room.short})" if others else ""
    return f"{closed}held by {holder_text(key.holders[0])}{more}"


def _closed_parts(key: KeyState) -> str:
    closed = [part for part in key.parts if part.closed_by and (part.shut or part.is_set)]
    return "".join(f"; {_of_part(part)}" for part in closed[:_PARTS])


def _of_part(part: PartState) -> str:
    is_closed = part.closed_by in ("paused", "hold")
    return part.text if is_closed else f"{part.shut:,} wait for {part.text}"


def _others_wait(key: KeyState) -> str:
    if not key.all_waiting:
        return ""
    apart = [f"{key.shut:,} of them for room in their part of the key (per=)"] * bool(key.shut)
    apart += [f"{key.aside:,} of them aside"] * bool(key.aside)
    aside = f" ({', '.join(apart)})" if apart else ""
    oldest = f", the first of them for {duration(key.oldest_wait)}" if key.oldest_wait is not None else ""
    return f"; {key.all_waiting:,} wait{aside}{oldest}"


def _circle(key: KeyState, *tasks: WaitingTask) -> str:
    """Say that the bodies that hold the key have called tasks in its line, for which they may wait."""
    callers = {caller: task.task_id for task in (*key.line, *tasks) for caller in task.callers}
    holders = [holder.task_id for holder in key.holders]
    if key.other_holders or not holders or not all(holder in callers for holder in holders):
        return ""
    parent, child = printable(holders[0]), printable(callers[holders[0]])
    return (
        f"; {parent} holds it and has called {child}, which waits for it: if the first waits for the second, "
        "neither ends"
    )


def facts_of(task: WaitingTask) -> Iterator[str]:
    if task.part:
        yield f"of part {printable(task.part)}"
    if task.is_shut:
        yield "waits for room of its part"
    if task.is_offered:
        yield "its turn has come, and its message is on the way to a worker"
    if task.not_before is not None:
        yield f"waits for newer calls, not before {duration(task.not_before)} from now"
    if task.over:
        yield f"the newer task {printable(task.over)} has taken its place, and a worker ends it"
    elif task.over is not None:
        yield "its wait is over, and a worker ends it"
    elif task.ends_in is not None:
        yield f"{'gives up' if task.gives_up else 'expires'} in {duration(task.ends_in)}"
    elif task.is_aside:
        yield "no worker accepts or publishes it" + ", or it waits for its last chance" * bool(task.deaths)
    if task.deaths:
        yield deaths(task.deaths)


def worker_text(holder: LockHolder) -> str:
    return " or ".join(map(str, holder.workers))


def _on_worker(holder: LockHolder) -> str:
    return f" on {worker_text(holder)}" if holder.workers else ""


def and_deaths(number: int) -> str:
    return f"; {deaths(number)}" if number else ""


def renewed_text(holder: LockHolder) -> str:
    """Return the time of a holder's last renewal, or else the time that its lease has left."""
    if holder.renewed is not None:
        return f", renewed {duration(holder.renewed)} ago"
    return f", its lease lasts {duration(holder.remaining)} without a renewal"


def _of_queue(key: KeyState) -> str:
    return f" of queue {printable(key.queue)}" if key.queue else ""


def _is_stuck(key: KeyState) -> bool:
    return any(holder.is_dead for holder in key.holders)


def _is_left(key: KeyState) -> bool:
    """Whether no task has had the key, or an offer, for so long that there may be no worker."""
    if (
        key.holders
        or key.room.closed_by
        or any(task.is_offered or task.not_before is not None for task in key.line)
    ):
        return False
    return (key.oldest_wait or 0) >= NO_WORKER_AFTER
