"""Ends the calls that have the keys of a call, and publishes it in their place."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from celery_exclusive.core.claim import FINISHED, STARTED, task_id
from celery_exclusive.core.endings import retry_ended
from celery_exclusive.core.records import NOT_BEGUN
from celery_exclusive.display import printable
from celery_exclusive.errors import ExclusiveError, OptionError
from celery_exclusive.messages.namespace import living_workers
from celery_exclusive.operate.consumers import has_broadcast
from celery_exclusive.operate.dropping import Dropper, cancel, find
from celery_exclusive.run import runs
from celery_exclusive.task import Restart

if TYPE_CHECKING:
    from celery_exclusive.core.operations import Owner
    from celery_exclusive.services import Services

REASON: Final = "restarted: a newer call takes its place"
_ANSWER: Final = 3.0
"""Seconds in which the next worker has to answer."""
_ANY_ANSWER: Final = 1.0
"""The same where the store does not say how many workers there are."""
_PAUSE: Final = 0.1
"""Seconds between two looks at the keys."""


def restart(
    task: Any, keys: Sequence[str], call: tuple[Any, Any, Mapping[str, Any] | None], wait: float
) -> Restart:
    """Revoke the calls with these keys, wait for the end of bodies, and publish this call.

    Tasks in line leave it first: the end of the holder would let the next one begin.
    """
    services: Services = task.app._celery_exclusive
    until = time.monotonic() + wait
    args, kwargs, headers = call
    if task.app.conf.task_always_eager:
        return Restart(task.apply_async(args, kwargs, headers=headers))
    keys = _keys_of_one_run(services, task, keys)
    bodies = {run.task_id for run in runs() if not run.body_over}
    if not bodies.isdisjoint(task_id(owner.id) for _, owner in _owners(services, keys)):
        raise ExclusiveError(f"task {task.name} cannot restart itself: raise self.retry() in its body")
    revoked = _end_waiting(services, keys)
    owners = _owners(services, keys)
    ids = {task_id(owner.id) for _, owner in owners}
    answers, silent = _revoke(services, ids) if ids else ({}, set[str]())
    for key, owner in owners:
        if answers and not silent and owner.phase in NOT_BEGUN:
            for operation in retry_ended(owner.id, done=True):
                services.store.apply(key, operation)
    while left := [(key, owner) for key, owner in _owners(services, keys) if task_id(owner.id) in ids]:
        if time.monotonic() > until or not any(owner.phase == "running" for _, owner in left):
            break
        time.sleep(_PAUSE)
    not_ended = {task_id(owner.id) for _, owner in left}
    exclusive = services.exclusive(task)
    cannot_wait = exclusive is None or exclusive.on_conflict in ("skip", "raise")
    is_refused = bool(left) and (cannot_wait or any(key[:1] == "u" for key, _ in left))
    return Restart(
        None if is_refused else task.apply_async(args, kwargs, headers=headers),
        tuple(sorted(revoked | (ids - not_ended))),
        tuple(sorted(not_ended)),
        _problem(answers, silent) if left else "",
    )


def _keys_of_one_run(services: Services, task: Any, keys: Sequence[str]) -> Sequence[str]:
    """Return those keys of a call that no other call's run may have."""
    exclusive, unique = services.exclusive(task), services.unique(task)
    is_whole_run = unique is not None and unique.held_until == FINISHED
    if is_whole_run:
        keys, exclusive = keys[-1:], None
    why = ""
    if not (is_whole_run or (exclusive and (unique is None or unique.held_until == STARTED))):
        why = "it needs unique=Unique(...) until 'finished', or exclusive= without a period or Debounce"
    elif any(option and option.key is not None for option in (exclusive, unique)):
        why = "tasks may share a key=. Revoke its tasks by their ids"
    elif exclusive and (exclusive.most != 1 or exclusive.per is not None):
        why = "limit= and per= let several calls have its key. Revoke its tasks by their ids"
    if why:
        raise OptionError(f"task {task.name} cannot be restarted: {why}")
    return keys


def _owners(services: Services, keys: Sequence[str]) -> list[tuple[str, Owner]]:
    seen = zip(keys, services.store.inspect_all(keys), strict=True)
    return [(key, owner) for key, snapshot in seen for owner in snapshot.holders]


def _end_waiting(services: Services, keys: Sequence[str]) -> set[str]:
    """End the tasks in the lines of these keys, and those that hold one in the line of another key."""
    dropper = Dropper(services, reason=REASON, is_patient=True)
    for key, places in find(services.store, keys, lambda *_: True):
        dropper.drop(key, places)
    ended = set(map(task_id, dropper.ended))
    queued = {task_id(owner.id) for _, owner in _owners(services, keys) if owner.phase in NOT_BEGUN}
    return ended | {id for id in queued if cancel(services, id, REASON)}


def _revoke(services: Services, ids: set[str]) -> tuple[dict[str, Any], set[str]]:
    """Revoke these tasks and terminate their bodies. Return the answers of workers, and the silent ones.

    One of the silent ones may have a queued task, and begin it.
    """
    if not has_broadcast(services.app):
        return {}, set()
    names = {worker.nodename for worker in living_workers(services)}
    patience, limit = (_ANSWER, len(names)) if names else (_ANY_ANSWER, None)
    answers = services.app.control.revoke([*ids], terminate=True, reply=True, timeout=patience, limit=limit)
    told = {worker: said for answer in answers or () for worker, said in answer.items()}
    return told, names - {*told}


def _problem(answers: Mapping[str, Any], silent: Collection[str]) -> str:
    """Return why a task that was revoked has its key still."""
    for worker, said in answers.items():
        if "error" in said:
            return printable(f"{worker} can only ask, since its pool cannot terminate it: {said['error']}")
    if answers and silent:
        return printable(f"{', '.join(sorted(silent))} has not answered")
    return "it was told to terminate" if answers else "no worker has answered"
