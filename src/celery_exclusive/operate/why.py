"""Answers why a task does not run, and why a key does not go on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery_exclusive.brokers import is_in_one_process
from celery_exclusive.core.claim import LAST_CHANCE, task_id
from celery_exclusive.display import escaped, printable
from celery_exclusive.errors import OptionError, StoreUnavailable, UnreadableKey, closest, did_you_mean
from celery_exclusive.messages.namespace import living_workers
from celery_exclusive.operate import answers
from celery_exclusive.operate.answers import Answer
from celery_exclusive.operate.consumers import ask_consumers, queue_of
from celery_exclusive.operate.finding import busy_key, damaged_keys, key_of_name, keys_of_id
from celery_exclusive.operate.patience import NoAnswer
from celery_exclusive.operate.results import result_of
from celery_exclusive.operate.states import (
    KeyState,
    holder_of,
    key_state,
    key_states,
    part_state,
    tasks_with_options,
    waiting_task,
)
from celery_exclusive.options.key_text import absolute_key, own_key
from celery_exclusive.stores.base import whole_line
from celery_exclusive.task import LockHolder, WaitingTask, keys_of_call

if TYPE_CHECKING:
    from celery_exclusive.options.option import Option
    from celery_exclusive.reasons import Reason
    from celery_exclusive.services import Services
    from celery_exclusive.stores.base import Place


def why(services: Services, subject: str) -> Answer:
    """Answer why a task does not run, or a key does not go on. A store that is silent is "store_down".

    `subject`: the id of a task, or a key as `locks release` takes it.
    """
    try:
        return _answer(services, subject)
    except StoreUnavailable as error:
        return answers.of_outage(error)


def why_call(
    services: Services,
    name: str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    headers: Mapping[str, Any] | None = None,
) -> Answer:
    """Answer what holds the keys of a call of this task, the lock before the unique key.

    OptionError: it has no options, or its arguments cannot be a key. TypeError: they do not fit.
    """
    tasks = services.app.tasks
    if name not in tasks:
        raise OptionError(f"there is no task {name!r}{did_you_mean(name, tasks)}")
    keys = keys_of_call(tasks[name], "why", tuple(args), dict(kwargs or {}), headers)
    try:
        seen = {state.key: state for state in key_states(services, keys, asks_for_parts=True)}
        states = [_undamaged(services, seen[key]) for key in keys]
        busy = [state for state in states if state.state != "free"]
        return _of_state(services, (busy or states)[0])
    except StoreUnavailable as error:
        return answers.of_outage(error)


def why_words(
    services: Services, name: str, words: Sequence[str], headers: Mapping[str, Any] | None = None
) -> Answer:
    """Answer for a call whose words are values of JSON, or else strings. NAME=VALUE names an argument."""
    given = [_argument(word) for word in words]
    named = {name: value for name, value in given if name}
    return why_call(services, name, [value for name, value in given if not name], named, headers)


def _argument(word: str) -> tuple[str, Any]:
    try:
        return "", json.loads(word)
    except ValueError:
        name, equals, value = word.partition("=")
    if not (equals and name.isidentifier()):
        return "", word
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _answer(services: Services, subject: str) -> Answer:
    if key := busy_key(services.store, subject):
        return _of_state(services, key_state(services, key))
    if option := _option(services, subject):
        return _of_name(services, subject, option)
    return _of_id(services, subject)


def _of_id(services: Services, subject: str) -> Answer:
    """Answer for the id of a task, or else for a task of which this app knows only keys."""
    known = min(_of_task(services, subject), key=_rank, default=None)
    if known and known.reason != "duplicate":
        return _compared(services, known, known.waiting or known.holder)
    silence = None
    try:
        if result := result_of(services, subject):
            return answers.of_result(subject, result)
    except NoAnswer as error:
        silence = error
    if known:
        return answers.with_silence(known, silence) if silence else known
    if key := key_of_name(services.store, subject):
        return _of_state(services, key_state(services, key))
    if silence is None and (key := _shared_key(services, subject)):
        return _of_state(services, KeyState(key))
    return _not_known(services, subject, silence)


def _shared_key(services: Services, text: str) -> str | None:
    """Return the key that tasks share if the text is one, or the `key=` of a task of this app."""
    if text[:2] in ("x=", "u="):
        return text
    found = (_option(services, name) for name in services.app.tasks)
    return next((absolute_key(text, option.kind) for option in found if option and option.key == text), None)


def _option(services: Services, name: str) -> Option | None:
    """Return the option of this task that makes its key; None: this app has no such task with options."""
    task = services.app.tasks.get(name)
    return (services.exclusive(task) or services.unique(task)) if task else None


def _of_name(services: Services, name: str, option: Option) -> Answer:
    """Answer for a task with options whose name is no busy key."""
    if key := key_of_name(services.store, name):
        return _of_state(services, key_state(services, key))
    if option.key is not None or not services.store.capabilities.listing:
        raise OptionError(
            f"the keys of task {name!r} do not follow from its name: give the arguments of a call"
        )
    return _of_state(services, KeyState(own_key(name, option.kind), name))


def _of_state(services: Services, state: KeyState) -> Answer:
    """Answer for a key. What it waits for is its first holder or, without one, the first in its line."""
    answer = answers.of_key(_undamaged(services, state))
    first = state.holders[0] if state.holders else next(iter(state.line), None)
    return _compared(services, answer, first)


def _compared(services: Services, answer: Answer, task: LockHolder | WaitingTask | None) -> Answer:
    """Return an answer of the store, or a newer one of the result backend and the workers.

    Only the lease of a run is renewed, and a period ends by the clock. All else the store learned when the
    task came, and it may not hear what becomes of its message.
    """
    if isinstance(task, LockHolder) and (task.is_renewed or task.phase == "period"):
        return answer
    try:
        if task and (result := result_of(services, task.task_id)) and result.is_newer(task.age):
            return answers.with_result(answer, task.task_id, result)
        return _with_queue(services, answer)
    except NoAnswer as silence:
        return answers.with_silence(answer, silence)


def _with_queue(services: Services, answer: Answer) -> Answer:
    """Return the answer, and whether no worker consumes the queue of a message that no worker has begun."""
    key = answer.key
    is_in_queue = answer.reason in ("queued", "offered") or bool(key and not key.holders)
    is_in_queue &= not (answer.waiting and answer.waiting.is_shut)
    if key is None or answer.is_trouble or not is_in_queue or is_in_one_process(services.app.conf):
        return answer
    consumers = ask_consumers(services)
    usual = queue_of(services.app, services.app.tasks[key.task]) if key.task else None
    queue = key.queue or usual or ""
    if consumers is None or consumers.may_take(queue):
        return answer
    if not consumers.queues and living_workers(services):
        return answers.with_silent_workers(answer)
    return answers.with_queue(
        answer, queue, has_workers=bool(consumers.queues), is_usual=bool(usual and not key.queue)
    )


def _undamaged(services: Services, state: KeyState) -> KeyState:
    if state.problem:
        raise UnreadableKey(state.key, state.problem, services.store.url)
    return state


def _of_task(services: Services, id: str) -> Iterator[Answer]:
    store = services.store
    keys = keys_of_id(store, id) if store.capabilities.listing else []
    for state in key_states(services, keys, asks_for_parts=True):
        if holder := holder_of(services, state, id):
            yield answers.of_holder(state, holder)
        else:
            yield from _of_place(services, state, id)


def _of_place(services: Services, state: KeyState, id: str) -> Iterator[Answer]:
    parts = Counter[str]()
    for number, place in enumerate(whole_line(services.store, state.key), 1):
        parts[place.waiting.part] += not place.waiting.is_aside
        if task_id(place.waiting.id) == id:
            task = waiting_task(services, state.key, place, number)
            is_signed, part = _is_signed(services, state.key, place), part_state(services, state, task.part)
            in_part = parts[task.part]
            yield answers.of_waiting(state, task, is_signed=is_signed, in_part=in_part, part=part)
            return


def _is_signed(services: Services, key: str, place: Place) -> bool:
    """Whether a process with these secrets may publish a message. Without one this process cannot say."""
    with suppress(LookupError):
        return services.signer.open_parked(place.message, key, place.waiting.id) is not None
    return True


def _rank(answer: Answer) -> tuple[int, bool, bool, bool]:
    """Return the order of what the store knows of one task, which may have a lock and a unique key.

    It runs, perhaps as the only one that has its last chance; it waits, and holds its unique key meanwhile,
    or is aside at its lock while it waits for its last chance; it is queued, or its run is dead; its period
    lasts.
    """
    holder = answer.holder
    if holder is None:
        order = 1
    elif holder.phase == "period":
        order = 3
    else:
        order = 0 if holder.is_renewed else 2
    key = answer.key.key if answer.key else ""
    has_last_chance, is_unique = holder is not None and key == LAST_CHANCE, key[:1] not in ("x", "")
    return order, has_last_chance, is_unique, answer.reason == "aside"


def _not_known(services: Services, subject: str, silence: NoAnswer | None = None) -> Answer:
    store, conf = services.store, services.app.conf
    reason: Reason = "backend_down" if silence else "not_ours"
    where = f"{printable(store.url)} (exclusive_prefix {printable(services.settings.exclusive_prefix)})"
    result = "its result backend has no result of it" if conf.result_backend else "it has no result backend"
    if silence:
        result = f"{silence}: it may have ended"
    listing = "" if store.capabilities.listing else ", which cannot list its keys: name the key instead"
    close = closest(subject, [task.name for task in tasks_with_options(services) if task.name != subject])
    other = f"there is no task {subject!r}: did you mean {close!r}? As an id, " if close else ""
    damaged = damaged_keys(store) if store.capabilities.listing else []
    unread = f". Lock {escaped(damaged[0])} has damaged data, which may name this task" if damaged else ""
    word = "BACKEND DOWN" if silence else "NOT KNOWN here"
    text = (
        f"{word}: {printable(other)}{printable(subject)} neither holds nor waits for a key in "
        f"{where}{listing}, and {result}{unread}. Its message may be in a queue: a store "
        "learns of most calls when a worker receives them. Or its worker has died, and it had acknowledged "
        "early. Or its task has no options, other processes use another store or exclusive_prefix, or it has "
        "ended or was dropped, and its result has expired or was ignored"
    )
    words = ("inspect", "query_task", subject)
    if damaged or close:
        words = ("locks", "why", damaged[0] if damaged else str(close))
    step = answers.EXAMINE if silence else answers.command(*words)
    return Answer(reason, text, step, is_trouble=True)
