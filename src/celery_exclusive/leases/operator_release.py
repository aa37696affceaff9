"""Releases keys for an operator: unheld ones at once, held ones only by force."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_exclusive import events, outcomes
from celery_exclusive.core.claim import task_id, worker_number
from celery_exclusive.core.operations import Applied, ForceRelease, Owner, Release
from celery_exclusive.core.records import SECOND
from celery_exclusive.errors import LockHeld, StoreError, UnreadableKey
from celery_exclusive.options.key_text import absolute_key, own_key, without_hash
from celery_exclusive.stores.base import states
from celery_exclusive.stores.workers import WorkerRecord
from celery_exclusive.system.operator import operator

if TYPE_CHECKING:
    from celery_exclusive.services import Services
    from celery_exclusive.stores.base import Store


@dataclass(frozen=True, slots=True)
class Released:
    """The former owners, and the ids that were offered the key.

    `forgotten`: the key's data were damaged, and were deleted with its waiting tasks.
    """

    former: tuple[Owner, ...] = ()
    offered: tuple[str, ...] = ()
    forgotten: bool = False


def release(services: Services, key: str, *, force: bool = False, reason: str = "", by: str = "") -> Released:
    """Release a key, and let its line go on. A repetition does no harm.

    A unique key whose task is queued or lost, or that is held for a period, needs no force: no body runs.
    Bodies that lose their lease by `force` continue; damaged data are deleted, with the waiting tasks. Each
    released lease is logged as a WARNING, and told to monitors as the event `lock-released`, with the reason
    and `by`, or else the user of this process. A message that cannot be published now is offered again by the
    workers.

    LockHeld, UnreadableKey: it needs force, and nothing was changed.
    """
    by, former = by or operator(), list[Owner]()
    try:
        return _release(services.store, key, former, force=force)
    except UnreadableKey:
        if not force:
            raise
        services.store.forget(key)
        outcomes.deleted_by_operator(key, by, reason)
        return Released(forgotten=True)
    finally:  # also of what was released before the store was lost
        if former:
            _record(services, key, former, force=force, by=by, reason=reason)


def queued_keys(store: Store, task_name: str | None) -> list[str]:
    """Return the queued unique keys of a task, for all its arguments. None: of all tasks.

    A `key=` with another text than the task's name may be shared with other tasks, and is left out.
    """
    if task_name is None:
        keys = set(store.scan("u"))
    else:
        own, shared = own_key(task_name, "u"), absolute_key(task_name, "u")
        keys = {shared, *(key for key in store.scan(own) if without_hash(key) == own)}
    return [key for key, snapshot in states(store, keys) if snapshot.state == "queued"]


def release_queued(services: Services, keys: Iterable[str], reason: str = "") -> int:
    """Release the keys of tasks that have not begun, and return their number. Running tasks keep theirs."""
    released = 0
    for key in keys:
        with suppress(LockHeld):
            released += bool(release(services, key, reason=reason).former)
    return released


def _release(store: Store, key: str, former: list[Owner], *, force: bool) -> Released:
    """Release the holders, by force also those that a look does not name, and add them to `former`.

    A newer one keeps its lease.
    """
    offered: list[str] = []
    began = time.monotonic()
    elapsed = 0
    while True:
        seen, count = store.inspect(key), len(former)
        holders = [holder for holder in seen.holders if holder.age >= elapsed]
        living = [holder for holder in holders if holder.phase == "running" and holder.remaining > 0]
        if not force and (living or seen.others):
            raise _held(key, living or holders, seen.others)
        # For an id without a lease the store only ends expired leases and offers.
        for holder in holders or (Owner("", 0, 0),):
            may_begin = not force and holder.phase != "running"
            # A lease that does not run belongs to its id; once its task has begun, to another token.
            end = Release(holder.id, "", "open") if may_begin else ForceRelease(holder.id)
            reply = store.apply(key, end)
            if may_begin and reply.answer == Applied(False):
                return _release(store, key, former, force=force)
            offered += [wake.id for wake in reply.wake]
            if reply.answer == Applied(True):
                former.append(holder)
        if not seen.others or len(former) == count:
            return Released(tuple(former), tuple(offered))
        elapsed = round((time.monotonic() - began) * SECOND)


def _record(
    services: Services, key: str, former: Sequence[Owner], *, force: bool, by: str, reason: str
) -> None:
    """Log each lease with the operator and the reason, and tell monitors."""
    workers = dict[int, list[WorkerRecord]]()
    if any(worker_number(owner.token) for owner in former):
        with suppress(StoreError):  # the leases are released
            workers = services.store.workers()
    tasks = {own_key(name): name for name in services.app.tasks}
    told = list[dict[str, object]]()
    for owner in former:
        worker = " or ".join(map(str, workers.get(worker_number(owner.token), ())))
        is_forced = force and owner.phase == "running"
        if is_forced:
            outcomes.forced(key, owner, worker, by, reason)
        else:
            outcomes.released_by_operator(key, owner, by, reason)
        name = tasks.get("x" + without_hash(key[1:]))
        told.append({
            "uuid": task_id(owner.id), "name": name, "lock": key, "forced": is_forced, "worker": worker,
            "by": by, "reason": reason,
        })  # fmt: skip
    events.send_all(services, by, "lock-released", told)


def _held(key: str, holders: Sequence[Owner], others: int) -> LockHeld:
    owner = holders[0]
    holder = task_id(owner.id)
    count = len(holders) - 1 + others
    more = f" and {count} more" if count else ""
    text = (
        f"lock {key} is held by {holder} for {owner.age / SECOND:.1f}s{more}, and was not released. It is "
        f"released when the holder ends; if its process is dead, in {owner.remaining / SECOND:.1f}s. "
        "force=True, or --force with --reason, releases it now: a body that still runs may then run beside "
        "the next one"
    )
    return LockHeld(text, key, holder)
