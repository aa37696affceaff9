"""A claim that a process makes without a worker, from the first try to the release."""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Generator
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from secrets import token_hex
from typing import Final

from celery_exclusive import notices, outcomes
from celery_exclusive.core.claim import NO_WORKER, Claim
from celery_exclusive.core.operations import Applied, Granted, Held
from celery_exclusive.core.records import SECOND
from celery_exclusive.core.room import ONE_UNIT, Rates, Share
from celery_exclusive.errors import (
    ExclusiveError,
    LeaseUnconfirmed,
    StoreError,
    StoreUnavailable,
    keeps_no_room,
)
from celery_exclusive.leases.attempts import Attempts
from celery_exclusive.leases.lease import Lease
from celery_exclusive.local.heartbeat import heartbeat
from celery_exclusive.outcomes import Subject
from celery_exclusive.run import runs
from celery_exclusive.services import Services
from celery_exclusive.signals import lock_outcome
from celery_exclusive.stores.base import Reply
from celery_exclusive.system.off_loop import off_loop, thread_and_task

_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.5
"""Seconds between two attempts to acquire a key that is held."""
_LONGEST_KNOWN: Final = 2.0
"""The same for a key that is closed until a known time: an operator may open it before."""
_SWEEPS: Final = 0.01
"""The share of releases that also reap, if no worker did for a minute."""
_MINUTE: Final = 60 * SECOND

_blocks: ContextVar[tuple[tuple[object, Lease], ...]] = ContextVar("celery_exclusive_lock_blocks", default=())
"""The leases of the `with lock(...)` blocks around this code, with their callers: contexts are copied."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=partial(_blocks.set, ()))  # they are the parent's


def new_claim(
    owner: str, key: str, ttl: int, limit: int = 1, rates: Rates = (), share: Share = ONE_UNIT
) -> Claim:
    return Claim(key, f"{owner}/{token_hex(4)}", NO_WORKER + token_hex(6), ttl, limit, rates, share)


class Acquisition:
    """One claim to a key, from the first try to the release.

    The heartbeat renews `lease` while this object exists. `answer`: the store's last one, `held`: that to the
    last try in vain. `is_inner`: the lease is one that this code held before, and is released by its own
    acquisition. `until_commit`: a `lock()` holds it until open transactions are committed.
    """

    lease: Lease | None = None
    is_inner = until_commit = False
    held: Held = Held(())
    answer: Granted | Held

    def __init__(self, services: Services, claim: Claim, subject: Subject) -> None:
        self.services, self.claim, self.subject = services, claim, subject
        self.caller = thread_and_task()
        self._pid = os.getpid()
        self._may_hold = self._is_told = False
        self._waits_since: float | None = None

    def acquire(self, wait: float | None) -> None:
        """Acquire a lease, unless the key is held for so many seconds.

        StoreUnavailable: it may be granted. ExclusiveError: this very code holds the key.
        """
        attempts = self._attempts(wait)
        while pause := next(attempts, None):
            time.sleep(pause)

    async def aacquire(self, wait: float | None) -> None:
        """Acquire a lease in a coroutine, like `acquire`. After a cancellation the lease is released."""
        from asyncio import sleep

        attempts = self._attempts(wait)
        while pause := await off_loop(partial(next, attempts, None), clean_up=self.release):
            await sleep(pause)

    def enter_again(self, *, until_commit: bool) -> None:
        """Use the lease of a block or run around this code, if that holds the key in this thread or task.

        A thread or task with a copy of the context waits for the key. `until_commit`: an outer `lock()` holds
        it so long, too; a run in a worker ends after its transactions.
        """
        here, store = thread_and_task(), self.services.store
        leases = [lease for caller, lease in _blocks.get() if caller == here]
        if here[1] is None:
            leases += [run.lease for run in runs() if run.lease and run.is_here]
        self.lease = next((lease for lease in leases if lease.is_on(self.claim.key, store)), None)
        self.is_inner = self.lease is not None
        if self.lease and until_commit:
            outer = heartbeat.owner(self.lease)
            if isinstance(outer, Acquisition):
                outer.until_commit = True

    def _attempts(self, wait: float | None) -> Generator[float]:
        """Send requests until the store grants the lease, or `wait` is over; yield each pause in between."""
        deadline = math.inf if wait is None else time.monotonic() + wait
        pause = _FIRST_PAUSE
        heartbeat.learn(self.services.store)
        notices.store_chosen(self.services)
        while not self._ask():
            left = deadline - time.monotonic()
            if left <= 0:
                break
            if pause == _FIRST_PAUSE:
                self._begin_to_wait(is_endless=wait is None)
            known = self.held.by[0].opens_in if self.held.by else None
            jitter = pause * random.uniform(0.5, 1)
            yield min(jitter if known is None else min(max(known, _FIRST_PAUSE), _LONGEST_KNOWN), left)
            pause = min(pause * 1.5, _LONGEST_PAUSE)

    @property
    def wait_s(self) -> float:
        """The seconds since the first try in vain."""
        return 0 if self._waits_since is None else time.monotonic() - self._waits_since

    def note_begun(self) -> None:
        """Tell receivers that a body begins under the lease, if there is one."""
        if self.lease and lock_outcome.receivers and not self.is_inner:
            self._is_told = True
            outcomes.acquired(self.subject, self.wait_s)

    def release(self) -> None:
        """Release the lease that may be held. Do nothing in a forked child, or a second time.

        Only an exception of a signal handler is raised.
        """
        if not self._may_hold or self.is_of_parent:
            return
        attempts = Attempts(2)
        try:
            reply = attempts.make(self._release)
        except Exception as error:  # noqa: BLE001 - what was done under the lock is done
            notices.trouble(
                f"{self.subject} could not release lock {self.claim.key}: its lease expires after its ttl",
                error,
            )
            return
        self._may_hold = False
        is_first = not (attempts.is_repeated or attempts.interruption)
        if self.lease and is_first and reply.answer == Applied(False):
            outcomes.lost(self.subject, self.lease.held_s)
        elif self.lease and self._is_told:
            outcomes.released(self.subject, self.lease.held_s)
        if attempts.interruption:
            raise attempts.interruption
        if random.random() < _SWEEPS:  # an app without a worker has no reaper
            with suppress(StoreUnavailable):
                self.services.store.reap(limit=0, every=_MINUTE)

    async def arelease(self) -> None:
        """Release the lease in a coroutine, like `release`, even if the coroutine is cancelled."""
        await off_loop(self.release, clean_up=self.release)

    @property
    def is_of_parent(self) -> bool:
        return self._pid != os.getpid()

    @property
    def is_block_here(self) -> bool:
        """Whether this code is in the `with` block that it was acquired for."""
        return (thread_and_task(), self.lease) in _blocks.get()

    def enter_block(self) -> None:
        """Note that this code is in a block that holds the lock, and must not wait for itself."""
        assert self.lease  # noqa: S101 - it is held
        if self.is_inner:  # the code is in the outer block, also after the end of this one
            return
        others = (block for block in _blocks.get() if not block[1].is_over and block[1] is not self.lease)
        _blocks.set((*others, (thread_and_task(), self.lease)))

    def leave_block(self) -> None:
        if self.is_inner:
            return
        _blocks.set(tuple(block for block in _blocks.get() if block[1] is not self.lease))

    def _ask(self) -> Lease | None:
        store = self.services.store  # wrong settings raise an error here, before anything may be held
        share = self.claim.share
        if (self.claim.rates or share.cost > 1 or share.part) and not store.capabilities.line:
            raise keeps_no_room(store.url, str(self.subject))
        asked = time.monotonic()
        self._may_hold = True
        try:
            reply = store.apply(self.claim.key, self.claim.acquire())
        except LeaseUnconfirmed:
            self.release()
            raise
        except StoreError:
            self._may_hold = False  # it may be held all the same, until its ttl: nothing can release it now
            raise
        answer = reply.answer
        assert isinstance(answer, (Granted, Held))  # noqa: S101 - it has no copy in line, nor waits there
        self.answer = answer
        if isinstance(answer, Granted):
            until, known = asked + self.claim.ttl / SECOND, partial(heartbeat.known, store)
            self.lease = Lease(answer.fence, self.claim, store, until, known)
            heartbeat.add(self.lease, self)
        else:
            self._may_hold, self.held = False, answer
        return self.lease

    def _release(self) -> Reply:
        if self.lease:
            heartbeat.remove(self.lease)
        return self.services.store.apply(self.claim.key, self.claim.release())

    def _begin_to_wait(self, *, is_endless: bool) -> None:
        holders, others = [owner for owner in self.held.by if not owner.is_closed], self.held.others
        closed = {owner.phase for owner in self.held.by if owner.is_closed}
        if closed - {"part"} and len(holders) + others < self.claim.limit:
            holders = []  # it waits for the key to open
        self._waits_since = time.monotonic()
        outcomes.waits(self.subject, self.held.by, others)
        around = self.caller, (self.caller[0], None)  # a block around an event loop waits for its tasks
        ours = [lease for caller, lease in _blocks.get() if caller in around]
        # Another thread with a copy of the context may outlive the run, unless it waits without end.
        ours += [run.lease for run in runs() if run.lease and (is_endless or run.is_here)]
        if others or not (is_endless or self.subject.task_name is None):  # a task gives up as its option says
            return
        if holders and all(any(lease.is_of(owner.id) for lease in ours) for owner in holders):
            raise ExclusiveError(
                f"lock {self.claim.key} is held by the very code that waits for it, and would wait in vain. "
                "Acquire it once, outside, or write lock(..., reentrant=True) for code that may hold it "
                "already in this thread or coroutine. With wait=0 this call would say that it is held"
            )
        if not (is_endless and holders):
            return
        found = [heartbeat.owner_of(holder.id) for holder in holders]
        is_own = [isinstance(other, Acquisition) and other.caller == self.caller for other in found]
        key, part, store = self.claim.key, self.claim.share.part, self.services.store
        is_own_part = "part" in closed and any(it.is_on(key, store) and it.is_in(part) for it in ours)
        if all(is_own) or is_own_part:
            notices.may_wait_for_itself(key)  # this thread or task has acquired it for other code
