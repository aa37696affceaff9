"""The lease: one holder's right to a key, as the holder sees it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from celery_exclusive.core.document import SECOND
from celery_exclusive.core.operations import Renew
from celery_exclusive.errors import LeaseLost, StoreUnavailable

if TYPE_CHECKING:
    from celery_exclusive.stores.base import Store


@dataclass(slots=True)
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
    _certain_until: float = field(repr=False)

    def check(self) -> None:
        """Renew the lease and make sure that it still stands; cheap enough to call between pieces of work.

        Raises:
            LeaseLost: it ran out, as when this process was paused for longer than `ttl`, and the key may have
                gone to somebody else; or the store cannot be asked and `ttl` has passed since it last could.
        """
        asked = time.monotonic()
        renewal = Renew(self._id, self._token, round(self.ttl * SECOND))
        try:
            (lives,) = self._store.renew([(self.key, renewal)])
        except StoreUnavailable as error:
            if asked < self._certain_until:
                return
            raise LeaseLost(f"the lease on {self.key} cannot be confirmed: {error}") from error
        if not lives:
            raise LeaseLost(
                f"the lease on {self.key} (fence {self.fence}) is lost: not renewed for {self.ttl:g} s, and "
                "somebody else may hold the key. Stop this work; whoever needs it will run it again"
            )
        self._certain_until = asked + self.ttl
