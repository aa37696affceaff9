"""A client of a round: a process that makes calls, and writes them to its file."""

from __future__ import annotations

import mmap
import os
import sys
import time
from pathlib import Path
from typing import Any

from celery_exclusive.core.operations import Acquire, AcquireAlone, Applied, Enqueue, Reap, Renew
from celery_exclusive.errors import NotDone, StoreUnavailable
from celery_exclusive.stores.base import Reply, Store
from celery_exclusive.stores.memcached.store import MemcachedStore
from celery_exclusive.stores.redis.cluster import ClusterStore
from celery_exclusive.stores.redis.store import RedisStore
from celery_exclusive.system.deadline import deadline
from tests import nursery
from tests.concurrent.actor import Actor
from tests.concurrent.calls import NOT_DONE, Asked, Call, Keep, Look, write
from tests.concurrent.faults import planted
from tests.concurrent.round import KEYS, Round

ROOT = Path(__file__).parents[2]
PAUSE = 0.02
HOUR = 3_600_000_000


class Process(nursery.Nursery):
    """A process that is a client in one round after another."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "tests.concurrent.client"]
        super().__init__(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path})

    def run(self, plan: Round, number: int) -> None:
        if self.ask(plan.dump(), number) != "done":
            raise RuntimeError(f"client {number} has failed")

    def close(self) -> None:
        self._process.communicate()


class Progress:
    """How many calls each client of a round has made, and whether its troubles are over, in shared memory."""

    def __init__(self, plan: Round) -> None:
        with (plan.folder / "progress").open("a+b") as file:
            file.truncate(8 * (plan.clients + 1))
            numbers = memoryview(mmap.mmap(file.fileno(), 8 * (plan.clients + 1))).cast("q")
        self._made, self._over = numbers[:-1], numbers[-1:]

    def note(self, client: int, calls: int) -> None:
        self._made[client] = calls

    @property
    def calls(self) -> int:
        return sum(self._made)

    @property
    def is_over(self) -> bool:
        return bool(self._over[0])

    def end(self) -> None:
        self._over[0] = 1


class Client:
    """Makes the calls of one client."""

    def __init__(self, plan: Round, number: int) -> None:
        self._plan, self._number = plan, number
        self._stores = plan.open_stores()
        self._stale = plan.open_stores(plan.stale_url) if plan.stale_url else {}
        self._now = 0
        self._nows: list[int] = []
        self._opened = 0
        for store in {*self._stores.values(), *self._stale.values()}:
            self._wait(store)  # connects
            self._watch(store)

    def run(self) -> None:
        """Make all calls, and go on until one has begun after the last trouble, so that each meets some."""
        actor, progress, calls = Actor(self._plan, self._number), Progress(self._plan), list[Call]()
        made, was_over = 0, False
        while made < self._plan.calls or not was_over:
            if made >= self._plan.calls:
                time.sleep(PAUSE)
            was_over = progress.is_over
            call = self._call(*actor.next())
            actor.hear(call)
            calls += call.parts
            if not call.is_answered or call.reply == NOT_DONE:
                self._wait(self._stores[call.key])
            made = sum(it.is_answered and it.reply != NOT_DONE for it in calls)
            progress.note(self._number, made)
        self._end(calls)

    def sweep(self) -> None:
        """Let a run of each key die, sweep and look, while no other client calls: the sweep must find it."""
        dies = Acquire("dies", "token", 1, 1_000, message=b"of a run that dies", recovers=True, order="any")
        self.make(*((key, operation) for key in KEYS for operation in (dies, Reap(), Look())))

    def make(self, *asked: tuple[str, Asked]) -> list[Call]:
        """Make these calls alone."""
        calls = [self._call(*it) for it in asked]
        self._end(calls)
        return calls

    def _end(self, calls: list[Call]) -> None:
        write(self._plan.folder / f"{self._number}.calls", calls)
        for store in {*self._stores.values(), *self._stale.values()}:
            store.close()

    def _call(self, key: str, operation: Asked) -> Call:
        self._nows.clear()
        self._opened, reply, is_answered = 0, "", True
        self._now = since = time.time_ns() // 1000
        begin = time.monotonic_ns() // 1000
        try:
            with deadline(self._plan.patience):
                reply = self._ask(key, operation)
        except NotDone:
            reply = NOT_DONE
        except StoreUnavailable as error:
            reply, is_answered = str(error), False
        end = time.monotonic_ns() // 1000
        return Call(
            client=self._number,
            key=key,
            operation=operation,
            begin=begin,
            since=since,
            end=end if is_answered else None,
            last=None if is_answered else end,
            until=time.time_ns() // 1000 if is_answered else 0,
            nows=self._instants(since),
            reply=reply,
            has_connected=self._opened > 0,
        )

    def _instants(self, since: int) -> tuple[int, ...]:
        if not self._plan.has_line:
            return tuple(dict.fromkeys(self._nows))
        return (since,) if self._plan.is_timed else ()

    def _ask(self, key: str, operation: Asked) -> Any:
        store = self._stores[key]
        if isinstance(operation, Look):
            return (self._stale or self._stores)[key].inspect(key)
        if isinstance(operation, Reap):
            return store.reap(recovers_until=operation.recovers_until)
        if isinstance(operation, Keep):
            return store.renew(operation.leases)
        if isinstance(operation, Renew):
            (is_held,) = store.renew([(key, operation)])
            if is_held is None:
                raise StoreUnavailable("the lease may be renewed")
            return Reply(Applied(is_held))
        if isinstance(store, RedisStore) and isinstance(operation, (AcquireAlone, Enqueue)):
            return self._publish(store, key, operation)
        return store.apply(key, operation)

    def _publish(self, store: RedisStore, key: str, operation: AcquireAlone | Enqueue) -> Reply | None:
        """Ask as a publisher does: with the message, or with a request that is sent before there is one."""
        if isinstance(operation, Enqueue) or operation.sends:
            message = f"{self._number} {self._now}".encode()
            return store.acquire_and_push(key, operation, self._plan.list, message)
        begun = store.begin(key, operation)
        return store.finish(key, operation, begun) if begun else store.apply(key, operation)

    def _wait(self, store: Store) -> None:
        """Wait until the store answers again."""
        while True:
            try:
                with deadline(self._plan.patience):
                    store.times()
                return
            except StoreUnavailable:
                time.sleep(PAUSE)

    def _watch(self, store: Any) -> None:
        """Let the store take the instant of a call for its clock, or tell its own; count its connections."""
        if isinstance(store, MemcachedStore):
            read = store._clock

            def note(answer: Any) -> Any:
                clock = read(answer)
                self._nows.append(clock.now)
                return clock

            store._clock = note  # type: ignore[method-assign]
        elif self._plan.is_timed:
            for part in getattr(store, "buckets", [store]):
                part.clock = lambda: self._now
        nodes = store._nodes._nodes.values() if isinstance(store, ClusterStore) else ()
        for client in nodes or [getattr(store, "_client", store)]:
            for name in ("_open", "_connect"):
                if hasattr(client, name):
                    self._count(client, name)

    def _count(self, owner: Any, name: str) -> None:
        connect = getattr(owner, name)

        def count(*arguments: Any, **options: Any) -> Any:
            self._opened += 1
            return connect(*arguments, **options)

        setattr(owner, name, count)


def main() -> None:
    for text, number in nursery.questions():
        plan = Round.load(text)
        with planted(plan.fault):
            Client(plan, number).run()
        nursery.answer("done")


if __name__ == "__main__":
    main()
