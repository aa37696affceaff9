"""lock(): a lock for code that is no task. The same string as a task's `key=` is the same lock."""

from __future__ import annotations

import os
import re
import warnings
from socket import gethostname
from typing import TYPE_CHECKING, Any, NoReturn

from celery import Signature, Task

from celery_exclusive import notices, outcomes
from celery_exclusive.core.claim import first_task_id
from celery_exclusive.core.records import SECOND
from celery_exclusive.core.room import Share
from celery_exclusive.errors import ExclusiveError, LockHeld, NoLease, OptionError, shown
from celery_exclusive.leases.lease import Lease
from celery_exclusive.local import transactions
from celery_exclusive.local.acquisition import Acquisition, new_claim
from celery_exclusive.local.holdings import Holdings
from celery_exclusive.options.amounts import (
    A_COUNT,
    MIN_TTL,
    MOST,
    Time,
    is_count,
    is_duration,
    seconds,
    seconds_from,
)
from celery_exclusive.options.hints import OF_LOCK, unknown_option
from celery_exclusive.options.key_text import absolute_key, fitted
from celery_exclusive.options.rates import FORM, Rate
from celery_exclusive.options.rates import read as read_rates
from celery_exclusive.outcomes import Subject
from celery_exclusive.run import closed_by
from celery_exclusive.seams.celery_app import known_tasks
from celery_exclusive.services import services_of
from celery_exclusive.signals import lock_outcome
from celery_exclusive.system.off_loop import is_in_loop, off_loop

if TYPE_CHECKING:
    from typing_extensions import Never

    from celery_exclusive.services import Services

_names_of_tasks: set[str] = set()
"""The names of tasks that are names of locks, and were looked at."""
_TEMPLATE = re.compile(r"\{[^\W\d][\w.]*\}")


class lock:  # noqa: N801 - it is read like a verb, as in contextlib
    """Hold a lock while a block of code runs: in a view, a command, a thread, a forked child, a coroutine.

    Tasks acquire the same lock with `key=`: while it is held, they wait in line, or are skipped.

        with lock("repo:17") as lease:                          # waits until it is free
            save(page, fence=lease.fence)

        try:
            with lock("repo:17", wait=0):                       # or not at all
                rebuild()
        except LockHeld as held:
            print(held)                                         # names the holder and the age of its lease

        guard = lock("repo:17", wait=5)
        if guard.acquire():
            try: ...
            finally: guard.release()

        async with lock("repo:17", wait=5) as lease:            # in a coroutine of asyncio
            await lease.acheck()                                # and aacquire(), arelease(), alocked()

    Parameters:
        text: the name of the lock, for all processes with the same store and namespace. It is no template:
            braces stay as they are, with a warning if there is a name in them.
        ttl: seconds, or a timedelta, after which the lock of a dead process is free again, from 0.1. It does
            not limit how long a lock is held: a thread renews the lease three times per ttl. Default 30.
        wait: the most seconds, or a timedelta, to wait for the lock; 0 is one try. Default None: as long as
            it takes.
        limit: the number of holders at once, an int from 1; the latest caller's counts. Default 1. None: any
            number.
        rate: how many may be acquired in a time, as in `Exclusive`: "500/m". Default None: any number.
        cost: the units that it takes of the limit and of the rate, an int from 1. Default 1.
        part: the part of the key that it counts in, as `per=` of its tasks makes it of their arguments:
            "acme". It also needs room in the limit and the rates that these tasks give the part; a part of
            which no task waits, runs or counts in a rate has none. Default None: none.
        until_commit: True holds it, in a Django project, until the transactions are committed or rolled back
            in whose `atomic()` blocks it ends. False releases it within them; None, the default, does so,
            too, and logs a warning. Not in coroutines.
        reentrant: True enters the lock again in a block of a `lock()` of the same name, or in the run of a
            task that holds its key, in the same thread or coroutine: with the lease and fence of the outer
            one, whose end releases it; if this one says `until_commit`, at the commit. So does code between
            `acquire()` and `release()`, if both say True. Default False.
        app: the Celery app whose store to use. Default: the current app, or the only one with `install`.

    Raises:
        OptionError: a value or a name is wrong, a time longer than 157,766,400 s (5 years), or a limit above
            1,000,000,000 (at once); or no app has locks (when it is used).
        LockHeld: `with` did not acquire it within `wait`; the error names the holder. `acquire()` returns
            False instead.
        StoreUnavailable: the store does not answer. Then no lease of this call lasts for longer than `ttl`.
        ExclusiveError: it would wait in vain, since a block around this code, or this run, holds it: see
            `reentrant`. Or the thread runs an event loop, which a call without await would block.

    The next holder must see the data that were written under the lock, so a transaction goes inside:

        with lock("account:17"), transaction.atomic(): ...
        with lock("account:17", until_commit=True): ...         # within one, as under ATOMIC_REQUESTS

    The lock belongs to this object: any thread, task or context may release it or end its block. An object
    may be used again, and by many threads or tasks at once. If their blocks end elsewhere than they began,
    each should have an object of its own, as `with lock(...)` makes it.

    A coroutine never blocks its event loop: its calls of the store run in at most 8 threads, and no thread is
    occupied while it waits. A cancelled coroutine ends at once, and a lease that it acquires then is
    released.

    A waiting `lock()` polls the store: often at first, later every half second or so. It is not in the line
    of the waiting tasks, and these go first. When an exception ends the block or the waiting,
    KeyboardInterrupt too, the lock is released. If the holder is killed, is deleted without `release()`, or
    is interrupted by a signal between acquiring and the block, or between the block and its release, its
    lease expires after `ttl`.

    If the lease was lost while the block ran - the process was paused, or the store was unreachable, for
    longer than `ttl` - `lease.check()` raises LeaseLost. The end of the block then logs an error and does not
    raise. It releases nothing if another owner holds the lock. If the store does not answer, the lease
    expires after `ttl`.
    """

    def __init__(  # noqa: PLR0913 - each is a word that its callers write
        self,
        text: str,
        *,
        ttl: Time = 30,
        wait: Time | None = None,
        limit: int | None = 1,
        rate: Rate = None,
        cost: int = 1,
        part: str | None = None,
        until_commit: bool | None = None,
        reentrant: bool = False,
        app: Any = None,
        **unknown: NoReturn,  # caught here to name the word that was meant; a type checker accepts none
    ) -> None:
        self.text, self.limit, self.cost, self.part, self.app = text, limit, cost, part, app
        self.until_commit, self.reentrant = until_commit, reentrant
        self.ttl: float = seconds(ttl)
        self.wait: float | None = seconds(wait)
        self._holdings = Holdings()
        known = ("ttl", "wait", "limit", "rate", "cost", "part", "until_commit", "reentrant", "app")
        for name in unknown:
            self._refuse(unknown_option(name, known, OF_LOCK))
        if not isinstance(text, str):
            of_task = isinstance(text, (Task, Signature))
            hint = " Write lock('nightly') for the lock of tasks with exclusive=Exclusive(key='nightly')."
            self._refuse(
                "the first argument must be a string that names what is locked, like 'repo:17'."
                f"{hint if of_task else ''}"
            )
        if not is_duration(self.ttl, at_least=MIN_TTL):
            self._refuse(f"ttl={shown(ttl)} must be {seconds_from(MIN_TTL)}.")
        if self.wait is not None and not is_duration(self.wait, at_least=0):
            self._refuse(
                f"wait={shown(wait)} must be {seconds_from(0)}, 0 for one try, or None to wait for ever."
            )
        self._check_room(rate)
        if not isinstance(until_commit, bool | None):
            self._refuse(f"until_commit={shown(until_commit)} must be True, False or None.")
        if not isinstance(reentrant, bool):
            self._refuse(f"reentrant={shown(reentrant)} must be True or False.")
        self.key = absolute_key(text)
        if _TEMPLATE.search(text):  # a user's title may have braces, so it is neither refused nor shown
            warnings.warn(
                "lock(): a name in braces, as in 'repo:{project_id}', stays as it is and names one lock for "
                "all: for its value write an f-string, lock(f'repo:{project_id}')",
                stacklevel=2,
            )

    def _check_room(self, rate: Rate) -> None:
        if self.limit is not None and not is_count(self.limit):
            self._refuse(
                f"limit={shown(self.limit)} must be {A_COUNT}, or None: how many may hold it at once."
            )
        if not is_count(self.cost):
            self._refuse(f"cost={shown(self.cost)} must be {A_COUNT}: the units that it takes.")
        if not (self.part is None or (self.part and isinstance(self.part, str))):
            self._refuse(f"part={shown(self.part)} must be a string, as per= of the tasks makes it: 'acme'.")
        try:
            self._rates = read_rates(rate)
        except ValueError:
            self._refuse(f"rate={shown(rate)} must be {FORM}.")

    @property
    def _most(self) -> int:
        return MOST if self.limit is None else self.limit

    @property
    def _share(self) -> Share:
        """What it takes: of a part it knows no terms."""
        return Share(self.cost, fitted(self.part), weight=0) if self.part else Share(self.cost)

    def __call__(self, _: Never, /) -> NoReturn:
        """Refuse to be a decorator."""
        self._refuse(
            f"it is no decorator. Put `with {self}: ...` into the function; for a task there is "
            "@app.task(exclusive=Exclusive(key=...)), which waits without a worker slot."
        )

    def __repr__(self) -> str:
        return f"lock({self.text!r})"

    def acquire(self, *given: NoReturn, **options: NoReturn) -> bool:
        """Acquire the lock; return whether it was free within `wait`. The class lists the errors."""
        self._refuse_arguments("acquire", given or options)
        return self._acquire(is_block=False).lease is not None

    async def aacquire(self, *given: NoReturn, **options: NoReturn) -> bool:
        """Acquire the lock in a coroutine, like `acquire()`. A lease that it acquires after a cancellation is
        released.

        Raises:
            OptionError: `until_commit=True`, since a transaction of Django belongs to a thread.
        """
        self._refuse_arguments("aacquire", given or options)
        return (await self._aacquire(is_block=False)).lease is not None

    def release(self) -> None:
        """Release the lock, or let the end of the transaction do it. The next task in line is published.

        Any thread and any task may do it: the lock belongs to this object.

        Raises:
            ExclusiveError: this object does not hold it, or the thread runs an event loop.
        """
        self._refuse_to_block_a_loop("release", "arelease")
        self._end(self._pop("release"))

    async def arelease(self) -> None:
        """Release the lock in a coroutine, like `release()`, even if the coroutine is cancelled meanwhile.

        Raises:
            ExclusiveError: this object does not hold it.
        """
        await self._pop("arelease").arelease()

    def locked(self) -> bool:
        """Whether the lock is held, with a limit all its slots, or is closed. Changes nothing.

        Its `part` is not asked for room.

        Raises:
            StoreUnavailable: the store does not answer.
            StoreRefused: the data of the key are damaged.
            ExclusiveError: the thread runs an event loop.
        """
        self._refuse_to_block_a_loop("locked", "alocked")
        return self._locked()

    async def alocked(self) -> bool:
        """Whether the lock is held, like `locked()`, in a coroutine."""
        return await off_loop(self._locked)

    @property
    def lease(self) -> Lease:
        """The lease that `acquire()` or `aacquire()` was granted.

        Raises:
            NoLease: this object does not hold the lock. NoLease is an ExclusiveError and an AttributeError.
        """
        acquisition = self._holdings.find()
        if not acquisition or not acquisition.lease:
            raise NoLease(f"{self}.lease: this object does not hold the lock in this process")
        return acquisition.lease

    def __enter__(self) -> Lease:
        return self._granted(self._acquire(is_block=True))

    def __exit__(self, *_: object) -> None:
        if acquisition := self._holdings.pop_block():
            self._end(acquisition)

    async def __aenter__(self) -> Lease:
        return self._granted(await self._aacquire(is_block=True))

    async def __aexit__(self, *_: object) -> None:
        if acquisition := self._holdings.pop_block():
            await acquisition.arelease()

    def _acquire(self, *, is_block: bool) -> Acquisition:
        self._refuse_to_block_a_loop("acquire", "aacquire")
        if self.until_commit and transactions.connections() is None:
            self._refuse(
                "until_commit=True waits for transactions of Django, and this process uses no Django 4.2 or "
                "later with settings. End the transaction within the block of the lock"
            )
        acquisition = self._new_acquisition()
        try:
            if not acquisition.is_inner:
                acquisition.acquire(self.wait)
            self._note(acquisition, is_block=is_block)
            return acquisition
        except BaseException:
            acquisition.release()
            raise

    async def _aacquire(self, *, is_block: bool) -> Acquisition:
        if self.until_commit:
            self._refuse(
                "until_commit=True waits for a transaction of Django, which belongs to a thread: put "
                f"`with {self}: ...` into a function, and `await sync_to_async(function)()`"
            )
        acquisition = self._new_acquisition()
        if not acquisition.is_inner:
            await acquisition.aacquire(self.wait)
        self._note(acquisition, is_block=is_block)
        return acquisition

    def _note(self, acquisition: Acquisition, *, is_block: bool) -> None:
        if acquisition.lease:
            self._holdings.add(acquisition, is_block=is_block)
            if self.reentrant and not is_block:
                acquisition.enter_block()  # until its lease is over
            acquisition.note_begun()
        elif lock_outcome.receivers:
            outcomes.not_acquired(acquisition.subject, acquisition.held.by, acquisition.wait_s)

    def _new_acquisition(self) -> Acquisition:
        owner_name = f"lock:{gethostname()}:{os.getpid()}"
        ttl = round(self.ttl * SECOND)
        claim = new_claim(owner_name, self.key, ttl, self._most, self._rates, self._share)
        subject = Subject(None, owner_name, self.key)
        services = services_of(self.app, "lock()")
        self._warn_of_task(services)
        acquisition = Acquisition(services, claim, subject)
        if self.reentrant:
            acquisition.enter_again(until_commit=bool(self.until_commit))
        return acquisition

    def _warn_of_task(self, services: Services) -> None:
        """Warn once of a lock with the name of a task whose runs it does not hold off."""
        task = known_tasks(services.app).get(self.text)  # a lock makes no tasks that are pending
        if task is None or self.text in _names_of_tasks:
            return
        _names_of_tasks.add(self.text)
        option = services.exclusive(task)
        if option is None or not (option.key == self.text or callable(option.key)):
            notices.lock_of_no_task(self.text, self.key)

    def _granted(self, acquisition: Acquisition) -> Lease:
        if acquisition.lease:
            return acquisition.lease
        by, others = acquisition.held.by, acquisition.held.others
        text = (
            f"lock {self.key} is {notices.held(by, others)}, and was not acquired within wait={self.wait} s. "
            "Try again later, or wait longer"
        )
        raise LockHeld(text, self.key, first_task_id(by), *closed_by(by))

    def _pop(self, method: str) -> Acquisition:
        if acquisition := self._holdings.pop():
            return acquisition
        raise ExclusiveError(f"{self}.{method}(): this object does not hold the lock in this process")

    def _locked(self) -> bool:
        seen = services_of(self.app, "lock()").store.inspect(self.key)
        return not seen.has_room(self._most)

    def _end(self, acquisition: Acquisition) -> None:
        """Release the lock, or let the end of the transactions around this code do it."""
        if acquisition.is_inner:
            return
        connections = transactions.open_transactions()
        until_commit = acquisition.until_commit or self.until_commit
        if until_commit and (waited_for := transactions.that_commit(connections)):
            acquisition.enter_block()  # this code must not wait for itself
            transactions.call_at_end(waited_for, acquisition.release)
            return
        acquisition.release()
        if connections and until_commit is None:
            transactions.report_once(self.key, connections[0].alias)

    def _refuse_arguments(self, method: str, given: object) -> None:
        if given:
            self._refuse(
                f"{method}() takes no arguments, lock() does: lock({self.text!r}, wait=0) tries once."
            )

    def _refuse_to_block_a_loop(self, method: str, instead: str) -> None:
        if is_in_loop():
            with_block = f"`async with {self}: ...`, or " if method == "acquire" else ""
            raise ExclusiveError(
                f"{self}.{method}() would block the event loop of this thread: write {with_block}"
                f"`await {self}.{instead}()`"
            )

    def _refuse(self, problem: str) -> NoReturn:
        raise OptionError(f"{self}: {problem}")
