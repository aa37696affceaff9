"""The keeper of leases in a store, which renews them, and restores leases that are lost with its data."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from celery_exclusive.core.claim import Claim
from celery_exclusive.core.operations import Applied
from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.system.deadline import deadline

if TYPE_CHECKING:
    from celery_exclusive.stores.base import Store

_SHORTEST_LOOK = 0.5
"""The least seconds for which a beat waits for the epoch, also with shorter leases."""


@dataclass(frozen=True, slots=True)
class Known:
    """The epoch of a store. All leases that the process held at the instant `at` were valid; 0: not all."""

    epoch: str
    at: float


class Kept(Protocol):
    _claim: Claim

    @property
    def is_over(self) -> bool:
        """Whether the lease is released, lost, or not granted yet, so that it must not be restored."""
        ...

    def renewed(self, asked: float, *, anew: bool = False) -> None:
        """Note that the lease was valid at the time of the request, or was granted anew then."""

    def end(self) -> None:
        """Note that the lease is lost."""


@dataclass(slots=True)
class Beat:
    """The result of a beat: the leases that it restored in a store without its data, and locked keys."""

    has_lost_data: bool = False
    restored: list[Kept] = field(default_factory=list)
    locked: list[str] = field(default_factory=list)


class Keeper:
    """Keeps leases of one store. It reads the store's epoch, so make it before the first lease is granted."""

    def __init__(self, store: Store) -> None:
        self.store = store
        now = time.monotonic()
        self.known = Known(store.epoch(), now)

    def beat(self, leases: Sequence[Kept], period: float) -> Beat:
        """Renew these leases, or restore them if the store has lost its data. `period`: to the next beat."""
        now = time.monotonic()
        answers = list(zip(leases, renew(self.store, leases), strict=True))
        # A store may take longer: a cluster asks all of its nodes, and one of them may be silent.
        with deadline(max(period, _SHORTEST_LOOK)):
            epoch = self.store.epoch()
        beat = Beat(epoch != self.known.epoch)
        beat.locked = [lease._claim.key for lease, lives in answers if lives is None]
        if beat.has_lost_data:  # maybe after it has renewed them
            beat.restored = [lease for lease in leases if restore(self.store, lease)]
        else:
            for lease, lives in answers:
                if lives is False:
                    lease.end()
        self.known = Known(epoch, 0 if beat.locked else now)
        return beat


def renew(store: Store, leases: Sequence[Kept]) -> Sequence[bool | None]:
    """Renew leases in one call; return for each whether it is held. None: another client locks its key."""
    if not leases:
        return ()
    asked = time.monotonic()
    answers = store.renew([(lease._claim.key, lease._claim.renew()) for lease in leases])
    for lease, lives in zip(leases, answers, strict=True):
        if lives:
            lease.renewed(asked)
    return answers


def restore(store: Store, lease: Kept) -> bool:
    """Restore a lease in a store that has lost its data, unless the key has another owner; return whether."""
    if lease.is_over:
        return False
    asked, claim = time.monotonic(), lease._claim
    lives = store.apply(claim.key, claim.restore()).answer == Applied(True)
    if lives:
        lease.renewed(asked, anew=True)
    if lease.is_over:  # the lease was released meanwhile, maybe before it was restored
        store.apply(claim.key, claim.release("open"))
    return lives


def locked_out(store: Store, keys: Iterable[str]) -> StoreUnavailable:
    """Return the error of leases that could not be renewed, since others keep their keys locked."""
    return StoreUnavailable(
        f"store {store.url}: the leases on {', '.join(keys)} could not be renewed, since others keep their "
        "rows locked: look for a client that is stopped in a transaction"
    )
