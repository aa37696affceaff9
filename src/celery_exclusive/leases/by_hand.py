"""Give a lock back by hand: one that nobody holds at once, one that somebody holds only by force."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_exclusive import notices
from celery_exclusive.core.document import SECOND
from celery_exclusive.core.operations import Break, Done, Owner
from celery_exclusive.errors import LockHeld, UnreadableKey

if TYPE_CHECKING:
    from celery_exclusive.services import Services
    from celery_exclusive.stores.base import Store


@dataclass(frozen=True, slots=True)
class Released:
    """What became of a lock: from whom it was taken, and the ids to which its place is offered now.

    It was `forgotten`, with all who waited for it, if what the store kept of it could not be read.
    """

    broken: tuple[Owner, ...] = ()
    offered: tuple[str, ...] = ()
    forgotten: bool = False


def release(services: Services, key: str, *, force: bool = False) -> Released:
    """Take a key from those who hold it now, and let its line go on. Repeating it does no harm.

    The unique key of a message that waits, or is lost, or of a period, needs no force: no body is in danger.

    Parameters:
        key: the whole key, as the store has it.
        force: take it even from holders whose leases live. Their bodies go on. A key that cannot be read is
            dropped, with whoever waits there.

    Raises:
        LockHeld: somebody holds the key, and there is no `force`. Nothing was changed.
        StoreUnavailable: the store does not answer.
        UnreadableKey: what it keeps of this key is damaged, and there is no `force`.

    A message that cannot be published now is offered again by the workers, as always.
    """
    try:
        return _release(services.store, key, force=force)
    except UnreadableKey:
        if not force:
            raise
        services.store.forget(key)
        return Released(forgotten=True)


def _release(store: Store, key: str, *, force: bool) -> Released:
    holders = store.inspect(key).holders
    if not force and any(holder.phase == "running" for holder in holders):
        raise _held(key, holders)
    broken, offered = [], []
    # Under an id that holds nothing the store only looks at the clock.
    for holder in holders or (Owner("", 0, 0),):
        reply = store.apply(key, Break(holder.id))
        offered += [wake.id for wake in reply.wake]
        if reply.answer == Done(True):
            broken.append(holder)
    return Released(tuple(broken), tuple(offered))


def _held(key: str, holders: Sequence[Owner]) -> LockHeld:
    owner = holders[0]
    holder = notices.task_id(owner.id)
    more = f" and {len(holders) - 1} more" if len(holders) > 1 else ""
    text = (
        f"lock {key} is held by {holder} for {owner.age / SECOND:.1f}s{more}, and was not released. It is "
        f"released when the holder ends; if its process is dead, in {owner.remaining / SECOND:.1f}s. "
        "force=True or --force releases it now: a body that still runs may then run beside the next one"
    )
    return LockHeld(text, key, holder)
