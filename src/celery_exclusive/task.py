"""The attributes of a task with options: its lease, and what asks about, releases and restarts its keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import import_module
from inspect import signature
from itertools import chain
from typing import TYPE_CHECKING, Any

from celery_exclusive.core.claim import task_id
from celery_exclusive.core.records import NOT_BEGUN, SECOND
from celery_exclusive.errors import NoLease, NoOptions, OptionError, UnreadableKey
from celery_exclusive.leases.operator_release import release
from celery_exclusive.options.keys import key_of, needs_headers
from celery_exclusive.run import current_run
from celery_exclusive.stores.base import Snapshot, whole_line

if TYPE_CHECKING:
    from celery.result import AsyncResult

    from celery_exclusive.core.operations import Owner, Waiting
    from celery_exclusive.core.records import OwnerPhase
    from celery_exclusive.leases.lease import Lease
    from celery_exclusive.options.declared import Exclusive
    from celery_exclusive.services import Services
    from celery_exclusive.stores.base import Store
    from celery_exclusive.stores.workers import WorkerRecord


@dataclass(frozen=True, slots=True)
class LockHolder:
    """A holder: its task id, the seconds since it began, and the seconds left of its lease.

    * `is_queued`: its body does not run. It is a retry that keeps the lock (`keep_on_retry`), or a unique
      task that has not begun.
    * `phase`: "running", "queued", "again" (a retry) or "period". `fence`: the number of the lease.
    * `workers`: the worker that runs it; several if they have the same number, none for a `lock()`.
      `renewed`: the seconds since the last renewal, if the task's ttl is known. `deaths`: the number of its
      runs that were recovered before, if the store keeps its message. `celery_exclusive.locks` asks the store
      for these, `lock_state()` does not.
    """

    task_id: str
    age: float
    remaining: float
    is_queued: bool = False
    phase: OwnerPhase = "running"
    fence: int = 0
    workers: tuple[WorkerRecord, ...] = ()
    renewed: float | None = None
    deaths: int = 0

    @classmethod
    def of(cls, owner: Owner) -> LockHolder:
        """Make it of the owner as a store shows it."""
        return cls(
            task_id(owner.id),
            owner.age / SECOND,
            owner.remaining / SECOND,
            owner.phase in NOT_BEGUN,
            owner.phase,
            owner.fence,
        )

    @property
    def is_renewed(self) -> bool:
        """Whether it runs and renews its lease, as far as the store knows."""
        return self.phase == "running" and self.remaining > 0

    @property
    def is_dead(self) -> bool:
        """Whether its lease has expired while it ran, so that a worker is going to recover its run."""
        return self.phase == "running" and self.remaining <= 0


@dataclass(frozen=True, slots=True)
class WaitingTask:
    """A task in line: its task id, and the seconds since it joined the line.

    * `is_offered`: its turn has come, and its message is on the way to a worker.
    * `not_before`: the seconds until it is published, if it waits for newer calls.
    * `ends_in`: the seconds until it gives up, if it `gives_up`, or its message expires. None: never.
    * `place`: its place in line, from 1. 0: it `is_aside`, since no worker accepted its offers, or since its
      wait is `over`: by its deadline (""), or for the newer task with this id; or it `is_shut`: it waits for
      room of its part, and joins the line then.
    * `offers`: the number of its offers. `deaths`: the number of its runs that were recovered.
    * `task`, `args`: the name and the arguments of the call in its stored message, as logs show them.
      `celery_exclusive.locks` reads them, `lock_state()` does not. None: the store has no message, or its
      arguments may not be shown.
    * `callers`: its parent and its root, of that message, too. `part`: of the key's tasks, by `per=`.
    """

    task_id: str
    age: float
    is_offered: bool = False
    not_before: float | None = None
    ends_in: float | None = None
    place: int = 0
    is_aside: bool = False
    offers: int = 0
    deaths: int = 0
    gives_up: bool = False
    over: str | None = None
    task: str | None = None
    args: str | None = None
    callers: tuple[str, ...] = ()
    part: str = ""
    is_shut: bool = False

    @classmethod
    def of(cls, waiting: Waiting, place: int) -> WaitingTask:
        """Make it of the entry as a store shows it."""
        return cls(
            task_id(waiting.id),
            waiting.age / SECOND,
            waiting.is_offered,
            _seconds(waiting.not_before),
            _seconds(waiting.ends_in),
            0 if waiting.is_aside or waiting.is_shut else place,
            waiting.is_aside,
            waiting.offers,
            waiting.deaths,
            waiting.gives_up,
            waiting.over and task_id(waiting.over),
            part=waiting.part,
            is_shut=waiting.is_shut,
        )


class _Lines:
    """The lines of a state's keys, for `place_of`. A pickled state has none, since it may go elsewhere."""

    __slots__ = ("keys", "store")

    def __init__(self, store: Store | None = None, keys: Sequence[str] = ()) -> None:
        self.store, self.keys = store, keys

    def __reduce__(self) -> tuple[type[_Lines], tuple[()]]:
        return _Lines, ()

    def tasks(self) -> Iterator[WaitingTask]:
        for key in self.keys:
            assert self.store  # noqa: S101 - else there are no keys
            for place, found in enumerate(whole_line(self.store, key), 1):
                yield WaitingTask.of(found.waiting, place)


@dataclass(frozen=True, slots=True, repr=False)
class LockState:
    """The state of a key: its holders, the number of waiting tasks, and the owner of its unique key.

    Of more than ten holders it names ten; `other_holders` is the number of the rest.
    `position` is the place in line that a call would get now, 0 if it would run at once. `unique_holder` is
    the task that holds the unique key; `is_unique_holder_queued`: its body has not begun yet. `line` has the
    first ten tasks in line.
    """

    key: str
    holders: tuple[LockHolder, ...]
    waiting: int
    position: int = 0
    unique_holder: LockHolder | None = None
    is_unique_holder_queued: bool = False
    other_holders: int = 0
    line: tuple[WaitingTask, ...] = ()
    _lines: _Lines = field(default_factory=_Lines, compare=False)

    def place_of(self, task_id: str) -> int | None:
        """Return the place of a task in line, from 1; None: it does not wait.

        0: it is aside, or waits for room of its part.

        For a task behind the first ten this asks the store, once for each 250 tasks ahead of it. A state that
        was pickled knows the first ten only.

        Example:
            result = import_feed.delay(url)
            import_feed.lock_state(url).place_of(result.id)

        Raises:
            StoreUnavailable: the store does not answer.
        """
        tasks = self.line if self.waiting <= len(self.line) else chain(self.line, self._lines.tasks())
        return next((task.place for task in tasks if task.task_id == task_id), None)

    @property
    def is_running(self) -> bool:
        """Whether the task is being executed right now."""
        return any(not holder.is_queued for holder in self.holders)

    @property
    def is_queued(self) -> bool:
        """Whether a task waits in line, or a message with this unique key, or lock, waits for a worker.

        Messages without a unique key that wait in a queue are unknown.
        """
        is_retry_queued = any(holder.is_queued for holder in self.holders)
        return self.waiting > 0 or self.is_unique_holder_queued or is_retry_queued

    def __repr__(self) -> str:
        key, *others = (each.name for each in fields(self) if each.compare)
        names = (key, "is_running", "is_queued", *others)
        return f"LockState({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


@dataclass(frozen=True, slots=True)
class Restart:
    """The result of `task.restart()`. As a string it is one line for people.

    * `result`: the handle of the new call, or, with `outcome` "skipped", of a call that another process has
      published meanwhile. None: nothing was published.
    * `revoked`: the ids of the tasks that have ended, or that no worker begins. `not_ended`: of those that
      were revoked, too, and had a key still when `wait` was over; `problem` says why, as far as it is known.
    """

    result: AsyncResult[Any] | None
    revoked: tuple[str, ...] = ()
    not_ended: tuple[str, ...] = ()
    problem: str = ""

    def __str__(self) -> str:
        done = f"{self.result.id} was published" if self.result else "nothing was published"
        if self.result and getattr(self.result, "outcome", "") == "skipped":
            done = f"nothing was published, since {self.result.id} was called meanwhile"
        told = [done, f"revoked: {', '.join(self.revoked) or 'none'}"]
        if self.not_ended:
            told.append(f"not ended: {', '.join(self.not_ended)} ({self.problem})")
        return "; ".join(told)


class TaskMixin:
    """The attributes of a task with options, besides Celery's."""

    if TYPE_CHECKING:
        exclusive: Exclusive | None
        name: str
        run: Any
        request: Any
        app: Any

    @property
    def lease(self) -> Lease:
        """The lease that this run holds on its lock, or without `exclusive=` on its unique key.

        The lock is held until callbacks and hooks have run, a unique key until the body has ended: after
        that, `check()` of its lease raises LeaseLost.

        Raises:
            NoLease: this run holds none, for instance a direct call, or, with unique= alone, a task whose key
                is not held until it has "finished". NoLease is an ExclusiveError and an AttributeError.
        """
        run = current_run.get()
        is_own = run is not None and run.task_id == self.request.id
        if run and is_own and run.runs_without_lease:
            raise NoLease(
                f"task {self.name} runs without a lease: its lock's store did not answer, and its "
                "on_store_error is 'allow'. Do nothing here that needs the lease or its fence"
            )
        lease = run.body_lease if run and is_own else None
        if lease is None:
            raise NoLease(
                f"task {self.name} holds no lease: only a worker or apply() acquires one, for a task with "
                "exclusive=Exclusive(...), or with unique=Unique(...) until 'finished'; a direct call is a "
                "plain function call, and exclusive=None in a call switches the lock off"
            )
        return lease

    def lock_state(self, *args: Any, headers: Mapping[str, Any] | None = None, **kwargs: Any) -> LockState:
        """Return the state of the lock, and of the unique key, of a call with these arguments.

        This takes one round trip and changes nothing. The state may change before the caller reads it: to
        publish a call only if it is not queued already, use `unique=`.

        Example:
            if import_feed.lock_state(url).is_running: ...

        Parameters:
            args, kwargs: the arguments of the call.
            headers: the headers of its message, if keys are made of headers, too. A parameter of the task
                that is called `headers` must then be given by position.

        Raises:
            OptionError: the task has neither exclusive= nor unique=, or the arguments cannot be a key, or
                `headers` is missing where keys are made of headers.
            TypeError: they do not fit.
            StoreUnavailable: the store does not answer.
        """
        services: Services = self.app._celery_exclusive
        exclusive, unique = services.exclusive(self), services.unique(self)
        keys = keys_of_call(self, "lock_state", args, kwargs, headers)
        seen = services.store.inspect_all(keys)
        for key, snapshot in zip(keys, seen, strict=True):
            if snapshot.problem:
                raise UnreadableKey(key, snapshot.problem, services.store.url)
        lock = seen[0] if exclusive else Snapshot()
        own = seen[-1] if unique else Snapshot()
        has_room = not exclusive or lock.has_room(exclusive.most - lock.waiting)
        holders, unique_holders = _holders(lock.holders), _holders(own.holders)
        phase = own.holders[0].phase if unique_holders else None
        return LockState(
            keys[0],
            unique_holders if phase == "running" and not holders else holders,
            lock.all_waiting + own.all_waiting,  # a copy of a dead run waits for its own key
            position=0 if has_room else lock.waiting + 1,
            unique_holder=unique_holders[0] if unique_holders else None,
            is_unique_holder_queued=phase in NOT_BEGUN,
            other_holders=lock.others,
            line=(*_in_line(lock.line), *_in_line(own.line)),
            _lines=_Lines(services.store, keys),
        )

    def release_lock(
        self,
        *args: Any,
        force: bool = False,
        reason: str = "",
        headers: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> tuple[LockHolder, ...]:
        """Release the lock, and the unique key, of a call with these arguments, and let its line go on.

        `celery -A proj locks release KEY` does the same. Each release is logged as a WARNING, and told to
        monitors as the event `lock-released`.

        Example:
            import_feed.release_lock(url)                  # if it has no holder, but its line is stuck
            import_feed.release_lock(url, force=True, reason="web3 is dead")  # its holder is known to be dead
            send_digest.release_lock(7)                    # if the message of a unique task is lost

        Parameters:
            args, kwargs: the arguments of the call; a parameter that is called `force` or `reason` only by
                position.
            force: release it even if its leases have not expired. A body that still runs continues, and may
                run beside the next one; its `lease.check()` raises LeaseLost, and its end logs the loss.
            reason: why, for the log and the event.
            headers: as for `lock_state`.

        Returns:
            The former holders. There are none, unless by force, or if a unique task had not begun.

        Raises:
            LockHeld: a running task holds it, and `force` is not set; nothing was changed.
            OptionError: the task has neither exclusive= nor unique=, or the arguments cannot be a key.
            TypeError: they do not fit, or `reason` is given and the task has a parameter of that name.
            StoreUnavailable: the store does not answer; trying again is safe.
        """
        services: Services = self.app._celery_exclusive
        if reason and "reason" in signature(self.run).parameters:
            raise TypeError(
                f"task {self.name} has a parameter reason: give it by position. Its release takes no reason="
            )
        keys = keys_of_call(self, "release_lock", args, kwargs, headers)
        released = [release(services, key, force=force, reason=reason) for key in keys]
        return tuple(holder for each in released for holder in _holders(each.former))

    def restart(
        self,
        *args: Any,
        wait: float | None = None,
        headers: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Restart:
        """Revoke the calls that have the key of this call, and publish it in their place.

        With `unique=` until "finished" these are the task that holds the unique key, and the duplicates that
        wait for its end. Otherwise they are the one that holds the lock, those in its line, and the one that
        is queued with `until="started"`. Tasks in line end as REVOKED at once, a queued one when a worker
        receives it (its key is free if all workers have answered), and a body that runs is terminated, as by
        `revoke(terminate=True)`. The new one never runs beside it: if it has not ended in time, the new call
        waits in line; with its unique key, or with on_conflict="skip" or "raise", it is not published.
        Threads, solo workers, and gevent before Celery 5.5 cannot terminate a body: there the restart can
        only ask, and says so.

        Example:
            print(send_digest.restart(7))

        Parameters:
            args, kwargs: the arguments of the call; a parameter that is called `wait` only by position.
            wait: the seconds for which bodies may end. Default None: 10.
            headers: as for `lock_state`; the new call gets them, too.

        Raises:
            OptionError: no key shows which run is meant (`period`, `Debounce`, or "started" alone), or other
                calls may have it at the same time (`key=`, `limit=`, `per=`), or the arguments cannot be one.
            ExclusiveError: this very code runs in a task that would be revoked. Nothing was changed.
            TypeError: they do not fit, or `wait` is given and the task has a parameter of that name.
            StoreUnavailable: the store does not answer; of a new call that may have been sent it has the
                `task_id`, as for `delay()`.
            Exception: broker or result backend do not answer. As with a silent store, old calls may have
                ended, and the new one is not published: `restart()` again does the rest.
            DuplicateTask: another call was published meanwhile, and `on_conflict="raise"`.

        Calls in a queue without a unique key are not known, and stay. Workers forget revocations when they
        restart. If all have before one receives a queued task, it runs, and the new call may end as its
        duplicate. Under `task_always_eager` this is a plain call.
        """
        if wait is not None and "wait" in signature(self.run).parameters:
            raise TypeError(
                f"task {self.name} has a parameter wait: give it by position. Its restart takes no wait="
            )
        keys = keys_of_call(self, "restart", args, kwargs, headers)
        kwargs, headers = call_with_headers(self, kwargs, headers)
        restarting = import_module("celery_exclusive.operate.restarting")  # above: it knows how tasks end
        done: Restart = restarting.restart(self, keys, (args, kwargs, headers), 10 if wait is None else wait)
        return done


class _Absent:
    """An attribute that a task without options does not have. Its error names the fix."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, task: object, cls: Any) -> Any:
        if issubclass(cls, TaskMixin):  # a subclass, which has an option
            return vars(TaskMixin)[self.name].__get__(task, cls)
        raise NoOptions(
            f"task {cls.name} has neither exclusive= nor unique=, and so it has no {self.name}: declare one, "
            "as in @app.task(exclusive=Exclusive())"
        )


def explain_absence(cls: type) -> None:
    """Let the class of a task without options raise an error with the fix for our attributes."""
    for name in ("lease", "lock_state", "release_lock", "restart"):
        if not hasattr(cls, name):
            setattr(cls, name, _Absent(name))


def keys_of_call(
    task: Any, verb: str, args: tuple[Any, ...], kwargs: dict[str, Any], headers: Mapping[str, Any] | None
) -> list[str]:
    """Return the key of the task's lock, if any, and then its unique key. Errors name the caller's `verb`."""
    services: Services = task.app._celery_exclusive
    options = [option for option in (services.exclusive(task), services.unique(task)) if option]
    if not options:
        raise OptionError(f"task {task.name} has neither exclusive= nor unique=, and so it has no key")
    if not kwargs and [*map(type, args)] in ([tuple], [tuple, dict]):
        raise TypeError(
            f"task {task.name}: {verb}() takes the arguments of a call as delay() does, not as apply_async() "
            f"does: write {verb}(1), not {verb}((1,)). For an argument that is a tuple give a list: both "
            "have one key"
        )
    in_key = services.key_headers
    kwargs, headers = call_with_headers(task, kwargs, headers)
    if headers is None:
        name = in_key[0] if in_key else "..."
        raise OptionError(
            f"task {task.name}: its key is made of headers of the message, too. Name them, as in "
            f"{verb}(..., headers={{{name!r}: ...}}), or give headers={{}} for a call without any"
        )
    try:
        return [key_of(task.name, task.run, option, args, kwargs, headers, in_key) for option in options]
    except TypeError as error:
        raise TypeError(f"task {task.name}: {verb}() takes the arguments of a call: {error}") from error


def call_with_headers(
    task: Any, kwargs: dict[str, Any], headers: Mapping[str, Any] | None
) -> tuple[dict[str, Any], Mapping[str, Any] | None]:
    """Return the arguments of a call, and its headers: those that its keys do not need are an argument."""
    services: Services = task.app._celery_exclusive
    options = [option for option in (services.exclusive(task), services.unique(task)) if option]
    if any(needs_headers(option, task.run, services.key_headers) for option in options):
        return kwargs, headers
    return kwargs if headers is None else {**kwargs, "headers": headers}, {}


def _holders(owners: Iterable[Owner]) -> tuple[LockHolder, ...]:
    return tuple(map(LockHolder.of, owners))


def _in_line(line: Iterable[Waiting]) -> Iterator[WaitingTask]:
    return (WaitingTask.of(waiting, place) for place, waiting in enumerate(line, 1))


def _seconds(time: int | None) -> float | None:
    return None if time is None else time / SECOND
