"""Answers why a task does not run, and why a key does not go on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from celery_exclusive.core.claim import task_id
from celery_exclusive.display import escaped, printable
from celery_exclusive.errors import OptionError, StoreUnavailable, UnreadableKey, did_you_mean
from celery_exclusive.operate import answers
from celery_exclusive.operate.answers import Answer
from celery_exclusive.operate.finding import busy_key, damaged_keys, key_of_name, keys_of_id
from celery_exclusive.operate.results import result_of
from celery_exclusive.operate.states import KeyState, key_state, key_states, waiting_task
from celery_exclusive.options.key_text import own_key
from celery_exclusive.stores.base import whole_line
from celery_exclusive.task import WaitingTask, keys_of_call

if TYPE_CHECKING:
    from celery_exclusive.options.option import Option
    from celery_exclusive.services import Services


def why(services: Services, subject: str) -> Answer:
    """Answer why a task does not run, or a key does not go on.

    Parameters:
        subject: the id of a task, or a key as `locks release` takes it: as it is listed, the name of a task,
            or the string of a `key=` or a `lock()`.

    Raises:
        OptionError: the subject may mean several keys.
        UnreadableKey: the data of the key are damaged.

    If the store does not answer, the reason is "store_down".
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

    Raises:
        OptionError: there is no such task, it has no options, or the arguments cannot be a key.
        TypeError: the arguments do not fit.
        UnreadableKey: the data of a key are damaged.
    """
    tasks = services.app.tasks
    if name not in tasks:
        raise OptionError(f"there is no task {name!r}{did_you_mean(name, tasks)}")
    keys = keys_of_call(tasks[name], "why", tuple(args), dict(kwargs or {}), headers)
    try:
        seen = {state.key: state for state in key_states(services, keys)}
    except StoreUnavailable as error:
        return answers.of_outage(error)
    states = [_undamaged(services, seen[key]) for key in keys]
    busy = [state for state in states if state.state != "free"]
    return answers.of_key((busy or states)[0])


def why_words(
    services: Services, name: str, words: Sequence[str], headers: Mapping[str, Any] | None = None
) -> Answer:
    """Answer for a call whose arguments are words: each a value of JSON, or else a string.

    NAME=VALUE gives an argument its name. The errors are as of `why_call`.
    """
    given = [_argument(word) for word in words]
    named = {name: value for name, value in given if name}
    return why_call(services, name, [value for name, value in given if not name], named, headers)


def _argument(word: str) -> tuple[str, Any]:
    """Return the name of an argument, "" without one, and its value."""
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
    store = services.store
    if key := busy_key(store, subject):
        return _of_key(services, key)
    if option := _option(services, subject):
        return _of_name(services, subject, option)
    known = list(_of_task(services, subject))
    real = [answer for answer in known if answer.reason != "duplicate"]
    if real:
        return min(real, key=_rank)
    if result := result_of(services, subject):
        return answers.of_result(subject, result)
    if known:
        return known[0]
    key = key_of_name(store, subject)
    return _of_key(services, key) if key else _not_known(services, subject)


def _option(services: Services, name: str) -> Option | None:
    """Return the option of this task that makes its key; None: this app has no such task with options."""
    task = services.app.tasks.get(name)
    return (services.exclusive(task) or services.unique(task)) if task else None


def _of_name(services: Services, name: str, option: Option) -> Answer:
    """Answer for a task with options whose name is no busy key."""
    if key := key_of_name(services.store, name):
        return _of_key(services, key)
    if option.key is not None or not services.store.capabilities.listing:
        raise OptionError(
            f"the keys of task {name!r} do not follow from its name: give the arguments of a call"
        )
    return answers.of_key(KeyState(own_key(name, option.kind), name))


def _of_key(services: Services, key: str) -> Answer:
    return answers.of_key(_undamaged(services, key_state(services, key)))


def _undamaged(services: Services, state: KeyState) -> KeyState:
    if state.problem:
        raise UnreadableKey(state.key, state.problem, services.store.url)
    return state


def _of_task(services: Services, id: str) -> Iterator[Answer]:
    """Yield an answer for each key that a task holds or waits for."""
    store = services.store
    keys = keys_of_id(store, id) if store.capabilities.listing else []
    for state in key_states(services, keys):
        holder = next((holder for holder in state.holders if holder.task_id == id), None)
        if holder:
            yield answers.of_holder(state, holder)
        elif waiting := _place(services, state.key, id):
            yield answers.of_waiting(state, waiting)


def _place(services: Services, key: str, id: str) -> WaitingTask | None:
    for number, place in enumerate(whole_line(services.store, key), 1):
        if task_id(place.waiting.id) == id:
            return waiting_task(services, key, place, number)
    return None


def _rank(answer: Answer) -> tuple[int, bool]:
    """A task that waits for its lock holds its unique key meanwhile: what it waits for goes first."""
    holder = answer.holder
    order = 1 if holder is None else 2 if holder.is_queued or holder.is_dead else 0
    return order, answer.key is not None and not answer.key.key.startswith("x")


def _not_known(services: Services, subject: str) -> Answer:
    store, conf = services.store, services.app.conf
    where = f"{printable(store.url)} (exclusive_prefix {printable(services.settings.exclusive_prefix)})"
    result = "its result backend has no result of it" if conf.result_backend else "it has no result backend"
    listing = "" if store.capabilities.listing else ", which cannot list its keys: name the key instead"
    hint = did_you_mean(subject, services.app.tasks)
    damaged = damaged_keys(store) if store.capabilities.listing else []
    unread = f". Lock {escaped(damaged[0])} has damaged data, which may name this task" if damaged else ""
    text = (
        f"NOT KNOWN here: {printable(subject)} neither holds nor waits for a key in {where}{listing}, and "
        f"{result}{hint if hint != '.' else ''}{unread}. Its message may be in a queue: a store "
        "learns of most calls when a worker receives them. Or its worker has died, and it had acknowledged "
        "early. Or its task has no options, other processes use another store or exclusive_prefix, or it has "
        "ended or was dropped, and its result has expired or was ignored"
    )
    words = ("locks", "why", damaged[0]) if damaged else ("inspect", "query_task", subject)
    return Answer("not_ours", text, answers.command(*words), is_trouble=True)
