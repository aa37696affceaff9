"""What only a PostgreSQL store can do well or badly: its rows, its costs, and others at the same time."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from celery_exclusive.core.operations import (
    Acquire,
    AcquireAlone,
    Applied,
    Break,
    Ending,
    Granted,
    Held,
    Parked,
    Release,
    Remove,
    Renew,
    Stale,
)
from celery_exclusive.core.records import SECOND, reach
from celery_exclusive.core.step import step
from celery_exclusive.stores.base import open_store
from celery_exclusive.stores.sql import transaction
from celery_exclusive.stores.sql.postgres import PostgresStore
from celery_exclusive.stores.sql.transaction import Transaction
from tests.postgres import PostgresServer

LIFE = 30 * SECOND
START = 1_700_000_000 * SECOND
StartPostgres = Callable[..., PostgresServer]


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    opened = open_postgres(postgres_url)
    yield opened
    opened.close()


@pytest.fixture
def other(postgres_url: str) -> Iterator[PostgresStore]:
    """Another process, as far as the server can tell."""
    opened = open_postgres(postgres_url)
    yield opened
    opened.close()


def open_postgres(url: str) -> PostgresStore:
    opened = open_store(url)
    assert isinstance(opened, PostgresStore)
    return opened


def take(id: str, ttl: int = LIFE, *, message: bytes | None = b"message") -> Acquire:
    return Acquire(id, f"token of {id}", ttl, message=message)


def give(id: str, ending: Ending = "done") -> Release:
    return Release(id, f"token of {id}", ending)


def rows(server: PostgresServer, query: str, *values: object) -> list[Any]:
    with server.connect() as connection:
        return connection.execute(query, values).fetchall()  # type: ignore[call-overload,no-any-return]


def test_a_lease_is_readable_with_psql(store: PostgresStore, postgres_server: PostgresServer) -> None:
    granted = store.apply("key", take("a")).answer
    assert isinstance(granted, Granted)
    found = rows(postgres_server, "SELECT key, fence, ends, document FROM exclusive2_lock")
    ((key, fence, ends, document),) = found
    holder = {"id": "a", "token": "token of a", "expiry": granted.fence + LIFE, "fence": granted.fence}
    assert (key, fence, ends) == (b"key", granted.fence, granted.fence + LIFE)
    assert json.loads(document) == {"limit": 1, "holders": [{**holder, "waited": False, "phase": "running"}]}


class Log:
    """The statements that a server was sent."""

    def __init__(self, server: PostgresServer) -> None:
        self._server, self._read = server, len(server.log())

    def new(self) -> list[str]:
        found = self._server.log()[self._read :]
        self._read += len(found)
        return re.findall(r"LOG:  (?:statement|execute [^:]+): (\w+)", found)


def test_a_free_key_is_acquired_and_released_by_one_statement_each(start_postgres: StartPostgres) -> None:
    server = start_postgres(log_statement="all")
    store = open_postgres(server.url)
    store.epoch()
    log = Log(server)

    def sent(ask: Callable[[], object]) -> list[str]:
        log.new()
        ask()
        return log.new()

    for _ in range(4):  # new, and again; planned, and prepared
        assert sent(lambda: store.apply("key", take("a"))) == ["WITH"]
        assert sent(lambda: store.apply("key", give("a"))) == ["UPDATE"]
    alone = AcquireAlone("a", "t", LIFE, phase="queued")
    assert sent(lambda: store.apply("unique", alone)) == ["WITH"]
    store.apply("key", take("a"))
    held = ["WITH", "BEGIN", "SELECT", "SELECT", "COMMIT"]
    assert sent(lambda: store.apply("key", take("b", message=None))) == held
    parked = ["WITH", "BEGIN", "SELECT", "SELECT", "UPDATE", "INSERT", "COMMIT"]
    assert sent(lambda: store.apply("key", take("b"))) == parked
    leases = [("key", Renew("a", "token of a", LIFE)), ("unique", Renew("a", "t", LIFE))]
    assert sent(lambda: store.renew(leases)) == ["BEGIN", "SELECT", "UPDATE", "UPDATE", "COMMIT"]
    store.close()


def test_what_is_answered_at_once_is_what_step_answers_and_leaves(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the differential test sees no difference: in the rows."""
    monkeypatch.setattr(other, "_at_once", lambda *_: None)
    store.clock = other.clock = lambda: START
    for key, by in (("one", store), ("two", other)):
        by.apply(key, take("a"))
        by.apply(key, give("a"))
        by.apply(key, Acquire("b", "t", LIFE, limit=3))
    found = store.transact(lambda transaction: [row_of(transaction, key) for key in ("one", "two")])
    assert found[0] == found[1]


def row_of(transaction: Transaction, key: str) -> list[object]:
    columns = "fence, due, ends, waiting, aside, behind, document"
    transaction.cursor.execute(f"SELECT {columns} FROM exclusive2_lock WHERE key = ?", (key.encode(),))
    return transaction.cursor.fetchall()


def test_a_late_request_of_a_run_that_has_finished_is_stale(store: PostgresStore) -> None:
    again = Acquire("a", "token of a", LIFE, redelivered=True)
    assert isinstance(store.apply("key", again).answer, Granted)
    store.apply("key", give("a"))
    assert store.apply("key", take("a")).answer == Stale()


def test_a_fence_is_above_that_of_a_row_which_the_reaper_deleted_meanwhile(
    store: PostgresStore, other: PostgresStore
) -> None:
    """Somebody has found no row of the key, and stands still while another's whole lease comes and goes."""
    fences: list[int] = []

    def acquire_slowly(transaction: Transaction) -> object:
        loaded = transaction.load("key", "a")
        if not fences:
            granted = other.apply("key", take("b")).answer
            assert isinstance(granted, Granted)
            fences.append(granted.fence)
            other.apply("key", give("b"))
            other.reap()
            assert list(other.scan()) == []
        reply = transaction._carry_out("key", take("a"), loaded) or transaction.apply("key", take("a"))
        return reply.answer

    store.clock = lambda: START  # its clock is late, too
    granted = store.transact(acquire_slowly)
    assert isinstance(granted, Granted)
    assert granted.fence > fences[0]


def test_the_reaper_waits_until_a_grant_that_has_read_the_fence_is_done(
    store: PostgresStore, other: PostgresStore, postgres_server: PostgresServer
) -> None:
    granted = store.apply("key", take("a")).answer
    with postgres_server.connect() as stranger, ThreadPoolExecutor(2) as pool:
        stranger.execute("BEGIN; DELETE FROM exclusive2_lock")  # whoever wants the key has to wait now
        granting = pool.submit(other.apply, "key", take("b"))
        wait_until_blocked(postgres_server, 1)
        reaping = pool.submit(store.reap)
        wait_until_blocked(postgres_server, 2)
        stranger.execute("COMMIT")
        assert reaping.result().answer == Applied(True)
        assert granting.result().answer != granted


def wait_until_blocked(server: PostgresServer, count: int, unless: Future[Any] | None = None) -> None:
    """Wait until so many connections wait for locks of others, unless this has an end first."""
    blocked = "SELECT count(*) FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0"
    with server.connect() as connection:
        while connection.execute(blocked).fetchone() != (count,) and not (unless and unless.done()):
            pass


def test_a_line_of_20000_is_read_by_its_indexes(
    store: PostgresStore, postgres_server: PostgresServer
) -> None:
    for key in ("short", "long"):
        store.apply(key, take("first"))
        for id in range(10):
            store.apply(key, take(f"{id}"))
    lengthen(postgres_server, "long", 20_000)
    assert store.inspect("long").waiting == 20_000
    loaded = store.transact(lambda transaction: transaction.load("long"))
    assert len(loaded.line.head) == reach(loaded.document)
    fetched = [cost(store, postgres_server, key) for key in ("short", "long")]
    assert fetched[1] < fetched[0] + 300


def lengthen(server: PostgresServer, key: str, length: int) -> None:
    columns = "namespace, key, offer_until, offers, state, message"
    with server.connect() as connection:
        ((last,),) = connection.execute("SELECT max(seq) FROM exclusive2_line").fetchall()
        connection.execute(
            f"INSERT INTO exclusive2_line (id, seq, place, {columns}) "
            f"SELECT convert_to(n::text, 'UTF8'), %s + n, %s + n, {columns} "
            "FROM exclusive2_line, generate_series(10, %s) AS n WHERE key = %s AND id = '9'",
            (last, last, length - 1, key.encode()),
        )
        connection.execute(
            "UPDATE exclusive2_lock SET waiting = %s, fence = fence + %s WHERE key = %s",
            (length, length, key.encode()),
        )
        connection.execute("ANALYZE exclusive2_line")


def test_five_thousand_finished_tasks_slow_no_acquire(
    store: PostgresStore, postgres_server: PostgresServer
) -> None:
    for number in range(10):  # until the server plans them no more: it knows of no tombstones yet
        store.apply("key", take(f"{number}"))
        store.apply("key", give(f"{number}"))
    before = cost_of(store, postgres_server, lambda: store.apply("key", take("before")))
    with postgres_server.connect() as connection:
        connection.execute(
            "INSERT INTO exclusive2_tombstone (namespace, key, id, until, token) "
            "SELECT namespace, convert_to(n::text, 'UTF8'), 'id', 9e15, 't' "
            "FROM exclusive2_namespace, generate_series(1, 5000) AS n"
        )
    store.apply("key", give("before"))
    after = cost_of(store, postgres_server, lambda: store.apply("key", take("after")))
    assert after <= before + 10


def cost(store: PostgresStore, server: PostgresServer, key: str) -> int:
    """How many rows and entries of indexes are read by who comes, leaves, runs, and looks."""
    operations = [take("new"), Remove("1"), take("other", message=None), Break("nobody")]
    operations += [give("first", "open"), take("0"), give("0")]

    def all_of_them() -> None:
        for operation in operations:
            store.apply(key, operation)
        store.inspect(key)
        store.reap()

    return cost_of(store, server, all_of_them)


def cost_of(store: PostgresStore, server: PostgresServer, work: Callable[[], object]) -> int:
    """How many rows and entries of indexes it reads."""
    read = """SELECT coalesce(sum(seq_tup_read), 0)::bigint + coalesce(sum(idx_tup_fetch), 0)::bigint
        + (SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes) FROM pg_stat_user_tables"""
    store.transact(lambda it: it.cursor.execute("SELECT pg_stat_force_next_flush()"))
    (before,) = rows(server, read)[0]
    work()
    store.transact(lambda it: it.cursor.execute("SELECT pg_stat_force_next_flush()"))
    (after,) = rows(server, read)[0]
    return int(after - before)


def test_tables_that_somebody_dropped_are_made_anew(
    store: PostgresStore, postgres_server: PostgresServer
) -> None:
    for name in ("lock", "namespace"):
        for ask in (lambda: store.apply("key", take("a")), store.reap, lambda: store.inspect("key")):
            store.epoch()
            with postgres_server.connect() as connection:
                connection.execute(f"DROP TABLE exclusive2_{name}")
            ask()


def test_a_row_of_the_namespace_that_somebody_deleted_is_made_anew(
    store: PostgresStore, postgres_server: PostgresServer
) -> None:
    for ask in (lambda: store.apply("key", take("a")), store.reap, lambda: store.forget("key")):
        store.epoch()
        with postgres_server.connect() as connection:
            connection.execute("DELETE FROM exclusive2_namespace")
        ask()


def test_many_may_use_a_new_database_at_once(postgres_url: str, postgres_server: PostgresServer) -> None:
    barrier = threading.Barrier(8)

    def begin(id: int) -> type:
        store = open_postgres(postgres_url)
        barrier.wait()
        try:
            return type(store.apply("key", take(f"{id}")).answer)
        finally:
            store.close()

    for _ in range(3):
        postgres_server.refresh()
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(begin, range(8)))
        assert sorted(answers, key=str) == [Granted] + [Parked] * 7


def test_only_one_of_many_reapers_reaps_in_a_period(store: PostgresStore) -> None:
    store.epoch()
    for _ in range(10):
        store.clock = None
        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(lambda _: store.reap(every=LIFE).answer, range(6)))
        assert answers.count(Applied(True)) == 1
        store.transact(lambda it: it.cursor.execute("UPDATE exclusive2_namespace SET reaped = 0"))


def test_a_namespace_is_kept_for_one_of_two_brokers_that_come_together(store: PostgresStore) -> None:
    store.epoch()
    for turn in range(10):
        with ThreadPoolExecutor(6) as pool:
            owners = list(pool.map(lambda n: store.keep_namespace(f"broker {n}", LIFE), range(6)))
        assert len(set(owners)) == 1, turn
        store.transact(lambda it: it.cursor.execute("UPDATE exclusive2_namespace SET broker = NULL"))


def test_heartbeats_of_the_same_keys_never_wait_in_a_circle(
    store: PostgresStore, postgres_server: PostgresServer
) -> None:
    keys = [f"key {number}" for number in range(40)]
    leases = [(key, Renew("a", "token of a", LIFE)) for key in keys]
    for key in keys:
        store.apply(key, take("a"))

    def beat(order: int) -> None:
        for _ in range(50):
            assert all(store.renew(leases[::order]))

    def reap() -> None:
        for number in range(50):
            store.apply(f"gone {number}", take("a", ttl=1))
            store.reap()

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(beat, 1), pool.submit(beat, -1), pool.submit(beat, 1), pool.submit(reap)]:
            done.result()
    assert rows(postgres_server, "SELECT sum(deadlocks)::int FROM pg_stat_database") == [(0,)]


def test_a_renewal_keeps_others_from_its_leases_from_reading_to_writing(
    store: PostgresStore,
    other: PostgresStore,
    postgres_server: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else it would write a lease back that was released meanwhile."""
    store.apply("key", take("a"))
    releases: list[Future[Any]] = []

    def step_late(*facts: Any) -> Any:
        if not releases:
            releases.append(pool.submit(other.apply, "key", give("a")))
            wait_until_blocked(postgres_server, 1, unless=releases[0])
        return step(*facts)

    monkeypatch.setattr(transaction, "step", step_late)
    with ThreadPoolExecutor(1) as pool:
        assert store.renew([("key", Renew("a", "token of a", LIFE))]) == [True]
        assert releases[0].result().answer == Applied(True)
    assert not store.inspect("key").holders


def test_leases_are_locked_in_the_order_of_their_keys(
    store: PostgresStore, postgres_server: PostgresServer
) -> None:
    for key in "ba":
        store.apply(key, take("x"))
    lock = "SELECT 1 FROM exclusive2_lock WHERE key = %s FOR UPDATE "
    with postgres_server.connect() as stranger, ThreadPoolExecutor(1) as pool:
        stranger.execute("BEGIN")
        stranger.execute(lock, (b"b",))
        renewing = pool.submit(store.renew, [(key, Renew("x", "token of x", LIFE)) for key in "ba"])
        wait_until_blocked(postgres_server, 1)
        assert stranger.execute(f"{lock} SKIP LOCKED", (b"a",)).fetchall() == []  # type: ignore[call-overload]
        stranger.execute("COMMIT")
        assert renewing.result() == [True, True]


def test_the_reaper_waits_for_no_key_that_others_are_at(
    store: PostgresStore, postgres_server: PostgresServer
) -> None:
    store.clock = lambda: START
    for key in ("busy", "dead"):
        store.apply(key, take("a"))
    store.clock = lambda: START + LIFE
    left = "SELECT convert_from(key, 'UTF8') FROM exclusive2_lock"
    with postgres_server.connect() as stranger:
        stranger.execute("BEGIN; SELECT 1 FROM exclusive2_lock WHERE key = 'busy' FOR UPDATE")
        assert store.reap().answer == Applied(True)
        assert rows(postgres_server, left) == [("busy",)]
        stranger.execute("COMMIT")
    store.reap()
    assert rows(postgres_server, left) == []


def test_a_deadlock_with_others_is_tried_again(store: PostgresStore, postgres_server: PostgresServer) -> None:
    for key in ("a", "b"):
        store.apply(key, take(key))
    leases = [(key, Renew(key, f"token of {key}", LIFE)) for key in ("a", "b")]
    touch = "UPDATE exclusive2_lock SET behind = behind WHERE key = %s"
    with postgres_server.connect() as stranger, ThreadPoolExecutor(2) as pool:
        stranger.execute("BEGIN; SET LOCAL deadlock_timeout = '1h'")
        stranger.execute(touch, (b"b",))
        renewing = pool.submit(store.renew, leases)
        wait_until_blocked(postgres_server, 1)
        stranger.execute(touch, (b"a",))  # returns when the other side has given way
        stranger.execute("COMMIT")
        assert renewing.result() == [True, True]


def test_a_client_that_stands_still_in_a_transaction_is_in_the_way_for_seconds(
    store: PostgresStore, other: PostgresStore
) -> None:
    store.apply("key", take("a"))
    may_go_on = threading.Event()

    def stand_still(transaction: Transaction) -> object:
        loaded = transaction.load("key", "b")
        assert may_go_on.wait(60)
        return transaction._carry_out("key", take("b"), loaded)

    with ThreadPoolExecutor(1) as pool:
        standing = pool.submit(store.transact, stand_still)
        assert isinstance(other.apply("key", take("c", message=None)).answer, Held)
        assert other.apply("key", give("a")).answer == Applied(True)
        may_go_on.set()
        standing.result()  # tried again on a new connection
