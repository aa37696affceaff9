"""Every store behaves as `step` does: random histories, on each store, in virtual time.

The reference is the memory store, which runs `step` itself. HISTORIES=10000 runs more of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from secrets import token_hex
from typing import Any

import pytest
from hypothesis import given, settings

from celery_exclusive.core.operations import (
    Acquire,
    AcquireAlone,
    Applied,
    Granted,
    KeyOperation,
    Release,
    Remove,
    Requeue,
)
from celery_exclusive.core.records import ENDED_AT_ONCE, NEVER, SECOND, SENT, SOON, Part
from celery_exclusive.core.room import Terms
from celery_exclusive.stores.base import Reply, Snapshot, Wake
from celery_exclusive.stores.document_store import NOTHING, Change, Loaded, Reads
from celery_exclusive.stores.memory import MemoryStore
from celery_exclusive.stores.redis.cluster import ClusterStore, _with_epoch, bucket_of
from celery_exclusive.stores.redis.store import RedisStore
from celery_exclusive.stores.sql.mysql import MysqlStore
from celery_exclusive.stores.sql.postgres import PostgresStore
from celery_exclusive.stores.sql.sqlite import SqliteStore
from celery_exclusive.stores.sql.store import SqlStore
from celery_exclusive.stores.sql.transaction import Transaction
from celery_exclusive.stores.text import to_text
from tests.servers import RedisServer
from tests.store.conftest import Database
from tests.store.histories import (
    LIMITS,
    OFFER,
    RARE,
    TOMBSTONE,
    Action,
    ComeAgain,
    Crowd,
    Finish,
    Follow,
    Give,
    Ignore,
    Keep,
    Reap,
    Take,
    Wait,
    histories,
)
from tests.store.terms import TERMS, histories_with_terms

pytestmark = [
    pytest.mark.timeout(600),  # it computes, and a busy machine is no bug
    pytest.mark.promise(
        "The quick ways of the Redis store do what `step` does, also for a run with its message behind it, "
        "and for a key with rates (`RARE` histories)",
        name="quick ways",
        figure=(
            "15 lines of quick.lua broken one by one, all found but the limit that a grant writes, which "
            "nothing reads; 13 of the ways of a key with rates, all found but two that change nothing: a "
            "grain that counts no more, and another number of units"
        ),
    ),
    pytest.mark.promise(
        "Each store does what `step` does, in random histories in virtual time, most of them with "
        "lines of 15 to 30 and limits of 1, 6 and 20, or up to 400 holders, in those written by hand, and "
        "where it answers at once. The times at which a sweep has to look at a key are equal, too, unless "
        "leases are renewed or, in a database, messages in line expire",
        name="differential",
        broke=(
            "Lua broken in about 40 ways, all caught but two that cannot be observed; a `Restore` that "
            "reads as far as a limit of 1 reaches; SQLite: counts of tasks aside; `due` not compared; "
            "PostgreSQL: a fence by the clock alone, a grant of a held key, a release of a lease that has "
            "ended; MariaDB: rows counted that stay as they were, a prepared statement where there is none; "
            "red before, in each database: leases that no step had read, deleted with those that it ended"
        ),
        figure=(
            "50 histories per store in `make test`, 8 on a database server, 5 on a Redis Cluster, and half "
            "as many with rates, costs, parts and limits of operators; 5,000 "
            "in `make test-all`, and the two longest of those written by hand; 5,000 on Redis once, in 166 "
            "s; 400 on PostgreSQL and on MariaDB, there also where nothing is prepared, as on MySQL"
        ),
        command="HISTORIES=5000 pytest tests/store/test_differential.py",
    ),
    pytest.mark.proves("one command, repeated", "owned keys"),
]
HISTORIES = int(os.environ.get("HISTORIES", "50"))
LONG = 100
"""More actions than these make a history long: `make test-all` tries it."""
GRACE = 60 * SECOND
"""How much longer than told the reference keeps a tombstone, in case the clock is set back."""
START = 1_700_000_000 * SECOND
numbers = count()
Tested = MemoryStore | RedisStore | ClusterStore | SqliteStore | PostgresStore | MysqlStore
OpenStore = Callable[[], Tested]


class FencePerKey(MemoryStore):
    """Counts fences by key, as SQL does: the reaper forgets those of unused keys, but the highest of them."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self.fences: dict[str, int] = {}
        self.floor = 0

    def load(self, key: str, reads: Reads = NOTHING) -> Loaded:
        loaded = super().load(key, reads)
        fence = max(self.fences.get(key, 0), self.floor)
        return replace(loaded, document=replace(loaded.document, fence=fence))

    def swap(self, key: str, version: int, change: Change) -> bool:
        self.fences[key] = change.transition.document.fence
        return super().swap(key, version, change)

    def due(self, limit: int, every: int) -> list[str] | None:
        due = super().due(limit, every)
        for key in list(self.fences) if due is not None else ():
            kept = self._memory.keys.get(key)
            if not kept or kept.is_over(self.clock()):
                self.floor = max(self.floor, self.fences.pop(key))
        return due


class ReadsAll(MemoryStore):
    """Gives a step all holders of a key and the entries behind all their runs, also of a key with many."""

    def load(self, key: str, reads: Reads = NOTHING) -> Loaded:
        loaded = super().load(key, reads)
        kept = self._memory.keys.get(key)
        if not kept or len(kept.ends) > ENDED_AT_ONCE:
            return loaded
        document = replace(
            loaded.document, holders=tuple(kept.holders.values()), unread=0, unread_expiry=NEVER
        )
        behind = tuple(entry for entry in kept.entries.values() if entry.state == "behind")
        line = replace(loaded.line, behind=behind, others_behind=0)
        return replace(loaded, document=document, line=line)


class FencePerBucket(FencePerKey):
    """Counts fences as a cluster does, where no bucket forgets the last one."""

    def due(self, limit: int, every: int) -> list[str] | None:
        return MemoryStore.due(self, limit, every)


class Twin:
    """One store, and what its workers know."""

    def __init__(self, store: Tested) -> None:
        self.store = store
        self.time = START
        self.epoch = "none yet"
        self.published: list[Wake] = []
        self.started: list[tuple[str, str, str]] = []
        self.sent: list[bool] = []
        self.renewed: set[str] = set()
        """Keys that it may look at too early, since a lease was renewed."""
        self.expiring: set[str] = set()
        """Keys that it may look at too early, since messages in line expire."""
        for part in store.buckets if isinstance(store, ClusterStore) else [store]:
            part.clock = lambda: self.time

    def redis(self, key: str) -> RedisStore:
        """What has the data of a key."""
        if isinstance(self.store, ClusterStore):
            return self.store.buckets[bucket_of(key)]
        assert isinstance(self.store, RedisStore)
        return self.store

    def do(self, action: Action) -> object:
        if isinstance(action, Keep):
            return self.store.renew(action.leases)
        if isinstance(action, Crowd):
            return [self.plain(self.take(take)) for take in action.takes()]
        reply = self.reply(action)
        return reply and self.plain(reply)

    def reply(self, action: Action) -> Reply | None:
        if isinstance(action, Take):
            return self.take(action)
        if isinstance(action, Follow) and self.published:
            wake = self.published[action.number % len(self.published)]
            kind = "both" if action.is_redelivered else "promoted"
            copy = Take(wake.key, wake.id, "t3", 30 * SECOND, None, kind, wake.message, late=action.late)
            return self.take(replace(copy, **{name: getattr(action, name) for name in TERMS}))
        if isinstance(action, (Finish, ComeAgain)) and self.started:
            key, id, token = self.started.pop(action.number % len(self.started))
            if isinstance(action, Finish):
                end: Release | Requeue = Release(id, token, action.ending)
            else:
                end = Requeue(id, token, action.ttl)
            return self.store.apply(key, end)
        if isinstance(action, Give):
            return self.give(action.key, action.operation)
        if isinstance(action, Reap):
            return self.reap(action)
        return None

    def give(self, key: str, operation: KeyOperation) -> Reply:
        """Do an operation, and note whether it has sent a message: Redis does, others keep the mark alone."""
        if not (isinstance(operation, AcquireAlone) and operation.sends):
            return self.store.apply(key, operation)
        if isinstance(self.store, (RedisStore, ClusterStore)):
            store = self.redis(key)
            reply = store.acquire_and_push(key, operation, f"{store._base}sent", b"message")
            assert reply
            if reply.epoch and isinstance(self.store, ClusterStore):  # which never pushes itself
                reply = _with_epoch(reply, self.store.epoch())
            self.sent.append(store._client.ask("LPOP", f"{store._base}sent") is not None)
            return reply
        if not isinstance(self.store, MemoryStore):
            return self.store.apply(key, operation)
        kept = self.store._memory.keys
        before = kept[key].tombstones.get(operation.id) if key in kept else None
        reply = self.store.apply(key, operation)
        mark = kept[key].tombstones.get(operation.id) if key in kept else None
        self.sent.append(mark != before and mark is not None and mark[1] == SENT)
        return reply

    def reap(self, reap: Reap) -> Reply:
        due = sum(time <= self.time for time in self.due().values())
        reply = self.store.reap(reap.limit, reap.every, recovers_until=reap.recovers_until)
        assert reply.time == self.time
        if reply.answer == Applied(True):
            self.drop_ended_leases()
        looks = reply.answer == Applied(True)
        assert (reply.swept, reply.more) == (min(due, reap.limit) * looks, looks and due > reap.limit)
        soon = [max(time - self.time, 0) for time in self.due().values() if time < self.time + SOON]
        assert reply.due_in == (min(soon, default=None) if looks else None)
        return reply

    def take(self, take: Take) -> Reply:
        promoted = {"promoted": self.epoch, "both": self.epoch, "stranger": "of another store"}.get(take.kind)
        redelivered = take.kind in ("redelivered", "both")
        limit = take.limit or LIMITS[take.key]
        reply = self.store.apply(
            take.key,
            Acquire(
                take.id,
                take.token,
                take.ttl,
                limit,
                redelivered,
                promoted,
                take.late,
                take.message,
                at_once=take.at_once,
                recovers=take.recovers and take.late,
                expires_in=take.expires_in,
                gives_up_in=take.gives_up_in,
                replaces=take.replaces,
                joins=take.joins,
                max_waiting=take.max_waiting,
                takes_over=take.takes_over,
                order=take.order,
                queue=take.queue,
                cost=take.cost,
                rates=take.rates,
                part=take.part,
                weight=take.weight,
                part_limit=take.part_limit,
                part_rates=take.part_rates,
            ),
        )
        if isinstance(reply.answer, Granted):
            self.started.append((take.key, take.id, take.token))
        return reply

    def plain(self, reply: Reply) -> Reply:
        """Without what may differ: the text of the epoch, which key the reaper came to first, how many."""
        assert all(wake.epoch == reply.epoch for wake in reply.wake)
        if reply.epoch:
            assert self.epoch in ("none yet", reply.epoch)
            self.epoch = reply.epoch
        wakes = tuple(sorted((replace(wake, epoch="") for wake in reply.wake), key=lambda wake: wake.key))
        self.published = [*self.published, *wakes][-8:]
        aside = tuple(sorted(reply.aside, key=lambda pair: pair[0]))
        return Reply(reply.answer, wakes, aside, "told" if reply.epoch else "")

    def look(self) -> tuple[object, ...]:
        pages = {key: self.store.line(key) for key in LIMITS}
        snapshots = {key: without_idle_rates(self.store.inspect(key)) for key in LIMITS}
        return snapshots, pages, sorted(self.store.places()), self.parts()

    def parts(self) -> dict[str, list[Part]]:
        """The parts with tasks that wait, or a time. What others hold may have ended by the clock alone."""
        store: Any = self.store
        found = {key: sorted(store.parts(key), key=lambda part: part.name) for key in LIMITS}
        return {
            key: [replace(part, held=0) for part in parts if part.waiting or part.shut or part.due < NEVER]
            for key, parts in found.items()
        }

    def drop_ended_leases(self) -> None:
        """What a sweep drops of keys without a line, Redis drops by itself, in real time."""
        if isinstance(self.store, (RedisStore, ClusterStore)):
            for key in LIMITS:
                store = self.redis(key)
                name = f"{store._base}l:{key}"
                text = to_text(store._client.ask("HGET", name, "") or b"1 0 0 1 0 0 0")
                *terms, counts = text.split("\n")
                meta = counts.split()
                if int(meta[3]) > self.time or any(map(int, meta[4:])):
                    continue
                if Terms.of_text("\n".join(terms)).at(self.time).last(self.time) > self.time:
                    self.store.apply(key, Remove("nobody"))
                else:
                    store._client.ask("DEL", name)

    def drop_ended_tombstones(self) -> None:
        """Which of them a sweep, or Redis by itself, has dropped already is not promised."""
        if isinstance(self.store, MemoryStore):
            for kept in self.store._memory.keys.values():
                kept.tombstones = {id: it for id, it in kept.tombstones.items() if it[0] > self.time}
        elif isinstance(self.store, SqlStore):
            ended = "DELETE FROM exclusive2_tombstone WHERE until <= ?"
            self.store.transact(lambda transaction: transaction.cursor.execute(ended, (self.time,)))
        else:
            for store in map(self.redis, LIMITS):
                ask = store._client.ask
                for name in ask("KEYS", f"{store._base}t:*"):
                    if int(ask("GET", name).split()[0]) <= self.time:
                        ask("DEL", name)

    def due(self) -> dict[str, int]:
        """When the reaper must look at which key."""
        if isinstance(self.store, MemoryStore):
            kept = self.store._memory.keys.items()
            return {key: value.due for key, value in kept if value.due is not None}
        if isinstance(self.store, SqlStore):
            rows = self.store.transact(lambda transaction: rows_of(transaction, "lock", "key, due, ends"))
            return {key: due for key, due, ends in rows if due is not None and ends is None}
        due = {}
        for store in map(self.redis, LIMITS):
            flat = store._client.ask("ZRANGE", f"{store._base}due", 0, -1, "WITHSCORES")
            due.update({flat[i].decode(): int(float(flat[i + 1])) for i in range(0, len(flat), 2)})
        return {key: time for key, time in due.items() if time < NEVER}


def without_idle_rates(snapshot: Snapshot) -> Snapshot:
    """When a store forgets a rate of which no start counts is not promised, nor the units of ended leases."""
    rates = tuple(rate for rate in snapshot.terms.rates if rate.log)
    extra = snapshot.terms.extra if snapshot.holders else 0
    return replace(snapshot, terms=replace(snapshot.terms, rates=rates, extra=extra))


def rows_of(transaction: Transaction, table: str, columns: str) -> list[Any]:
    """Some columns of the namespace's rows, the first of them as text."""
    select = f"SELECT {columns} FROM exclusive2_{table} WHERE namespace = ?"
    transaction.cursor.execute(select, (transaction.namespace,))
    return [(to_text(key), *values) for key, *values in transaction.cursor.fetchall()]


def hold_equal(reference: Twin, other: Twin, history: list[Action]) -> None:
    for action in history:
        if isinstance(action, Wait):
            if action.time < 0:  # else a lease that nobody saw end may live again
                for key in LIMITS:
                    compare(reference, other, Give(key, Remove("nobody")))
            if action.time < -GRACE:
                reference.drop_ended_tombstones()
                other.drop_ended_tombstones()
            reference.time = other.time = reference.time + action.time
        elif isinstance(action, Ignore):
            for times_left in reversed(range(action.times)):
                due = reference.due().values()
                reference.time = other.time = max(reference.time, min(due, default=0))
                if times_left or action.is_seen:
                    compare(reference, other, Reap(100, 0))
        else:
            compare(reference, other, action)


def compare(reference: Twin, other: Twin, action: Action) -> None:
    """Do the same on both: all that can be seen must be equal, and the times to look at a key.

    A renewal may leave that time as it was: then it is early, but only once. The reference may be early
    instead, since a renewal reads only its own of many holders. When the first message in line expires may be
    early in a database, too.
    """
    expected, found = reference.do(action), other.do(action)
    assert found == expected, f"{action} at {(reference.time - START) / SECOND} s"
    assert other.look() == reference.look(), action
    assert not other.sent or other.sent == reference.sent
    due, early = reference.due(), other.due()
    assert early.keys() == due.keys()
    if isinstance(action, Keep):
        other.renewed |= {key for key, _ in action.leases}
    asked = getattr(action, "operation", action)
    deadlines = (getattr(asked, name, None) for name in ("expires_in", "gives_up_in", "replaces"))
    if (
        any(it not in (None, False) for it in deadlines)
        and isinstance(action, (Take, Give))
        and isinstance(other.store, SqlStore)
    ):
        other.expiring.add(action.key)
    other.renewed -= {key for key in LIMITS if early.get(key) == due.get(key)}
    for key in due:
        may_be_early = key in other.renewed | other.expiring or isinstance(reference.store, ReadsAll)
        is_early = early[key] < due[key] and may_be_early
        is_left = early[key] > due[key] and key in other.renewed
        assert early[key] == due[key] or is_early or is_left, action
    if isinstance(action, Reap) and action.limit and not action.every:
        assert all(early[key] > other.time or due[key] <= other.time for key in due)


@pytest.fixture(scope="module", params=["memory", "redis", "cluster", "sqlite", "postgres", "maria"])
def open_tested(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OpenStore]:
    if request.param == "memory":
        yield lambda: MemoryStore(f"memory://{next(numbers)}", offer=OFFER, tombstone_ttl=TOMBSTONE)
        return
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('differential')}/locks.db"
        yield lambda: SqliteStore(url, prefix=f"h{next(numbers)}", offer=OFFER, tombstone_ttl=TOMBSTONE)
        return
    if kind := {"postgres": PostgresStore, "maria": MysqlStore}.get(request.param):
        database: Database = request.getfixturevalue(f"{request.param}_database")
        database.empty()
        yield lambda: kind(database.url, prefix=f"h{next(numbers)}", offer=OFFER, tombstone_ttl=TOMBSTONE)
        return
    if request.param == "cluster":
        url = f"{request.getfixturevalue('redis_cluster_url')}?socket_timeout=30"  # six nodes, a busy machine
        yield lambda: ClusterStore(
            url, prefix=f"h{token_hex(4)}{next(numbers)}", offer=OFFER, tombstone_ttl=TOMBSTONE
        )
        return
    server: RedisServer = request.getfixturevalue("redis_server")
    server.refresh()
    store = RedisStore(server.url, offer=OFFER, tombstone_ttl=TOMBSTONE)

    def empty() -> RedisStore:
        store._client.ask("FLUSHALL")
        return store

    yield empty
    store.close()


def test_every_store_does_what_the_reference_does(
    open_tested: OpenStore, request: pytest.FixtureRequest
) -> None:
    check_histories(open_tested, request, histories)


def test_every_store_does_what_the_reference_does_with_terms(
    open_tested: OpenStore, request: pytest.FixtureRequest
) -> None:
    check_histories(open_tested, request, histories_with_terms(), share=2)


def check_histories(open_tested: OpenStore, request: pytest.FixtureRequest, of: Any, share: int = 1) -> None:
    """A part of the histories where each takes longer, and the code of one key is that of another store."""
    parts = {"cluster": 10, "postgres": 6, "maria": 6, "memory": 3}
    part = parts.get(request.node.callspec.params["open_tested"], 1)

    @settings(max_examples=HISTORIES // part // share)
    @given(of)
    def check(history: list[Action]) -> None:
        hold_to_the_reference(open_tested(), history)

    check()


@pytest.mark.parametrize(
    "history",
    [
        pytest.param(history, id=name, marks=[pytest.mark.large] * (len(history) > LONG))
        for name, history in RARE.items()
    ],
)
def test_every_store_does_what_the_reference_does_in_rare_histories(
    open_tested: OpenStore, history: list[Action]
) -> None:
    hold_to_the_reference(open_tested(), history)


def hold_to_the_reference(store: Tested, history: list[Action]) -> None:
    kinds = {SqlStore: FencePerKey, ClusterStore: FencePerBucket, MemoryStore: ReadsAll}
    kind = next((kind for tested, kind in kinds.items() if isinstance(store, tested)), MemoryStore)
    reference = kind(f"memory://{next(numbers)}", offer=OFFER, tombstone_ttl=TOMBSTONE)
    hold_equal(Twin(reference), Twin(store), history)
    if isinstance(store, RedisStore):
        all_ends_by_itself_but_what_waits(store)
    if isinstance(store, ClusterStore):
        for bucket in map(bucket_of, LIMITS):
            all_ends_by_itself_but_what_waits(store.buckets[bucket])
        store.close()
    if isinstance(store, SqlStore):
        store.transact(the_rows_agree)
        store.close()


def the_rows_agree(transaction: Transaction) -> None:
    """A lock counts its line and its many holders, and ends by itself only without a line and terms of parts.

    A key that is not used has no parts.
    """
    lines = rows_of(transaction, "line", "key, state")
    entries = [(key, "shut" if state.startswith("shut") else state) for key, state in lines]
    parts, used = rows_of(transaction, "part", "key, due"), set[str]()
    dues = {key for key, due in parts if due is not None}
    for key, ends, *counted in rows_of(transaction, "lock", "key, ends, waiting, aside, behind, shut"):
        assert counted == [entries.count((key, state)) for state in ("waiting", "aside", "behind", "shut")]
        assert (ends is None) == (any(counted) or key in dues)
        used |= {key} if ends != 0 else set()
    assert used >= {key for key, _ in parts}
    holders = [key for key, _ in rows_of(transaction, "holder", "key, id")]
    for key, document in rows_of(transaction, "lock", "key, document"):
        if held := json.loads(document).get("held"):
            assert holders.count(key) == held


def all_ends_by_itself_but_what_waits(store: RedisStore) -> None:
    of_lines = {key: [f"{store._base}{kind}:{key}" for kind in "md"] for key in LIMITS}  # d: of parts
    lines = {key for key in LIMITS if store._client.ask("EXISTS", *of_lines[key])}
    kept = {f"{kind}:{key}" for kind in "lqabosempd" for key in lines} | {"due", "fence", "epoch", "run"}
    for name in store._client.ask("KEYS", f"{store._base}*"):
        if store._client.ask("PTTL", name) == -1:
            assert name.decode().removeprefix(store._base) in kept
    for key in lines:
        assert store._client.ask("PTTL", f"{store._base}l:{key}") == -1
