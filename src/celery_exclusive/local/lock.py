"""lock(): a lock for code that is no task. The same string as a task's `key=` is the same lock."""

from __future__ import annotations

import os
import re
import warnings
from functools import partial
from socket import gethostname
from threading import get_ident
from typing import TYPE_CHECKING, Any, NoReturn

from celery import current_app

from celery_exclusive import notices
from celery_exclusive.core.claim import first_task_id
from celery_exclusive.core.operations import Held
from celery_exclusive.core.records import SECOND
from celery_exclusive.errors import ExclusiveError, LockHeld, NoLease, OptionError, did_you_mean, shown
from celery_exclusive.leases.lease import Lease
from celery_exclusive.local import transactions
from celery_exclusive.local.acquisition import Acquisition, lock_blocks, new_claim
from celery_exclusive.options.amounts import A_COUNT, MIN_TTL, is_count, is_duration, seconds_from
from celery_exclusive.options.key_text import absolute_key
from celery_exclusive.options.option import apps_with_locks

if TYPE_CHECKING:
    from celery_exclusive.services import Services


_ELSEWHERE = {
    "timeout": "wait",
    "blocking_timeout": "wait",
    "expires": "ttl",
    "expire": "ttl",
    "xact": "until_commit",
    "transaction": "until_commit",
}
"""What other libraries call our options."""
_TEMPLATE = re.compile(r"\{[^\W\d][\w.]*\}")


class lock:  # noqa: N801 - it is read like a verb, as those of contextlib
    """Hold a lock while a block of code runs: in a view, a command, a thread, a forked child.

    Tasks acquire the same lock with `key=`: while it is held, they wait in line, or are skipped.

        with lock("repo:17") as lease:                          # waits until it is free
            save(page, fence=lease.fence)

        try:
            with lock("repo:17", wait=0):                       # or not at all
                rebuild()
        except LockHeld as held:
            print(held)                                         # names the holder, and since when

        guard = lock("repo:17", wait=5)
        if guard.acquire():
            try: ...
            finally: guard.release()

    Parameters:
        text: a string that names what is locked, for all processes with the same store and namespace. It is
            no template: braces stay as they are, with a warning if there is a name in them.
        ttl: seconds after which the lock of a dead process is free again, from 0.1. It does not limit how
            long a lock is held: a thread renews the lease three times per ttl. Default 30.
        wait: how many seconds to wait for it at most; 0 is one try. Default None: as long as it takes.
        limit: how many may hold it at once, an int from 1; the latest caller's counts. Default 1.
        until_commit: True holds it, in a Django project, until the transactions are committed or rolled back
            in whose `atomic()` blocks it ends. False releases it within them; so does None, the default, and
            logs a warning.
        app: the Celery app whose store to use. Default: the current app, or the only one with `install`.

    Raises:
        OptionError: a value or a name is wrong, a time longer than 157,766,400 s (5 years), or a limit above
            1,000,000,000 (at once); or no app has locks (when it is used).
        LockHeld: `with` did not acquire it within `wait`; it names the holder. `acquire()` returns False.
        StoreUnavailable: the store does not answer. Nothing is held then for longer than `ttl`.
        ExclusiveError: it can never be acquired, since this thread or this run holds it already: a lock is
            not re-entrant. Or the thread runs an event loop, which it would block.

    The next holder must see what was written under the lock, so a transaction goes inside:

        with lock("account:17"), transaction.atomic(): ...
        with lock("account:17", until_commit=True): ...         # within one, as under ATOMIC_REQUESTS

    A waiting `lock()` polls the store: often at first, later every half second or so. It is not in the line
    of the waiting tasks, and these go first. When an exception ends the block or the waiting,
    KeyboardInterrupt too, the lock is released. If the holder is killed, is deleted without `release()`, or
    is interrupted by a signal in the first instant of its release, its lease expires after `ttl`.

    If the lease was lost while the block ran - the process was paused, or the store was unreachable, for
    longer than `ttl` - `lease.check()` raises LeaseLost. The end of the block then logs an error and does not
    raise. It releases nothing if another owner holds the lock. If the store does not answer, the lease
    expires after `ttl`.
    """

    def __init__(
        self,
        text: str,
        *,
        ttl: float = 30,
        wait: float | None = None,
        limit: int = 1,
        until_commit: bool | None = None,
        app: Any = None,
        **unknown: NoReturn,  # caught here to name the word that was meant; a type checker accepts none
    ) -> None:
        self.text, self.ttl, self.wait, self.limit, self.app = text, ttl, wait, limit, app
        self.until_commit = until_commit
        self._acquisitions: list[Acquisition] = []
        self._pid = os.getpid()
        known = ("ttl", "wait", "limit", "until_commit", "app")
        for name in unknown:
            hint = did_you_mean(_ELSEWHERE.get(name, name), known)
            self._refuse(f"there is no option {name!r} (there are {', '.join(known)}){hint}")
        if not isinstance(text, str):
            self._refuse("the first argument must be a string that names what is locked, like 'repo:17'.")
        if not is_duration(ttl, at_least=MIN_TTL):
            self._refuse(f"ttl={shown(ttl)} must be {seconds_from(MIN_TTL)}.")
        if wait is not None and not is_duration(wait, at_least=0):
            self._refuse(
                f"wait={shown(wait)} must be {seconds_from(0)}, 0 for one try, or None to wait for ever."
            )
        if not is_count(limit):
            self._refuse(f"limit={shown(limit)} must be {A_COUNT}: how many may hold it at once.")
        if not isinstance(until_commit, bool | None):
            self._refuse(f"until_commit={shown(until_commit)} must be True, False or None.")
        self.key = absolute_key(text)
        if _TEMPLATE.search(text):  # a user's title may have braces, so it is neither refused nor shown
            warnings.warn(
                "lock(): a name in braces, as in 'repo:{project_id}', stays as it is and names one lock for "
                "all: for its value write an f-string, lock(f'repo:{project_id}')",
                stacklevel=2,
            )

    def __repr__(self) -> str:
        return f"lock({self.text!r})"

    def acquire(self) -> bool:
        """Acquire the lock; return whether it was free within `wait`. The class lists the errors."""
        acquisition = self._new_acquisition()
        try:
            is_held = isinstance(acquisition.acquire(self.wait), Held)
            if not is_held:
                self._acquisitions.append(acquisition)
            return not is_held
        except BaseException:
            self._release(acquisition)
            raise

    def release(self) -> None:
        """Release the lock, or let the end of the transaction do it. The next task in line is published.

        Raises:
            ExclusiveError: this object does not hold it.
        """
        acquisition = self._acquisition()
        if not acquisition:
            raise ExclusiveError(f"{self}.release(): this object does not hold the lock in this process")
        self._end(acquisition)

    def locked(self) -> bool:
        """Whether the lock is held; with a limit, whether by as many as may. It changes nothing."""
        return len(_installation(self.app).store.inspect(self.key).holders) >= self.limit

    @property
    def lease(self) -> Lease:
        """The lease that `acquire()` was granted.

        Raises:
            NoLease: this object does not hold it. It is an ExclusiveError and an AttributeError.
        """
        acquisition = self._acquisition()
        if not acquisition or not acquisition.lease:
            raise NoLease(f"{self}.lease: this object does not hold the lock in this process")
        return acquisition.lease

    def __enter__(self) -> Lease:
        acquisition = self._new_acquisition()
        try:
            if isinstance(answer := acquisition.acquire(self.wait), Held):
                raise self._conflict(answer)
            self._acquisitions.append(acquisition)
            lease = self.lease
            lock_blocks.set((*lock_blocks.get(), (acquisition.thread, lease)))
            return lease
        except BaseException:
            self._release(acquisition)
            raise

    def __exit__(self, *_: object) -> None:
        ours = [lease for _, lease in lock_blocks.get()]
        for acquisition in self._held_here():
            if acquisition.lease in ours:  # else the block released it, or this is a forked child
                self._end(acquisition)
                return

    async def __aenter__(self) -> None:
        self._refuse_to_block_a_loop()

    async def __aexit__(self, *_: object) -> None:
        """Python looks it up before it calls `__aenter__`."""

    def _new_acquisition(self) -> Acquisition:
        self._refuse_to_block_a_loop()
        if self.until_commit and not transactions.has_databases():
            self._refuse(
                "until_commit=True waits for transactions of Django, and this process uses no Django 4.2 or "
                "later with settings. End the transaction within the block of the lock"
            )
        services = _installation(self.app)
        if any(acquisition.thread == get_ident() for acquisition in self._held_here()):
            raise ExclusiveError(f"{self} is held by this thread already: a lock is not re-entrant")
        owner_name = f"lock:{gethostname()}:{os.getpid()}"
        claim = new_claim(owner_name, self.key, round(self.ttl * SECOND), self.limit)
        return Acquisition(services, claim, owner_name)

    def _held_here(self) -> list[Acquisition]:
        """Return what this process holds through this object; a forked child holds nothing of its parent."""
        if self._pid != os.getpid():
            self._acquisitions, self._pid = [], os.getpid()
        return self._acquisitions

    def _acquisition(self) -> Acquisition | None:
        """Return the acquisition of this thread, or else of another, which may release it, too."""
        acquisitions = self._held_here()
        ours = (acquisition for acquisition in acquisitions if acquisition.thread == get_ident())
        return next(ours, acquisitions[0] if acquisitions else None)

    def _end(self, acquisition: Acquisition) -> None:
        """Release the lock, or let the end of the transactions around this code do it."""
        connections = transactions.open_transactions()
        if self.until_commit and (waited_for := transactions.that_commit(connections)):
            self._acquisitions.remove(acquisition)
            assert acquisition.lease  # noqa: S101 - it is held
            block = (get_ident(), acquisition.lease)
            if block not in lock_blocks.get():
                lock_blocks.set((*lock_blocks.get(), block))  # this code must not wait for itself
            transactions.call_at_end(waited_for, partial(self._release, acquisition))
            return
        self._release(acquisition)
        if connections and self.until_commit is None:
            transactions.report_once(self.key, connections[0].alias)

    def _release(self, acquisition: Acquisition) -> None:
        try:
            acquisition.release()
        finally:
            if acquisition in self._acquisitions:
                self._acquisitions.remove(acquisition)
            lock_blocks.set(tuple(pair for pair in lock_blocks.get() if pair[1] is not acquisition.lease))

    def _conflict(self, held: Held) -> LockHeld:
        return LockHeld(
            f"lock {self.key} is {notices.held(held.by)}, and was not acquired within wait={self.wait} s. "
            "Try again later, or wait longer",
            self.key,
            first_task_id(held.by),
        )

    def _refuse_to_block_a_loop(self) -> None:
        from asyncio import get_running_loop

        try:
            get_running_loop()
        except RuntimeError:
            return
        raise ExclusiveError(
            f"{self} would block the event loop of this thread: put `with {self}: ...` into a function, and "
            "`await asyncio.to_thread(function)`"
        )

    def _refuse(self, problem: str) -> NoReturn:
        raise OptionError(f"{self}: {problem}")


def _installation(app: Any) -> Services:
    """Return the services of this app, or else of the only app that has locks, or of the current app."""
    installed = list(apps_with_locks)
    found = app or (installed[0] if len(installed) == 1 else current_app)
    services: Services | None = getattr(found, "_celery_exclusive", None)
    if services:
        return services
    if installed and not app:
        names = ", ".join(sorted(map(repr, installed)))
        raise OptionError(
            f"lock(): the current app has no locks: choose one of the apps that have, with app= ({names})"
        )
    raise OptionError(
        f"lock(): the app {found!r} has no locks: call celery_exclusive.install(app) right after you make "
        "it, and import its module before you use a lock"
    )
