"""The lease: one holder's right to a key, as the holder sees it, and what keeps it where no worker does."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from celery_exclusive.core.document import SECOND
from celery_exclusive.core.operations import Done, Release, Renew, Restore
from celery_exclusive.errors import LeaseLost, StoreUnavailable

if TYPE_CHECKING:
    from celery_exclusive.stores.base import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Known:
    """The epoch of a store as a heartbeat saw it, and when. All leases of that heartbeat stood then."""

    epoch: str
    at: float


@dataclass(slots=True, eq=False)
class Lease:
    """The right to a key, for as long as the heartbeat renews it.

    Example:
        @app.task(bind=True, exclusive=Exclusive(key="repo:{project_id}"))
        def sync(self, project_id):
            for page in pages(project_id):
                self.lease.check()
                save(page, fence=self.lease.fence)

    Attributes:
        key: what is locked.
        fence: a number that only grows from one lease of a key to the next. A resource that remembers the
            highest it has seen, and refuses writes with a lower one, cannot be harmed by a paused holder.
        ttl: seconds without heartbeat after which the lease is dead.
    """

    key: str
    fence: int
    ttl: float
    _store: Store = field(repr=False)
    _id: str = field(repr=False)
    _token: str = field(repr=False)
    _limit: int = field(repr=False)
    _certain_until: float = field(repr=False)
    _known: Callable[[], Known | None] = field(repr=False)
    _since: float = field(init=False, repr=False, default_factory=time.monotonic)
    _is_over: bool = field(init=False, repr=False, default=False)

    def check(self) -> None:
        """Renew the lease and make sure that it still stands; cheap enough to call between pieces of work.

        If the store has lost its data, the lease is put back.

        Raises:
            LeaseLost: it ran out, as when this process was paused for longer than `ttl`, and the key may have
                gone to somebody else; or it was lost with the store's data, and somebody else has the key; or
                the store cannot be asked and `ttl` has passed since it last could.
        """
        asked = time.monotonic()
        try:
            (lives,) = renew([self])
            lives = lives or (self._is_forgotten(asked) and self.put_back())
        except StoreUnavailable as error:
            if asked < self._certain_until:
                return
            raise LeaseLost(f"the lease on {self.key} cannot be confirmed: {error}") from error
        if not lives:
            self.end()
            raise LeaseLost(
                f"the lease on {self.key} (fence {self.fence}) is lost: not renewed for {self.ttl:g} s, "
                "released by force, or gone with the data of its store, and somebody else may hold the key. "
                "Stop this work"
            )

    def is_of(self, id: str) -> bool:
        """Whether it was granted to the claim of this id."""
        return self._id == id

    def end(self) -> None:
        """It is about to be released, or lost: nobody must put it back from now on."""
        self._is_over = True

    def put_back(self) -> bool:
        """Put it back into a store that has lost its data, unless somebody else has the key; tell whether."""
        if self._is_over:
            return False
        asked = time.monotonic()
        restore = Restore(self._id, self._token, round(self.ttl * SECOND), self._limit)
        lives = self._store.apply(self.key, restore).answer == Done(True)
        if lives:
            self._certain_until, self._since = asked + self.ttl, time.monotonic()
        if self._is_over:  # it was released meanwhile, maybe before
            self._store.apply(self.key, Release(self._id, self._token, done=False))
        return lives

    def _is_forgotten(self, now: float) -> bool:
        """Whether the store has lost this lease with its data, as its heartbeat is yet to notice."""
        known = self._known()
        if known is None:
            return False
        if known.at <= self._since and now >= self._certain_until:
            return False  # the data may have been lost before the grant: then the lease has merely run out
        return self._store.epoch() != known.epoch


def renew(leases: list[Lease]) -> list[bool]:
    """Renew leases of one store in one call; tell for each whether it stands."""
    asked = time.monotonic()
    renewals = [(lease.key, Renew(lease._id, lease._token, round(lease.ttl * SECOND))) for lease in leases]
    answers = leases[0]._store.renew(renewals)
    for lease, lives in zip(leases, answers, strict=True):
        if lives:
            lease._certain_until = asked + lease.ttl
    return answers
