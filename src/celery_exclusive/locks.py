"""Answers about the locks of an app, for pages and commands of one's own: what holds, what waits, and why.

Example:
    from celery_exclusive import locks

    print(locks.why(result.id).sentence)
    for key in locks.keys():
        print(key.key, key.state, key.waiting)

They are the answers of `celery -A proj locks`, as frozen objects with times in seconds. A look changes
nothing; `cancel` ends a task that waits. Keys, ids, names and arguments are strings of other programs:
escape them where you show them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from celery_exclusive.errors import OptionError, shown
from celery_exclusive.operate import dropping as _dropping
from celery_exclusive.operate import why as _why
from celery_exclusive.operate.answers import Answer
from celery_exclusive.operate.finding import keys_that_begin
from celery_exclusive.operate.results import TaskResult
from celery_exclusive.operate.states import KeyState, is_key_of, key_states, whole_line_of
from celery_exclusive.services import services_of
from celery_exclusive.task import LockHolder, WaitingTask, keys_of_call

__all__ = [
    "Answer",
    "KeyState",
    "LockHolder",
    "TaskResult",
    "WaitingTask",
    "cancel",
    "keys",
    "waiting",
    "why",
]


def why(id_or_key: str, *, app: Any = None) -> Answer:
    """Answer why a task does not run, or why a key does not go on.

    It takes a request for each hundred keys, and for each 250 tasks ahead of the task in its line. About a
    task that no worker has begun it also asks the result backend and, for a second, the workers.

    Example:
        answer = locks.why("5d1f09aa-1c0e-4f0a-9f8e-1f6a1f2f7a10")
        if answer.reason == "in_line":
            print(answer.waiting.place, "of", answer.key.waiting)

    Parameters:
        id_or_key: the id of a task, a key as `locks ls` lists it, the name of a task, or the string of a
            `key=` or a `lock()`.
        app: the Celery app whose store to ask. Default: the only app with `install`, or the current app.

    Raises:
        OptionError: it may mean several keys, or the app has no locks.
        UnreadableKey: the data of the key are damaged.

    If the store does not answer, that is the answer: its reason is "store_down".
    """
    return _why.why(services_of(app, "locks.why()"), id_or_key)


def waiting(
    task: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    headers: Mapping[str, Any] | None = None,
) -> Iterator[WaitingTask]:
    """Return the tasks that wait for the lock, or the unique key, of a call: in line, and then aside.

    One page of 250 is in memory. A task that moves meanwhile may come twice.

    Example:
        for one in locks.waiting(import_feed, [url]):
            print(one.place, one.task_id, one.args)

    Parameters:
        task: a task with options.
        args, kwargs: the arguments of the call, as `apply_async` takes them.
        headers: the headers of its message, if keys are made of headers, too.

    Raises:
        OptionError: the task has neither exclusive= nor unique=, or the arguments cannot be a key.
        TypeError: they do not fit.
        StoreUnavailable: the store does not answer.
        UnreadableKey: the data of the key are damaged.
    """
    services = services_of(task.app, "locks.waiting()")
    if isinstance(args, str):
        raise OptionError(f"locks.waiting() takes a list of arguments: write [{args!r}]")
    of_call = keys_of_call(task, "waiting", tuple(args), dict(kwargs or {}), headers)
    return (one for key in of_call for one in whole_line_of(services, key))


def keys(prefix: str = "", *, task: str | None = None, app: Any = None) -> Iterator[KeyState]:
    """Return the keys that have a holder or waiting tasks, in order.

    A hundred keys take two requests, and are all that is in memory, besides their names.

    Example:
        longest = max(locks.keys(task="feeds.import_feed"), key=lambda key: key.waiting, default=None)

    Parameters:
        prefix: only keys that begin with it: a key as it is listed, the name of a task, or a string.
        task: only keys of the task with this name, without strings that tasks share.
        app: as for `why`.

    Raises:
        ExclusiveError: the store cannot list its keys.
        OptionError: the app has no locks.
        StoreUnavailable: the store does not answer.
    """
    services = services_of(app, "locks.keys()")
    found = keys_that_begin(services.store, prefix)
    chosen = [key for key in found if task is None or is_key_of(task, key)]
    return (state for state in key_states(services, chosen) if state.state != "free")


def cancel(id: str, *, reason: str = "cancelled", app: Any = None) -> bool:
    """Take a task that waits out of its line, and end it as REVOKED, whether or not workers run.

    Its place and its unique key are free, `.get()` raises TaskRevokedError, and its chord completes as with
    any revoked member. No copy of its message begins.

    Example:
        if not locks.cancel(result.id, reason="the feed was deleted"):
            result.revoke()  # it is in a queue, runs, or has ended

    Parameters:
        id: the id of the task.
        reason: the text of the TaskRevokedError.
        app: as for `why`.

    Returns:
        Whether it waited. A running task is not touched, and `result.revoke(terminate=True)` ends it.

    Raises:
        OptionError: `id` is no string, or the app has no locks.
        StoreUnavailable: the store does not answer.
        Exception: the result backend does not answer. The task waits still, unless the backend has stopped
            answering within this call: then no result says that the task has left its line.

    It lists all waiting tasks, and reads the line of this one. For many tasks use `celery -A proj locks
    drop`, which saves their messages.
    """
    if not isinstance(id, str):
        raise OptionError(f"locks.cancel(): id={shown(id)} is no string: give the id of a task, as result.id")
    return _dropping.cancel(services_of(app, "locks.cancel()"), id, reason)
