"""What only stores in a database server can do well or badly: rows, costs, and others at the same time."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from random import randbytes
from typing import Any

import pytest

from celery_exclusive.core.operations import (
    Acquire,
    AcquireAlone,
    Applied,
    ForceRelease,
    Granted,
    Held,
    Parked,
    Remove,
    Renew,
    Stale,
)
from celery_exclusive.core.records import NEVER, SECOND, reach
from celery_exclusive.core.step import step
from celery_exclusive.errors import StoreRefused
from celery_exclusive.stores.base import TASKS_PER_PAGE, Page, Snapshot
from celery_exclusive.stores.document_store import CLOCK_MARGIN, Reads
from celery_exclusive.stores.sql import statements, transaction
from celery_exclusive.stores.sql.server import ServerStore, ServerTransaction
from celery_exclusive.stores.sql.transaction import Transaction
from tests.postgres import PostgresDatabase
from tests.store.conftest import Database, StartDatabase
from tests.store.operations import LIFE, give, take

START = 1_700_000_000 * SECOND


def test_a_lease_is_readable_by_an_operator(store: ServerStore, database: Database) -> None:
    granted = store.apply("key", take("a")).answer
    assert isinstance(granted, Granted)
    found = database.ask('SELECT "key", fence, ends, document FROM exclusive2_lock')
    ((key, fence, ends, document),) = found
    holder = {"id": "a", "token": "token of a", "expiry": granted.fence + LIFE, "fence": granted.fence}
    assert (key, fence, ends) == (b"key", granted.fence, granted.fence + LIFE)
    holder |= {"may_have_copies": False, "phase": "running"}
    assert json.loads(document) == {"limit": 1, "holders": [holder]}


@pytest.mark.promise(
    "In a database a free key is acquired, and its only lease released, by one request each",
    broke="a row that is locked too seldom; on MariaDB a request that is prepared each time",
    figure=(
        "counted in the server's log. PostgreSQL: a pair takes 1.7 to 1.9 times a bare upsert and delete "
        "in eight runs, with client and server on one processor (`make bench ROWS=stores`); by processor "
        "time 52 us of the client (floor: 40) and 68 us of the server (33). On two processors 3.9 to 4.3 "
        "times in three quiet runs, where the kernel kept the floor's client and server together and ours "
        "apart. MariaDB: 2.9 to 3.0 times in three quiet runs on one processor, 2.8 to 3.3 on a busy one. "
        "Of 240 us the floor's own work is 78, the namespace's fence and the tombstone 45, the rest of the "
        "server's longer statements 52, the client's 65"
    ),
)
def test_a_free_key_is_acquired_and_released_by_one_statement_each(
    start_database: StartDatabase, kind: str
) -> None:
    logging = {"log_statement": "all"} if kind == "postgres" else {"general_log": "on"}
    server = start_database(**logging)
    store = server.open_store()
    store.epoch()
    is_postgres = kind == "postgres"
    grant, release, begin = ("WITH", "UPDATE", "BEGIN") if is_postgres else ("SELECT", "EXECUTE", "SET")
    updates = ["UPDATE"] * (2 if is_postgres else 1)  # MariaDB gets both in one request

    def sent(ask: Callable[[], object]) -> list[str]:
        before = len(server.sent())
        ask()
        return server.sent()[before:]

    for turn in range(4):  # new, and again
        first = ["PREPARE"] if turn == 0 and not is_postgres else None  # with EXECUTE in the same request
        assert sent(lambda: store.apply("key", take("a"))) == (first or [grant])
        assert sent(lambda: store.apply("key", give("a"))) == (first or [release])
    alone = AcquireAlone("a", "t", LIFE, phase="queued")
    assert sent(lambda: store.apply("unique", alone)) == [grant]
    store.apply("key", take("a"))
    held = [grant, begin, "SELECT", "SELECT", "COMMIT"]
    assert sent(lambda: store.apply("key", take("b", message=None))) == held
    parked = [grant, begin, "SELECT", "SELECT", "UPDATE", "INSERT", "COMMIT"]
    assert sent(lambda: store.apply("key", take("b"))) == parked
    leases = [("key", Renew("a", "token of a", LIFE)), ("unique", Renew("a", "t", LIFE))]
    assert sent(lambda: store.renew(leases)) == [begin, "SELECT", *updates, "COMMIT"]
    line = ["SELECT", "SELECT", "SELECT", "SELECT", "UPDATE", "UPDATE"]
    assert sent(lambda: store.apply("key", give("a"))) == [release, begin, *line, "COMMIT"]  # b is woken
    late = replace(take("late"), acks_late=True, recovers=True)
    kept = [begin, "SELECT", "SELECT", "INSERT", "INSERT", "COMMIT"]
    assert sent(lambda: store.apply("recovers", late)) == kept
    done = [release, begin, *["SELECT"] * 4, "UPDATE", "DELETE", "COMMIT"]
    assert sent(lambda: store.apply("recovers", give("late"))) == done
    store.reap()
    assert sent(lambda: store.reap(every=LIFE)) == ["SELECT"]
    store.keep_namespace("broker", 60 * SECOND)
    assert sent(lambda: store.keep_namespace("broker", 60 * SECOND)) == ["SELECT"]
    store.close()


@pytest.mark.proves("differential")
def test_the_short_path_answers_and_stores_the_same_as_step(
    store: ServerStore, other: ServerStore, monkeypatch: pytest.MonkeyPatch
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
    columns = "fence, ends, waiting, aside, behind, document"
    transaction.cursor.execute(f"SELECT {columns} FROM exclusive2_lock WHERE key = ?", (key.encode(),))
    return transaction.cursor.fetchall()


@pytest.mark.promise(
    "In a database a late request of a run that has finished is stale",
    broke="a grant that does not look for the tombstone",
)
def test_a_late_request_of_a_run_that_has_finished_is_stale(store: ServerStore) -> None:
    again = Acquire("a", "token of a", LIFE, redelivered=True)
    assert isinstance(store.apply("key", again).answer, Granted)
    store.apply("key", give("a"))
    assert store.apply("key", take("a")).answer == Stale()


@pytest.mark.promise(
    "In a database a grant that has waited for the end of a run sees that its id has finished",
    broke="a grant that looks for the tombstone before it waits for the row",
)
@pytest.mark.usefixtures("long_waits")
def test_a_grant_that_waited_while_its_id_finished_is_stale(
    store: ServerStore, other: ServerStore, database: Database
) -> None:
    store.apply("key", Acquire("a", "token of a", LIFE, redelivered=True))
    with ThreadPoolExecutor(1) as pool:

        def finish(transaction: Transaction) -> Future[Any]:
            transaction.load("key")  # locks it
            granting = pool.submit(other.apply, "key", take("a"))
            wait_until_blocked(database, 1, unless=granting)
            assert transaction.apply("key", give("a")).answer == Applied(True)
            return granting

        other.epoch()
        assert store.transact(finish).result().answer == Stale()


@pytest.mark.promise(
    "In a database a fence grows over rows that the reaper deletes meanwhile",
    name="databases, fence over deleted rows",
    broke=(
        "an insert that does not compare the fence that it read; a row that is deleted at once; on "
        "MariaDB: a grant that does not read the fence"
    ),
)
def test_a_fence_is_above_the_fence_of_a_row_that_the_reaper_deleted_meanwhile(
    store: ServerStore, other: ServerStore
) -> None:
    """Somebody has found no row of the key, and stands still while another's whole lease comes and goes."""
    fences: list[int] = []

    def acquire_slowly(transaction: Transaction) -> object:
        loaded = transaction.load("key", Reads(("a",)))
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


@pytest.mark.proves("databases, fence over deleted rows")
def test_a_row_is_deleted_a_minute_after_the_sweep_that_raised_the_fence_over_it(
    store: ServerStore, database: Database
) -> None:
    """A grant that has read the lower fence meanwhile still finds the row."""
    times = [START + LIFE, START + LIFE, START + LIFE + CLOCK_MARGIN, START + 2 * LIFE]
    store.clock = lambda: START
    granted = store.apply("released", take("a")).answer
    assert isinstance(granted, Granted)
    store.apply("released", give("a"))
    store.apply("expired", take("a"))
    found = []
    for time in times:
        store.clock = lambda time=time: time  # type: ignore[misc]
        store.reap()
        ((fence, rows),) = database.ask(
            "SELECT fence, (SELECT count(*) FROM exclusive2_lock) FROM exclusive2_namespace"
        )
        assert fence >= granted.fence
        assert list(store.scan()) == []
        found.append(rows)
    assert found == [2, 2, 0, 0]
    store.clock = lambda: START  # it is late
    for key in ("released", "another"):
        again = store.apply(key, take("a")).answer
        assert isinstance(again, Granted)
        assert again.fence > granted.fence


@pytest.mark.promise(
    "In a database a grant takes no lock on the namespace, a sweep that another process does waits for none, "
    "and a beat soon after another one neither; a sweep waits for no transaction that has made a row",
    name="databases, grants beside sweeps",
    broke="red before: each idle worker, beat and grant locked that row, and 200 workers stopped all grants",
    command="python -m bench idle",
)
def test_a_locked_row_of_the_namespace_holds_up_neither_grants_nor_idle_workers(
    store: ServerStore, database: Database
) -> None:
    assert store.reap().answer == Applied(True)
    assert store.keep_namespace("broker", 60 * SECOND) == "broker"
    with database.stranger() as stranger:
        stranger.execute("BEGIN")
        stranger.execute("SELECT 1 FROM exclusive2_namespace FOR UPDATE")
        late = replace(take("late"), acks_late=True, recovers=True)
        for key, first in (("key", take("a")), ("kept", late)):
            for _ in range(2):  # a new key, and again
                assert isinstance(store.apply(key, first).answer, Granted)
                assert isinstance(store.apply(key, take("b")).answer, Parked)
                assert store.apply(key, Remove("b")).answer == Applied(True)
                assert store.apply(key, give(first.id)).answer == Applied(True)
        assert store.reap(every=LIFE).answer == Applied(False)
        assert store.reap().answer == Applied(False)  # it would have to wait for the other sweep
        assert store.keep_namespace("broker", 60 * SECOND) == "broker"
        stranger.execute("COMMIT")
    assert store.reap().answer == Applied(True)


@pytest.mark.proves("databases, grants beside sweeps")
def test_a_sweep_waits_for_no_transaction_that_has_inserted_a_row(
    store: ServerStore, other: ServerStore
) -> None:
    def insert_and_sweep(transaction: Transaction) -> object:
        assert isinstance(transaction.apply("key", take("a")).answer, Granted)
        return other.reap().answer

    assert store.transact(insert_and_sweep) == Applied(True)


@pytest.mark.proves("databases, grants beside sweeps")
def test_a_sweep_ends_leases_in_transactions_that_calls_wait_for_shortly(
    store: ServerStore, other: ServerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "_ENDED_AT_ONCE", 5)
    for number in range(12):
        store.apply(f"{number}", take("a"))
        store.apply(f"{number}", give("a"))
    parts = list[bool | None]()
    end_leases = Transaction.end_leases

    def note(self: Transaction, every: int) -> bool | None:
        parts.append(end_leases(self, every))
        return parts[-1]

    monkeypatch.setattr(Transaction, "end_leases", note)
    assert store.reap(every=LIFE).answer == Applied(True)
    assert parts == [False, False, True]
    assert other.reap(every=LIFE).answer == Applied(False)
    assert len(parts) == 3


def wait_until_blocked(server: Database, count: int, unless: Future[Any] | None = None) -> None:
    """Wait until so many connections wait for locks of others, unless this has an end first."""
    while server.blocked() != count and not (unless and unless.done()):
        pass


@pytest.mark.promise("A line of 20,000 in a database is read by its indexes", broke="an index by state alone")
def test_a_line_of_20000_is_read_by_its_indexes(store: ServerStore, database: Database) -> None:
    for key in ("short", "long"):
        store.apply(key, take("first"))
        for id in range(10):
            store.apply(key, take(f"{id}"))
    lengthen(database, "long", 20_000)
    assert store.inspect("long").waiting == 20_000
    loaded = store.transact(lambda transaction: transaction.load("long"))
    assert len(loaded.line.head) == reach(loaded.document)
    fetched = [cost(store, database, key) for key in ("short", "long")]
    assert fetched[1] < fetched[0] + 300


@pytest.mark.promise(
    "A redelivered task deep in a line of a database counts at most 1,000 tasks before it above the limit, "
    "and passes none of them",
    broke="red before: 20,000 rows on MariaDB; a count of 1,000 under a limit of 15,000: it began",
)
def test_a_task_that_comes_again_deep_in_a_line_counts_few_of_those_before_it(
    store: ServerStore, database: Database
) -> None:
    for id in ("first", *map(str, range(10))):
        store.apply("long", take(id))
    leave_alone(database)
    lengthen(database, "long", 20_000)
    again = replace(take("18000"), redelivered=True)
    answers = list[Any]()
    assert cost_of(store, database, lambda: answers.append(store.apply("long", again).answer)) < 5_000
    answers.append(store.apply("long", replace(again, limit=15_000)).answer)
    assert [answer.position for answer in answers] == [1_002, 16_001]


def lengthen(server: Database, key: str, length: int) -> None:
    fields = "offer_until, offers, state, deaths, deadline, flags, cost, part, message"
    columns = f'id, seq, place, namespace, "key", {fields}'
    ((last,),) = server.ask("SELECT max(seq) FROM exclusive2_line")
    entries = (
        (b"%d" % n, last + n, last + n, b"cx", key.encode(), 0, 0, "waiting", 0, NEVER, 0, 1, b"", b"message")
        for n in range(10, length)
    )
    marks = ", ".join(["%s"] * 14)
    with server.stranger() as cursor:
        cursor.executemany(f"INSERT INTO exclusive2_line ({columns}) VALUES ({marks})", entries)
        cursor.execute(
            'UPDATE exclusive2_lock SET waiting = %s, fence = fence + %s WHERE "key" = %s',
            (length, length, key.encode()),
        )


@pytest.mark.promise(
    "An acquire of a free key in a database reads none of the tombstones of other tasks",
    broke="the plan as it was: 10,004 entries read, with 5,000 tombstones",
)
def test_five_thousand_finished_tasks_slow_no_acquire(store: ServerStore, database: Database) -> None:
    for number in range(10):  # until the server plans them no more: it knows of no tombstones yet
        store.apply("key", take(f"{number}"))
        store.apply("key", give(f"{number}"))
    leave_alone(database)
    before = cost_of(store, database, lambda: store.apply("key", take("before")))
    with database.stranger() as cursor:
        cursor.executemany(
            'INSERT INTO exclusive2_tombstone (namespace, "key", id, until, token) '
            "VALUES (%s, %s, %s, %s, %s)",
            [(b"cx", b"%d" % n, b"id", 9 * 10**15, b"t") for n in range(5_000)],
        )
    store.apply("key", give("before"))
    after = cost_of(store, database, lambda: store.apply("key", take("after")))
    assert after <= before + 10


def cost(store: ServerStore, server: Database, key: str) -> int:
    """How many rows and entries of indexes are read by a task that comes, leaves, runs, and is looked at."""
    operations = [take("new"), Remove("1"), take("other", message=None), ForceRelease("nobody")]
    operations += [give("first", "open"), take("0"), give("0")]

    def all_of_them() -> None:
        for operation in operations:
            store.apply(key, operation)
        store.inspect(key)
        store.reap()

    return cost_of(store, server, all_of_them)


def leave_alone(server: Database) -> None:
    """Let PostgreSQL itself read nothing meanwhile: what autovacuum reads counts, too."""
    if isinstance(server, PostgresDatabase):
        for table in ("lock", "holder", "line", "tombstone"):
            server.ask(f"ALTER TABLE exclusive2_{table} SET (autovacuum_enabled = off)")


def cost_of(store: ServerStore, server: Database, work: Callable[[], object]) -> int:
    """How many rows and entries of indexes it reads."""
    before = server.reads(store)
    work()
    return server.reads(store) - before


@pytest.mark.promise(
    "A page of a long line in a database is read by the index, in one statement, wherever it begins",
    broke="a comparison of places that no index serves",
)
def test_a_page_of_a_long_line_is_read_by_the_index_in_one_statement(
    store: ServerStore, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for id in ("first", *map(str, range(10))):
        store.apply("long", take(id))
    leave_alone(database)
    lengthen(database, "long", 20_000)
    pages = list(pages_of(store, "long"))
    assert [place.waiting.id for page in pages for place in page.places] == [f"{n}" for n in range(20_000)]
    late = pages[-10].next
    assert cost_of(store, database, lambda: store.line("long", late, 1_000)) < 2_500
    sent = list[str]()
    all_of = Transaction._all
    monkeypatch.setattr(Transaction, "_all", lambda *it: sent.append(it[1]) or all_of(*it))
    assert len(store.line("long", late).places) == TASKS_PER_PAGE
    assert sent == [statements.PAGE]


def pages_of(store: ServerStore, key: str) -> Iterator[Page]:
    page = store.line(key)
    yield page
    while page.next:
        page = store.line(key, after=page.next)
        yield page


@pytest.mark.proves("databases, tables")
def test_dropped_tables_are_created_again(store: ServerStore, database: Database) -> None:
    for name in ("lock", "namespace"):
        for ask in (lambda: store.apply("key", take("a")), store.reap, lambda: store.inspect("key")):
            store.epoch()
            database.ask(f"DROP TABLE exclusive2_{name}")
            ask()


@pytest.mark.proves("databases, tables")
def test_a_deleted_row_of_the_namespace_is_created_again(store: ServerStore, database: Database) -> None:
    for ask in (lambda: store.apply("key", take("a")), store.reap, lambda: store.forget("key")):
        store.epoch()
        database.ask("DELETE FROM exclusive2_namespace")
        ask()


@pytest.mark.promise(
    "Tables of a database are made on first use, by many at once, and anew when another program dropped "
    "them; or by a command that can print them",
    name="databases, tables",
    broke=(
        "no lock while they are made; not made anew; on MariaDB: no other try when another process stores "
        "the version first"
    ),
)
def test_many_may_use_a_new_database_at_once(database: Database) -> None:
    barrier = threading.Barrier(8)

    def begin(id: int) -> type:
        store = database.open_store()
        barrier.wait()
        try:
            return type(store.apply("key", take(f"{id}")).answer)
        finally:
            store.close()

    for _ in range(3):
        database.empty()
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(begin, range(8)))
        assert sorted(answers, key=str) == [Granted] + [Parked] * 7


@pytest.mark.promise(
    "In a period only one of many reapers of a database sweeps; of two brokers one gets the namespace",
    name="databases, one reaper",
    broke="the time read before the lock; no lock",
)
def test_only_one_of_many_reapers_reaps_in_a_period(store: ServerStore) -> None:
    store.epoch()
    for _ in range(10):
        store.clock = None
        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(lambda _: store.reap(every=LIFE).answer, range(6)))
        assert answers.count(Applied(True)) == 1
        store.transact(lambda it: it.cursor.execute("UPDATE exclusive2_namespace SET reaped = 0"))


@pytest.mark.proves("databases, one reaper")
def test_a_namespace_is_kept_for_one_of_two_brokers_that_come_together(store: ServerStore) -> None:
    store.epoch()
    for turn in range(10):
        with ThreadPoolExecutor(6) as pool:
            owners = list(pool.map(lambda n: store.keep_namespace(f"broker {n}", LIFE), range(6)))
        assert len(set(owners)) == 1, turn
        store.transact(lambda it: it.cursor.execute("UPDATE exclusive2_namespace SET broker = NULL"))


@pytest.mark.proves("databases, heartbeats")
def test_heartbeats_of_the_same_keys_never_wait_in_a_circle(start_database: StartDatabase) -> None:
    server = start_database()
    store = server.open_store()
    keys = [f"key {number}" for number in range(40)]
    leases = [(key, Renew("a", "token of a", LIFE)) for key in keys]
    for key in keys:
        store.apply(key, take("a"))

    def beat(order: int) -> None:
        for _ in range(50):
            assert False not in store.renew(leases[::order])

    def reap() -> None:
        for number in range(50):
            store.apply(f"gone {number}", take("a", ttl=1))
            store.reap()

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(beat, 1), pool.submit(beat, -1), pool.submit(beat, 1), pool.submit(reap)]:
            done.result()
    assert server.deadlocks() == 0
    store.close()


@pytest.mark.promise(
    "Heartbeats of a database write no lease back, and never wait in a circle; the reaper waits for no "
    "key; deadlocks with others are tried again",
    name="databases, heartbeats",
    broke=(
        "no lock of the rows; no order; on MariaDB another order, another index; no SKIP LOCKED; no other try"
    ),
)
@pytest.mark.usefixtures("long_waits")
def test_a_renewal_keeps_others_from_its_leases_from_reading_to_writing(
    store: ServerStore,
    other: ServerStore,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else it would write a lease back that was released meanwhile."""
    store.apply("key", take("a"))
    releases: list[Future[Any]] = []

    def step_late(*facts: Any) -> Any:
        if not releases:
            releases.append(pool.submit(other.apply, "key", give("a")))
            wait_until_blocked(database, 1, unless=releases[0])
        return step(*facts)

    monkeypatch.setattr(transaction, "step", step_late)
    with ThreadPoolExecutor(1) as pool:
        assert store.renew([("key", Renew("a", "token of a", LIFE))]) == [True]
        assert releases[0].result().answer == Applied(True)
    assert not store.inspect("key").holders


@pytest.mark.proves("databases, heartbeats")
def test_the_reaper_waits_for_no_key_that_others_are_at(store: ServerStore, database: Database) -> None:
    store.clock = lambda: START
    for key in ("busy", "dead"):
        store.apply(key, take("a"))
    store.clock = lambda: START + LIFE
    left = 'SELECT "key" FROM exclusive2_lock WHERE ends > 0'
    with database.stranger() as stranger:
        stranger.execute("BEGIN")
        stranger.execute(
            """SELECT 1 FROM exclusive2_lock WHERE namespace = 'cx' AND "key" = 'busy' FOR UPDATE"""
        )
        assert store.reap().answer == Applied(True)
        assert database.ask(left) == [(b"busy",)]
        stranger.execute("COMMIT")
    store.reap()
    assert database.ask(left) == []


@pytest.mark.promise(
    "A transaction at a new key of MariaDB holds up no other new key",
    broke="MariaDB's own isolation, which locks the gaps between keys",
)
def test_a_transaction_at_a_new_key_holds_up_no_other(store: ServerStore, other: ServerStore) -> None:
    answers: list[object] = []

    def acquire_beside(transaction: Transaction) -> None:
        transaction.load("new")
        answers.append(other.apply("newer", take("a")).answer)

    other.epoch()
    store.transact(acquire_beside)
    assert [type(answer) for answer in answers] == [Granted]  # once: no timeout has ended the transaction


@pytest.mark.proves("databases, heartbeats")
@pytest.mark.usefixtures("long_waits")
def test_a_deadlock_with_others_is_tried_again(start_database: StartDatabase) -> None:
    server = start_database()
    store = server.open_store()
    for key in "abcdef":
        store.apply(key, take(key))

    def lock_both(transaction: Transaction) -> list[int]:
        return [transaction.load(key).version for key in "ab"]

    touch = """UPDATE exclusive2_lock SET version = version + 1 WHERE namespace = 'cx' AND "key" = %s"""
    with server.stranger() as stranger, ThreadPoolExecutor(2) as pool:
        stranger.execute("BEGIN")
        stranger.execute(server.never_gives_way)
        for key in "cdefb":
            stranger.execute(touch, (key.encode(),))
        locking = pool.submit(store.transact, lock_both)
        wait_until_blocked(server, 1)
        stranger.execute(touch, (b"a",))  # returns when the other side has given way
        stranger.execute("COMMIT")
        assert len(locking.result()) == 2
    assert server.deadlocks() > 0
    store.close()


@pytest.mark.promise(
    "A client that stands still in a transaction of a database holds up its key for 3 s",
    name="databases, standing client",
    broke="no idle timeout; no lock timeout",
)
def test_a_client_that_stands_still_in_a_transaction_is_in_the_way_for_seconds(
    store: ServerStore, other: ServerStore
) -> None:
    store.apply("key", take("a"))
    may_go_on = threading.Event()

    def stand_still(transaction: Transaction) -> object:
        loaded = transaction.load("key", Reads(("b",)))
        assert may_go_on.wait(60)
        return transaction._carry_out("key", take("b"), loaded)

    with ThreadPoolExecutor(1) as pool:
        standing = pool.submit(store.transact, stand_still)
        assert isinstance(other.apply("key", take("c", message=None)).answer, Held)
        assert other.apply("key", give("a")).answer == Applied(True)
        may_go_on.set()
        standing.result()  # tried again on a new connection


@pytest.mark.proves("MariaDB, full")
def test_an_id_that_no_index_can_hold_is_refused(store: ServerStore) -> None:
    store.apply("key", take("a"))
    with pytest.raises(StoreRefused, match="shorten the task's id"):
        store.apply("key", take(randbytes(5_000).hex()))
    assert store.inspect("key").waiting == 0
    longest = randbytes(1_150).hex()
    assert isinstance(store.apply("key", take(longest)).answer, Parked)


@pytest.mark.proves("MariaDB, full")
def test_a_message_may_have_megabytes(store: ServerStore) -> None:
    message = randbytes(3_000_000)
    store.apply("key", take("a"))
    assert isinstance(store.apply("key", take("b", message=message)).answer, Parked)
    (wake,) = store.apply("key", give("a")).wake
    assert wake.message == message


@pytest.mark.promise(
    "A look at a key in a database shows the state at one instant: no data are younger than its time",
    broke="MariaDB: a snapshot made by the first read, after the clock was read",
)
def test_a_look_shows_no_lease_that_was_granted_after_its_time(
    store: ServerStore, other: ServerStore
) -> None:
    def look(transaction: Transaction) -> Snapshot:
        other.apply("key", take("a"))
        return transaction.inspect("key")

    store.apply("key", take("b"))
    store.apply("key", give("b"))
    assert store.transact(look, writes=False).holders == ()
    assert [owner.id for owner in store.inspect("key").holders] == ["a"]


@pytest.mark.promise(
    "A step in a database reads the clock after the last change of its key, also if another step has made "
    "the row of the key meanwhile",
    broke="the clock read, then a row found that was not there to be locked",
)
def test_a_lease_that_has_ended_before_the_step_does_not_hold_the_key(
    store: ServerStore, other: ServerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, is_overtaken = ServerTransaction._lock, [False]

    def overtaken(self: ServerTransaction, statement: str, *name: bytes) -> bool:
        is_locked = lock(self, statement, *name)
        if not is_overtaken[0]:
            is_overtaken[0] = True
            assert isinstance(other.apply("key", take("a", ttl=1)).answer, Granted)
        return is_locked

    store.epoch()
    other.epoch()
    monkeypatch.setattr(ServerTransaction, "_lock", overtaken)
    answer = store.apply("key", replace(take("b"), redelivered=True)).answer
    assert isinstance(answer, Granted)
