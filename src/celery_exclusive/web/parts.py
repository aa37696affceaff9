"""The parts that several pages share: tables of keys, holders and lines, and answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from celery_exclusive.display import duration, escaped
from celery_exclusive.errors import UnreadableKey
from celery_exclusive.operate import answers
from celery_exclusive.web.markup import EMPTY, Html, button, facts, fill, link, table

if TYPE_CHECKING:
    from celery_exclusive.operate.answers import Answer
    from celery_exclusive.operate.states import KeyState
    from celery_exclusive.task import LockHolder, WaitingTask

_KEYS: Final = ("Key", "State", "Held by", "For", "Waiting", "Oldest wait", "Limit")
_HOLDERS: Final = ("Task", "Phase", "Worker", "Pid", "Host", "For", "Renewed", "Lease left")
_LINE: Final = ("Place", "Task", "Waits for", "State")


def key_table(caption: str, states: Iterable[KeyState], *, is_named: bool = False) -> Html:
    """Return a table of keys, each with a link to its page."""
    return table(caption, _KEYS, map(_key_row, states), is_named=is_named)


def holder_table(state: KeyState) -> Html:
    """Return a table of the holders of a key, and the number of those that the store does not name."""
    more = fill("<p>and {} more</p>", f"{state.other_holders:,}") if state.other_holders else EMPTY
    return fill("{}{}", table("Holders", _HOLDERS, map(_holder_row, state.holders), is_named=True), more)


def line_table(caption: str, key: str, tasks: Iterable[WaitingTask], *, may_drop: bool) -> Html:
    """Return a table of waiting tasks, with links to drop them for a visitor with that right."""
    if not may_drop:
        return table(caption, _LINE, map(_line_row, tasks))
    rows = ((*_line_row(task), _drop_link(key, task)) for task in tasks)
    return table(caption, (*_LINE, "Action"), rows)


def key_link(state: KeyState) -> Html:
    """Return a link to the page of a key, with the arguments that make it."""
    args = fill(' <span class="args">{}</span>', state.args) if state.args else EMPTY
    name = escaped(state.key)
    return fill('<span class="key">{}</span>{}', link("key", name, key=name), args)


def answer_text(answer: Answer) -> Html:
    """Return the sentence of an answer, and the next step."""
    step = fill('<p class="next">Next: <code>{}</code></p>', answer.next_step) if answer.next_step else EMPTY
    kind = "bad" if answer.is_trouble else "good"
    return fill('<p class="answer {}">{}</p>{}', kind, answer.sentence, step)


def state_text(state: KeyState, url: str) -> Html:
    """Return what becomes of a key, as an answer: why it does not go on."""
    if state.problem:
        return fill('<p class="answer bad">{}</p>', UnreadableKey(state.key, state.problem, url))
    answer = answers.of_key(state)
    return answer_text(answer if answer.is_trouble else replace(answer, next_step=""))


def key_facts(state: KeyState) -> Html:
    """Return the facts about a key, besides its holders and its line."""
    return facts(
        {
            "State": _badge(state.state),
            "Task": state.task,
            "Arguments": state.args,
            "Queue": state.queue,
            "Limit": f"{state.limit:,}",
            "In line": f"{state.waiting:,}",
            "Aside": f"{state.aside:,}" if state.aside else "",
        }
    )


def task_link(id: str) -> Html:
    """Return a link to the answer why a task does not run."""
    return fill('<span class="id">{}</span>', link("why", id, q=id))


def _key_row(state: KeyState) -> tuple[object, ...]:
    aside = f" ({state.aside:,} aside)" if state.aside else ""
    return (
        key_link(state),
        _badge(state.state),
        _first_holder(state),
        _time(state.held),
        f"{state.all_waiting:,}{aside}",
        _time(state.oldest_wait),
        f"{state.limit:,}",
    )


def _first_holder(state: KeyState) -> Html | str:
    if not state.holders:
        return "-"
    first, others = state.holders[0], len(state.holders) - 1 + state.other_holders
    worker = answers.worker_text(first)
    where = fill(' <span class="args">{}</span>', worker) if worker else EMPTY
    return fill("{}{}{}", task_link(first.task_id), where, f" and {others:,} more" if others else "")


def _holder_row(holder: LockHolder) -> tuple[object, ...]:
    def each(values: Iterable[object]) -> str:
        return " or ".join(map(str, values)) or "-"

    return (
        task_link(holder.task_id),
        _badge("dead" if holder.is_dead else holder.phase),
        each(worker.nodename for worker in holder.workers),
        each(worker.pid for worker in holder.workers),
        each(worker.host for worker in holder.workers),
        duration(holder.age),
        "-" if holder.renewed is None else f"{duration(holder.renewed)} ago",
        "expired" if holder.is_dead else duration(holder.remaining),
    )


def _line_row(task: WaitingTask) -> tuple[object, ...]:
    call = " ".join(filter(None, (task.task, task.args)))
    return (
        "aside" if task.is_aside else f"{task.place:,}",
        fill('{} <span class="args">{}</span>', task_link(task.task_id), call),
        duration(task.age),
        "; ".join(_facts_of(task)),
    )


def _drop_link(key: str, task: WaitingTask) -> Html:
    text = fill('Drop<span class="hidden"> {}</span>', task.task_id)
    return button("drop", text, key=escaped(key), id=task.task_id)


def _facts_of(task: WaitingTask) -> Iterator[str]:
    if task.over is not None:
        yield f"the newer task {task.over} has taken its place" if task.over else "its wait is over"
    elif task.is_aside:
        yield f"no worker accepts or publishes it, after {task.offers} offers"
    else:
        yield f"on the way to a worker, offer {task.offers}" if task.is_offered else "waits"
    if task.not_before is not None:
        yield f"not before {duration(task.not_before)} from now"
    if task.ends_in is not None and task.over is None:
        yield f"{'gives up' if task.gives_up else 'expires'} in {duration(task.ends_in)}"
    if task.deaths:
        yield f"workers that ran it have died: {task.deaths}"


def _badge(state: str) -> Html:
    return fill('<span class="badge {}">{}</span>', state, state)


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)
