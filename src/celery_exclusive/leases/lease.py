"""The lease of a holder, which task authors see as `self.lease`."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from celery_exclusive.core.claim import Claim
from celery_exclusive.core.operations import Applied, Charge, Hold
from celery_exclusive.core.records import SECOND
from celery_exclusive.errors import LeaseLost, OptionError, StoreError, Superseded, keeps_no_room, shown
from celery_exclusive.leases.keeper import Known, locked_out, renew, restore
from celery_exclusive.options.amounts import A_COUNT, is_count, is_duration, seconds_from
from celery_exclusive.options.amounts import seconds as in_seconds
from celery_exclusive.system.deadline import deadline
from celery_exclusive.system.off_loop import off_loop

if TYPE_CHECKING:
    from datetime import timedelta

    from celery_exclusive.stores.base import Store

_LONGEST_HOLD = 86_400
"""The most seconds for which a run holds its key back: a wrong number must not stop it for good."""
_LOOK = 1
"""Seconds between two looks for a newer call, and for which such a look waits for the store."""


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
        key: the key.
        fence: a number that only grows from one lease of a key to the next. A resource that remembers the
            highest fence and refuses writes with a lower one is safe from a paused holder.
        ttl: seconds without heartbeat after which the lease expires.
        is_over: whether the lease is known to be released or lost.
    """

    key: str = field(init=False)
    fence: int
    ttl: float = field(init=False)
    _claim: Claim = field(repr=False)
    _store: Store = field(repr=False)
    _certain_until: float = field(repr=False)
    _known: Callable[[], Known | None] = field(repr=False)
    _may_be_superseded: bool = field(repr=False, default=False)
    _newer: str | None = field(init=False, repr=False, default=None)
    _looked_at: float = field(init=False, repr=False, default=-_LOOK)
    _since: float = field(init=False, repr=False, default_factory=time.monotonic)
    is_over: bool = field(init=False, repr=False, default=False)

    @property
    def held_s(self) -> float:
        """The seconds since the lease was granted."""
        return time.monotonic() - self._since

    def __post_init__(self) -> None:
        self.key, self.ttl = self._claim.key, self._claim.ttl / SECOND

    @property
    def superseded(self) -> bool:
        """Whether a newer call waits for the end of this run, with `on_conflict="supersede"`.

            if self.lease.superseded:
                return save_draft(doc)

        It asks the store at most once a second, and says the same as before while that does not answer. It is
        False again if the newer call is gone: it was revoked, or gave up. With another `on_conflict` it is
        False, and asks nothing.
        """
        return self.newer_call() is not None

    def newer_call(self, every: float = _LOOK) -> str | None:
        """Return the newest call that waits for the end of this run. If the last look is old, this looks."""
        now = time.monotonic()
        if self._may_be_superseded and not self.is_over and now - self._looked_at >= every:
            self._looked_at = now
            with suppress(StoreError), deadline(_LOOK):
                self._newer = self._store.inspect(self.key).newer_than(self._claim.id)
        return self._newer

    def check(self) -> None:
        """Renew the lease, and raise if it is lost; cheap enough to call between pieces of work.

        If the store has lost its data, the lease is restored.

        Raises:
            Superseded: a newer call waits for the end of this run, with `on_conflict="supersede"`.
            LeaseLost: the lease has expired, for instance after a pause of this process that was longer than
                `ttl`, and the key may have another owner; or it was lost with the store's data, and the key
                has another owner; or the store has not answered for `ttl`; or the lease was released, since
                its body has ended.
        """
        self._confirm()
        if (newer := self.newer_call()) is not None:
            raise superseded(self.key, newer)

    def _confirm(self) -> None:
        """Renew the lease, or raise LeaseLost."""
        if self.is_over:
            raise LeaseLost(
                f"the lease on {self.key} (fence {self.fence}) is over: it was lost before, or released when "
                "its body ended"
            )
        asked, is_refused = time.monotonic(), False
        try:
            (lives,) = renew(self._store, [self])
            if lives is None:
                raise locked_out(self._store, [self.key])
            is_refused = not lives
            lives = lives or (self._is_lost_with_data(asked) and restore(self._store, self))
        except StoreError as error:
            if asked < self._certain_until and not is_refused:
                return
            raise LeaseLost(
                f"the lease on {self.key} cannot be confirmed: {error}. Stop this work"
            ) from error
        if not lives:
            self.end()
            raise LeaseLost(
                f"the lease on {self.key} (fence {self.fence}) is lost: not renewed for {self.ttl:g} s, "
                "released by force, or lost with the data of its store. Another owner may hold the key: stop "
                "this work"
            )

    async def acheck(self) -> None:
        """Check the lease in a coroutine, without blocking its event loop: `await lease.acheck()`.

        Raises:
            LeaseLost: as `check()`.
        """
        await off_loop(self.check)

    def charge(self, units: int) -> None:
        """Count more units of this run at the rates of its key, such as the tokens that an answer has cost.

            answer = ask(prompt)
            self.lease.charge(answer.tokens)

        They may be more than a rate has left: then nothing starts until they count no more.

        Parameters:
            units: how many, an int from 1.

        Raises:
            OptionError: they are no such number, or the lease is on a unique key, or in memcached.
            LeaseLost: the lease is lost, and nothing was counted.
            StoreError: the store has not answered. They may be counted; to repeat it counts them twice.
        """
        if not is_count(units):
            raise OptionError(f"lease.charge({shown(units)}): the units must be {A_COUNT}")
        self._apply(Charge(self._claim.id, self._claim.token, units))

    def hold(self, seconds: float | timedelta) -> None:
        """Let no task of the key start for a while, in any worker: for a 429 with its Retry-After.

            self.lease.hold(float(response.headers["Retry-After"]))

        What runs, runs on. An earlier hold that ends later stays. `celery -A proj locks resume KEY` ends it.

        Parameters:
            seconds: how long, a number or a timedelta. More than a day counts as a day.

        Raises:
            OptionError: it is no such time, or the lease is on a unique key, or in memcached.
            LeaseLost: the lease is lost, and the key is not held back.
            StoreError: the store has not answered. It may be held back; to repeat it is safe.
        """
        time = in_seconds(seconds)
        if not is_duration(time, at_least=0):
            raise OptionError(f"lease.hold({shown(seconds)}): the time must be {seconds_from(0)}")
        lasts = max(round(min(time, _LONGEST_HOLD) * SECOND), 1)
        self._apply(Hold(self._claim.id, self._claim.token, lasts))

    async def acharge(self, units: int) -> None:
        """Count units in a coroutine, as `charge()` does."""
        await off_loop(lambda: self.charge(units))

    async def ahold(self, seconds: float | timedelta) -> None:
        """Hold the key back in a coroutine, as `hold()` does."""
        await off_loop(lambda: self.hold(seconds))

    def _apply(self, operation: Charge | Hold) -> None:
        name = type(operation).__name__.lower()
        if self.key[:1] != "x":
            raise OptionError(
                f"lease.{name}(): {self.key} is a unique key, which has no limit: use exclusive="
            )
        if not self._store.capabilities.line:
            raise keeps_no_room(self._store.url, f"lease.{name}()")
        if self.is_over or self._store.apply(self.key, operation).answer != Applied(True):
            raise LeaseLost(f"the lease on {self.key} (fence {self.fence}) is lost, or over. Stop this work")

    def is_of(self, id: str) -> bool:
        return self._claim.id == id

    def is_in(self, part: str) -> bool:
        return self._claim.share.part == part

    def is_on(self, key: str, store: Store) -> bool:
        """Whether this key of the store is held by the lease, as far as it knows."""
        return self.key == key and self._store is store and not self.is_over

    def end(self) -> None:
        """Mark the lease as released or lost, so that it is not restored from now on."""
        self.is_over = True

    def hand_over_to(self, claim: Claim) -> None:
        """Continue under another claim to the same key, to which the store has passed the lease."""
        self._claim = claim

    def renewed(self, asked: float, *, anew: bool = False) -> None:
        """Note that the lease was valid at the time of the request, or was granted anew then."""
        self._certain_until = asked + self.ttl
        if anew:
            self._since = time.monotonic()

    def _is_lost_with_data(self, now: float) -> bool:
        """Whether the store has lost this lease with its data, and the heartbeat has not noticed yet.

        An epoch that was read before the grant does not show whether the data were lost before the grant,
        too. A lease that may have expired since then counts as expired.
        """
        known = self._known()
        if known is None:
            return False
        was_read_before_grant = known.at <= self._since
        may_have_expired = now >= self._certain_until
        if was_read_before_grant and may_have_expired:
            return False
        return self._store.epoch() != known.epoch


def superseded(key: str, newer: str) -> Superseded:
    """Return the error of a run that this newer task has superseded."""
    return Superseded(f"the newer task {newer} waits for lock {key}, and supersedes this run: stop this work")
