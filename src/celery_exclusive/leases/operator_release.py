"""Releases keys for an operator: unheld ones at once, held ones only by force."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_exclusive import outcomes
from celery_exclusive.core.claim import task_id
from celery_exclusive.core.operations import Applied, ForceRelease, Owner, Release
from celery_exclusive.core.records import SECOND
from celery_exclusive.errors import LockHeld, UnreadableKey
from celery_exclusive.options.key_text import absolute_key, own_key, without_hash
from celery_exclusive.stores.base import states

if TYPE_CHECKING:
    from celery_exclusive.services import Services
    from celery_exclusive.stores.base import Store


@dataclass(frozen=True, slots=True)
class Released:
    """The result of a release by an operator: the former owners, and the ids that were offered the key.

    `forgotten`: the data of the key were damaged, and were deleted with its waiting tasks.
    """

    former: tuple[Owner, ...] = ()
    offered: tuple[str, ...] = ()
    forgotten: bool = False


def release(services: Services, key: str, *, force: bool = False) -> Released:
    """Release a key, and let its line go on. A repetition does no harm.

    A unique key whose task is queued or lost, or that is held for a period, needs no force: no body runs.

    Parameters:
        key: the whole key, as the store keeps it.
        force: release it even if its leases have not expired. Their bodies continue. The data of a damaged
            key are deleted, with its waiting tasks.

    Raises:
        LockHeld: a running task holds the key, and `force` is not set. Nothing was changed.
        StoreUnavailable: the store does not answer.
        UnreadableKey: the data of this key are damaged, and `force` is not set.

    A stored message that cannot be published now is offered again by the workers.
    """
    try:
        return _release(services.store, key, force=force)
    except UnreadableKey:
        if not force:
            raise
        services.store.forget(key)
        return Released(forgotten=True)


def queued_keys(store: Store, task_name: str) -> list[str]:
    """Return the queued unique keys of a task, for all its arguments.

    A `key=` with another text than the task's name may be shared with other tasks, and is left out.

    Raises:
        ExclusiveError: the store cannot list its keys, or does not answer.
    """
    own, shared = own_key(task_name, "u"), absolute_key(task_name, "u")
    keys = {shared, *(key for key in store.scan(own) if without_hash(key) == own)}
    return [key for key, snapshot in states(store, keys) if snapshot.state == "queued"]


def release_queued(services: Services, keys: Iterable[str]) -> int:
    """Release the keys of tasks that have not begun, and return their number. Running tasks keep theirs."""
    released = 0
    for key in keys:
        with suppress(LockHeld):
            released += bool(release(services, key).former)
    return released


def _release(store: Store, key: str, *, force: bool) -> Released:
    """Release the holders of a key, by force also the ones that a look does not name, but no newer one."""
    former: list[Owner] = []
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
                return _release(store, key, force=force)
            offered += [wake.id for wake in reply.wake]
            if reply.answer == Applied(True):
                former.append(holder)
                if force and holder.phase == "running":
                    outcomes.forced(key, holder)
        if not seen.others or len(former) == count:
            return Released(tuple(former), tuple(offered))
        elapsed = round((time.monotonic() - began) * SECOND)


def _held(key: str, holders: Sequence[Owner], others: int) -> LockHeld:
    owner = holders[0]
    holder = task_id(owner.id)
    count = len(holders) - 1 + others
    more = f" and {count} more" if count else ""
    text = (
        f"lock {key} is held by {holder} for {owner.age / SECOND:.1f}s{more}, and was not released. It is "
        f"released when the holder ends; if its process is dead, in {owner.remaining / SECOND:.1f}s. "
        "force=True or --force releases it now: a body that still runs may then run beside the next one"
    )
    return LockHeld(text, key, holder)
