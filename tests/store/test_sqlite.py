"""What only a SQLite store can do well or badly: its rows, its clock, its costs."""

from __future__ import annotations

import json
import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from celery_exclusive.core.operations import (
    Acquire,
    Applied,
    Drop,
    Ending,
    ForceRelease,
    Granted,
    Held,
    Parked,
    Recall,
    Release,
    Remove,
    Renew,
    Requeue,
)
from celery_exclusive.core.records import SECOND, reach
from celery_exclusive.errors import OptionError, StoreUnavailable
from celery_exclusive.stores.base import open_store
from celery_exclusive.stores.sql import sqlite
from celery_exclusive.stores.sql.sqlite import SqliteStore
from celery_exclusive.stores.sql.tables import TABLES, VERSION
from celery_exclusive.stores.sql.transaction import Transaction
from tests.store.operations import LIFE, give, take

START = 1_700_000_000 * SECOND


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    opened = open_store(f"sqlite:///{path}?timeout=0.2")
    assert isinstance(opened, SqliteStore)
    yield opened
    opened.close()


def rows(path: Path, query: str, *values: object) -> list[Any]:
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        return database.execute(query, values).fetchall()


def counts(path: Path) -> dict[str, int]:
    """How many rows each table has."""
    return {
        name: rows(path, f"SELECT count(*) FROM exclusive2_{name}")[0][0]
        for name in ("namespace", "lock", "line", "tombstone")
    }


def trace(store: SqliteStore) -> list[str]:
    """Every statement that the store's connection runs from now on."""
    store.inspect("key")
    (opened,) = store._idle
    statements: list[str] = []
    opened.connection.set_trace_callback(statements.append)
    return statements


def test_a_lease_is_readable_with_sqlite3(store: SqliteStore, path: Path) -> None:
    granted = store.apply("key", take("a")).answer
    assert isinstance(granted, Granted)
    ((key, fence, ends, document),) = rows(path, "SELECT key, fence, ends, document FROM exclusive2_lock")
    holder = {"id": "a", "token": "token of a", "expiry": granted.fence + LIFE, "fence": granted.fence}
    assert (key, fence, ends) == (b"key", granted.fence, granted.fence + LIFE)
    holder |= {"may_have_copies": False, "phase": "running"}
    assert json.loads(document) == {"limit": 1, "holders": [holder]}
    assert rows(path, "PRAGMA journal_mode") == [("wal",)]


@pytest.mark.proves("SQLite, fence")
def test_the_reaper_leaves_nothing_of_what_has_ended_but_the_fence(store: SqliteStore, path: Path) -> None:
    store.clock = lambda: START
    for key in ("released", "dead", "line"):
        store.apply(key, take("a"))
    store.apply("released", give("a"))
    store.apply("line", take("b"))
    store.apply("line", Remove("b"))
    store.reap()
    assert counts(path) == {"namespace": 1, "lock": 2, "line": 0, "tombstone": 1}
    store.clock = lambda: START + LIFE
    store.reap()
    store.clock = lambda: START + 659 * SECOND  # a minute more, in case the clock is set back
    store.reap()
    assert counts(path) == {"namespace": 1, "lock": 0, "line": 0, "tombstone": 1}
    store.clock = lambda: START + 661 * SECOND
    store.reap()
    assert counts(path) == {"namespace": 1, "lock": 0, "line": 0, "tombstone": 0}


@pytest.mark.promise(
    "The fence of a SQLite store only grows, and nothing is left",
    name="SQLite, fence",
    broke="floor not raised; renewal leaves `ends`",
)
def test_the_fence_grows_over_a_forgotten_key_though_the_clock_goes_back(store: SqliteStore) -> None:
    store.clock = lambda: START
    first = store.apply("key", take("a")).answer
    store.apply("key", give("a"))
    store.reap()
    store.clock = lambda: START - 3600 * SECOND
    second = store.apply("key", take("b")).answer
    other = store.apply("other", take("b")).answer
    assert isinstance(first, Granted)
    assert isinstance(second, Granted)
    assert isinstance(other, Granted)
    assert min(second.fence, other.fence) > first.fence


def test_a_clock_that_went_back_does_not_stop_the_reaper(store: SqliteStore) -> None:
    store.clock = lambda: START
    store.reap()
    store.clock = lambda: START - 3600 * SECOND
    assert store.reap(every=SECOND).answer == Applied(True)


def test_a_line_outlives_the_leases_that_it_waits_for(store: SqliteStore) -> None:
    store.clock = lambda: START
    store.apply("key", take("a"))
    store.apply("key", take("b"))
    store.clock = lambda: START + 2 * LIFE
    assert [wake.id for wake in store.reap().wake] == ["b"]
    assert store.inspect("key").waiting == 1


@pytest.mark.proves("SQLite, fence")
def test_the_reaper_leaves_what_was_renewed(store: SqliteStore) -> None:
    store.clock = lambda: START
    store.apply("key", take("a", ttl=SECOND))
    assert store.renew([("key", Renew("a", "token of a", LIFE))]) == [True]
    store.clock = lambda: START + LIFE - 1
    store.reap()
    assert isinstance(store.apply("key", take("b", message=None)).answer, Held)


@pytest.mark.proves("SQLite, uncontended")
def test_a_key_that_is_taken_again_and_again_changes_no_index(store: SqliteStore, path: Path) -> None:
    """Its row is looked at early then, once: the reaper finds it at the end of its last lease."""
    now = START
    store.clock = lambda: now
    statements = trace(store)
    for id in "ab":
        store.apply("key", take(id))
        store.apply("key", give(id))
        now += 1
    store.apply("key", take("c"))
    assert store.renew([("key", Renew("c", "token of c", 2 * LIFE))]) == [True]
    assert not any("due" in statement.partition("SET")[2].partition("WHERE")[0] for statement in statements)
    for instant, dues in ((now, [(now + 2 * LIFE,)]), (now + 2 * LIFE, [])):
        now = instant
        store.reap()
        assert rows(path, "SELECT due FROM exclusive2_lock") == dues
        statements.clear()
        store.reap()
        assert not any(statement.startswith("UPDATE exclusive2_lock") for statement in statements)


@pytest.mark.promise(
    "An uncontended pair of the SQLite store is one statement each, and changes no index",
    name="SQLite, uncontended",
    broke=(
        "left out, one by one: the namespace's fence, the tombstone, the end of the last lease, its fence, "
        "`due`, the limit, copies, `recovers`; `due` late"
    ),
    figure=(
        "2.3x to 2.6x a bare upsert and delete (3.1x to 3.2x with a look before) in one run (`make bench "
        "ROWS=stores` measures it)"
    ),
)
def test_the_short_path_answers_and_stores_the_same_as_step(store: SqliteStore) -> None:
    chance, now = random.Random(1), START
    store.clock = lambda: now

    def anything() -> Acquire | Release | Requeue:
        id, token = chance.choice("abc"), chance.choice(["t", "é\udcff"])
        one, two = (chance.random() < 0.2 for _ in range(2))
        if chance.random() < 0.5:
            endings: list[Ending | None] = ["done", "done", "open", "if_no_copy", None]
            ending = chance.choice(endings)
            return Release(id, token, ending) if ending else Requeue(id, token, LIFE)
        promoted = chance.choice([None, None, "another epoch"])
        limit, message = chance.choice([0, 1, 2]), b"m" if two else None
        return Acquire(id, token, LIFE, limit, one, promoted, message=message, recovers=one and two)

    def row(transaction: Transaction, key: str) -> tuple[int, list[object]]:
        """When the reaper must look at it, and the rest of it."""
        columns = "coalesce(due, 0), fence, ends, waiting, aside, behind, document"
        transaction.cursor.execute(f"SELECT {columns} FROM exclusive2_lock WHERE key = ?", (key.encode(),))
        due, *rest = transaction.cursor.fetchone() or (0,)
        return due, rest

    def compare(transaction: Transaction, asked: Acquire | Release | Requeue) -> None:
        assert (
            transaction.apply("at once", asked).answer
            == Transaction.apply(transaction, "by step", asked).answer
        ), asked
        (early, left), (due, expected) = row(transaction, "at once"), row(transaction, "by step")
        assert left == expected, asked
        assert early <= due, asked

    for _ in range(3000):
        now += chance.choice([0, 0, 1, LIFE // 2, LIFE, -LIFE])
        asked = anything()
        if chance.random() < 0.05:
            store.reap()
        store.transact(lambda transaction, asked=asked: compare(transaction, asked))


def test_a_namespace_belongs_to_a_broker_as_long_as_its_workers_beat(store: SqliteStore) -> None:
    store.clock = lambda: START
    assert store.keep_namespace("one", LIFE) == "one"
    assert store.keep_namespace("two", LIFE) == "one"
    store.clock = lambda: START + LIFE - 1
    assert store.keep_namespace("one", LIFE) == "one"
    store.clock = lambda: START + LIFE + 1
    assert store.keep_namespace("two", LIFE) == "one"
    store.clock = lambda: START + 2 * LIFE
    assert store.keep_namespace("two", LIFE) == "two"


def test_keys_and_ids_may_be_no_utf8(store: SqliteStore) -> None:
    key, id = "k\udcff\x00 é", "i\udc80/\x00"
    holder = Acquire(id, "to\udcffken", LIFE)
    store.apply(key, holder)
    store.apply(key, take(id + "2", message=b"\x00\xff"))
    assert store.inspect(key).holders[0].id == id
    assert list(store.scan("k\udcff")) == [key]
    assert not list(store.scan("k\udcfe"))
    assert store.renew([(key, Renew(id, "to\udcffken", LIFE))]) == [True]
    (wake,) = store.apply(key, Release(id, "to\udcffken")).wake
    assert (wake.key, wake.id, wake.message) == (key, id + "2", b"\x00\xff")
    assert store.keep_namespace("b\udcff", LIFE) == "b\udcff"


def test_a_tombstone_of_one_key_does_not_count_for_another(store: SqliteStore) -> None:
    for key in ("k", "k2"):
        store.apply(key, take("holder"))
    store.apply("k", take("y"))
    store.apply("k", Remove("y"))
    other = Acquire("y", "t", LIFE, redelivered=True, message=b"")
    assert isinstance(store.apply("k2", other).answer, Parked)


def test_a_message_of_a_megabyte_is_kept_only_when_parked(store: SqliteStore, path: Path) -> None:
    message = bytes(range(256)) * 4096
    store.apply("key", take("a", message=message))
    assert counts(path)["line"] == 0
    store.apply("key", take("b", message=message))
    (wake,) = store.apply("key", give("a")).wake
    assert wake.message == message


def test_scan_finds_many_keys_once_each(store: SqliteStore) -> None:
    expected = {f"key {i}" for i in range(1000)}
    store.transact(lambda transaction: [transaction.apply(key, take("a")) for key in expected])
    found = list(store.scan("key"))
    assert len(found) == 1000
    assert set(found) == expected


@pytest.mark.promise(
    "A verb of the SQLite store is one transaction of few statements, also with a line of 20,000",
    name="SQLite, statements",
    broke="no index, whole line read",
    figure="acquire and release of a free key: 1 each",
)
def test_every_verb_is_one_transaction_of_few_statements(store: SqliteStore) -> None:
    statements = trace(store)

    def cost(ask: Callable[[], object]) -> int:
        """How many statements it needs between the beginning and the end."""
        statements.clear()
        ask()
        assert statements[0].startswith("BEGIN")
        assert statements[-1] == "COMMIT"
        assert not any(word in statement for statement in statements[1:-1] for word in ("BEGIN", "COMMIT"))
        return len(statements) - 2

    assert cost(lambda: store.apply("key", take("a"))) == 1  # write it, if it is free
    assert cost(lambda: store.apply("key", take("c", message=None))) == 2  # held: look at it
    assert cost(lambda: store.apply("other", take("a"))) == 1
    assert cost(lambda: store.apply("other", give("a"))) == 1
    assert cost(lambda: store.apply("key", take("b"))) == 4  # parked
    assert cost(lambda: store.apply("key", give("a"))) == 6  # the line, an offer, its message
    assert cost(lambda: store.inspect("key")) == 2
    assert cost(lambda: store.apply("unknown", Remove("b"))) == 1
    assert cost(store.epoch) == 1
    statements.clear()
    store.reap()  # whether one is due; what has ended, also rows of holders, the mark; what is due; what next
    assert [statement.split()[0] for statement in statements].count("COMMIT") == 4
    assert len(statements) == 4 * 2 + 9
    assert cost(lambda: store.reap(every=LIFE)) == 1
    late = replace(take("late"), acks_late=True, recovers=True)
    assert cost(lambda: store.apply("recovers", late)) == 3
    assert cost(lambda: store.apply("recovers", give("late"))) == 6


@pytest.mark.proves("sweeps")
def test_others_need_not_wait_for_a_sweep_but_for_one_key_of_it(store: SqliteStore) -> None:
    now = START
    store.clock = lambda: now
    for key in ("one", "two", "three"):
        store.apply(key, take("a"))
        store.apply(key, take("b"))
    now += LIFE
    statements = trace(store)
    assert len(store.reap().wake) == 3
    assert sum(statement == "BEGIN IMMEDIATE" for statement in statements) == 1 + 3


@pytest.mark.proves("SQLite, statements")
def test_a_thousand_leases_are_renewed_in_one_transaction(store: SqliteStore) -> None:
    leases = [(f"key {i % 999}", Renew(f"{i}", f"token of {i}", 2 * LIFE)) for i in range(1000)]
    asked = [(key, take(lease.id, limit=2)) for key, lease in leases[:998] + leases[999:]]
    store.clock = lambda: START
    store.transact(lambda transaction: [transaction.apply(*one) for one in asked])
    statements = trace(store)
    assert store.renew(leases) == [True] * 998 + [False] + [True]
    assert sum(statement.startswith("BEGIN") for statement in statements) == 1
    assert sum(statement.startswith("SELECT") for statement in statements) == 2
    remaining = [owner.remaining for owner in store.inspect("key 0").holders]
    assert remaining == [2 * LIFE, 2 * LIFE]
    assert store.renew([]) == []


@pytest.mark.proves("slots of living leases")
def test_a_task_under_a_limit_of_a_hundred_reads_as_many_of_a_line_in_a_file_as_under_one_of_one(
    store: SqliteStore,
) -> None:
    for limit in (1, 100):
        for number in range(limit + 12):
            store.apply(f"limit {limit}", take(str(number), limit=limit))
    statements = trace(store)

    def reads(limit: int) -> list[str]:
        statements.clear()
        (wake,) = store.apply(f"limit {limit}", give("0")).wake
        promoted = replace(take(wake.id, limit=limit), promoted=wake.epoch)
        assert isinstance(store.apply(f"limit {limit}", promoted).answer, Granted)
        return [it.split()[-1] for it in statements if "FROM exclusive2_line" in it and " LIMIT " in it]

    assert reads(1) == reads(100) == ["4", "4"]


@pytest.mark.promise(
    "In a database a call that leaves a line, or is recalled or dropped, does not count those before it",
    broke="red before: 15 ms in a line of 100,000",
)
def test_a_task_is_dropped_recalled_and_removed_without_a_count_of_those_before_it(
    store: SqliteStore,
) -> None:
    for number in range(12):
        store.apply("key", take(f"{number}"))
    statements = trace(store)
    for operation in (Recall("9"), Drop("9", "token"), Remove("10"), give("11")):
        store.apply("key", operation)
    assert not [statement for statement in statements if "count(*)" in statement]
    assert store.inspect("key").waiting == 8
    parked = store.apply("key", take("new")).answer
    assert isinstance(parked, Parked)
    assert parked.position == 9


@pytest.mark.proves("SQLite, statements")
def test_a_line_of_20000_costs_as_many_statements_as_one_of_ten(store: SqliteStore, path: Path) -> None:
    for key in ("short", "long"):
        store.apply(key, take("first"))
        for id in range(10):
            store.apply(key, take(f"{id}"))
    lengthen(path, "long", 20_000)
    statements = trace(store)

    def cost(key: str, *, far: str) -> list[int]:
        """At the head, at the end, after the end; by who comes, leaves, runs, and looks."""
        operations = [
            take("newcomer"),
            take("newcomer"),
            take(far),
            Remove("newcomer"),
            Remove(far),
            take("other", message=None),
            ForceRelease("nobody"),
            give("first", "open"),
            take("0"),
            give("0"),
        ]
        costs = []
        for operation in operations:
            statements.clear()
            store.apply(key, operation)
            costs.append(len(statements))
        statements.clear()
        store.inspect(key)
        store.reap()
        return [*costs, len(statements)]

    assert store.inspect("long").waiting == 20_000
    loaded = store.transact(lambda transaction: transaction.load("long"))
    assert len(loaded.line.head) == reach(loaded.document)
    assert cost("long", far="19998") == cost("short", far="8")
    statements.clear()
    store.apply("long", take("1"))
    for statement in statements[1:-1]:
        plan = [row[-1] for row in rows(path, f"EXPLAIN QUERY PLAN {statement}")]
        assert not any(step.startswith(("SCAN", "USE TEMP")) for step in plan), f"{plan} of {statement}"


def lengthen(path: Path, key: str, length: int) -> None:
    columns = "namespace, key, offer_until, offers, state, deaths, deadline, flags, cost, part, message"
    with closing(sqlite3.connect(path)) as database:
        ((last,),) = database.execute(
            "SELECT max(seq) FROM exclusive2_line WHERE key = ?", (key.encode(),)
        ).fetchall()
        values = [(str(id).encode(), last + id, last + id, key.encode()) for id in range(10, length)]
        database.executemany(
            f"INSERT INTO exclusive2_line (id, seq, place, {columns}) SELECT ?, ?, ?, {columns} "
            "FROM exclusive2_line WHERE namespace = X'6378' AND key = ? AND id = X'39'",
            values,
        )
        database.execute(
            "UPDATE exclusive2_lock SET waiting = ?, fence = fence + ? WHERE key = ?",
            (length, length, key.encode()),
        )
        database.commit()


@pytest.mark.proves("SQLite, trouble")
def test_a_call_that_is_interrupted_leaves_no_half_of_it(store: SqliteStore, path: Path) -> None:
    store.apply("key", take("a"))

    def stop() -> int:
        raise KeyboardInterrupt

    clock, store.clock = store.clock, stop
    with pytest.raises(KeyboardInterrupt):
        store.apply("key", give("a"))
    store.clock = clock
    assert [owner.id for owner in store.inspect("key").holders] == ["a"]
    rows(path, "BEGIN IMMEDIATE")  # nobody kept the file locked
    assert store.apply("key", give("a")).answer == Applied(True)


@pytest.mark.promise(
    "A locked SQLite file is unavailable and says why, a full disk is survived, a replaced file is opened "
    "anew",
    name="SQLite, trouble",
    broke="no retry, no rollback, file not looked at",
)
def test_a_file_that_stays_locked_is_unavailable_and_says_why(store: SqliteStore, path: Path) -> None:
    store.apply("key", take("a"))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match=rf"{path}: others kept it locked for 0\.2 s.*stopped"):
            store.apply("key", give("a"))
        assert store.inspect("key").holders  # who only looks is not in the way
    assert store.apply("key", give("a")).answer == Applied(True)


@pytest.mark.proves("SQLite, trouble")
def test_a_call_waits_for_others_to_finish_theirs(path: Path) -> None:
    store = open_store(f"sqlite:///{path}?timeout=60")
    store.apply("key", take("a"))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        answers: list[object] = []
        thread = threading.Thread(target=lambda: answers.append(store.apply("key", give("a")).answer))
        thread.start()
        thread.join(0.05)
        assert not answers
        other.execute("COMMIT")
        thread.join()
    assert answers == [Applied(True)]
    store.close()


@pytest.mark.proves("SQLite, trouble")
@pytest.mark.parametrize("is_new", [True, False], ids=["new", "idle"])
def test_a_call_that_is_interrupted_as_it_takes_a_connection_leaves_no_closed_one(
    store: SqliteStore, *, is_new: bool
) -> None:
    class Interrupted(list[Any]):
        def pop(self, *_: Any) -> Any:
            raise KeyboardInterrupt

    if not is_new:
        store.epoch()
    store._idle = Interrupted(store._idle)
    with suppress(KeyboardInterrupt):
        store.apply("key", take("a"))
    store._idle = list(store._idle)
    assert isinstance(store.apply("other", take("a")).answer, Granted)


@pytest.mark.proves("SQLite, trouble")
def test_a_full_disk_is_unavailable_and_the_store_goes_on_when_there_is_room(store: SqliteStore) -> None:
    store.apply("key", take("a"))
    (opened,) = store._idle
    pages = opened.connection.execute("PRAGMA page_count").fetchone()[0]
    opened.connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreUnavailable, match=r"disk is full; make room"):
        store.apply("key", take("b", message=b"x" * 100_000))
    assert store.inspect("key").waiting == 0
    assert isinstance(store.apply("key", take("b", message=b"x" * 100_000)).answer, Parked)


@pytest.mark.proves("SQLite, trouble")
def test_a_file_that_was_replaced_is_opened_anew_by_all(store: SqliteStore, path: Path) -> None:
    store.apply("key", take("a"))
    epoch = store.epoch()
    for file in path.parent.glob("locks.db*"):
        file.unlink()
    other = open_store(f"sqlite:///{path}")
    assert isinstance(other.apply("key", take("b")).answer, Granted)
    assert isinstance(store.apply("key", take("c", message=None)).answer, Held)
    assert store.epoch() == other.epoch() != epoch
    other.close()


def test_dropped_tables_are_created_again(store: SqliteStore, path: Path) -> None:
    store.apply("key", take("a"))
    for name in TABLES:
        rows(path, f"DROP TABLE {name}")
    with pytest.raises(StoreUnavailable, match="no such table"):
        store.apply("key", take("a"))
    assert isinstance(store.apply("key", take("a")).answer, Granted)


@pytest.mark.proves("SQLite, trouble")
def test_a_deleted_row_of_the_namespace_is_created_again(store: SqliteStore, path: Path) -> None:
    for ask in (lambda: store.apply("key", take("a")), store.reap, lambda: store.forget("key")):
        store.epoch()
        rows(path, "DELETE FROM exclusive2_namespace")
        with pytest.raises(StoreUnavailable, match="the row of 'cx' is gone; trying again is safe"):
            ask()
        ask()


@pytest.mark.promise(
    "A SQLite file with tables of another release is refused, as in a server",
    broke="red before: two releases shared a file, and 14 tasks held a limit of 12",
)
def test_a_file_with_tables_of_another_release_is_refused(store: SqliteStore, path: Path) -> None:
    store.apply("key", take("a"))
    rows(path, "UPDATE exclusive2_version SET version = 4")
    with closing(open_store(f"sqlite:///{path}")) as other:
        with pytest.raises(OptionError, match=rf"another release.*\(version 4, not {VERSION}\)"):
            other.check()
        with pytest.raises(StoreUnavailable, match="another release"):
            other.apply("key", take("b"))


def test_the_journal_of_a_sqlite_file_shrinks_after_a_reader_that_let_it_grow(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_LARGEST_JOURNAL", 2**16)
    journal = path.with_name(f"{path.name}-wal")
    store.epoch()
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM exclusive2_lock").fetchall()
        for number in range(10):
            store.apply("key", take(f"{number}", message=bytes(2**20)))
        assert journal.stat().st_size > 2**23
    for number in range(10, 14):
        store.apply("key", take(f"{number}", message=bytes(2**10)))
    assert journal.stat().st_size < 2**21


def test_locks_share_a_sqlite_file_with_tables_of_others(store: SqliteStore, path: Path) -> None:
    rows(path, "CREATE TABLE celery_taskmeta (id INTEGER)")
    store.apply("key", take("a"))
    assert rows(path, "SELECT count(*) FROM celery_taskmeta") == [(0,)]


def test_a_closed_store_keeps_nothing_open_and_opens_itself_again(store: SqliteStore, path: Path) -> None:
    store.apply("key", take("a"))
    store.close()
    assert [file.name for file in path.parent.iterdir()] == ["locks.db"]  # the last one tidies up
    assert store.apply("key", give("a")).answer == Applied(True)
