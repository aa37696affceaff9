"""The connections of a PostgreSQL store: lost ones, silent and restarted servers, poolers, threads, forks."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_exclusive.core.operations import (
    Acquire,
    AcquireAlone,
    Applied,
    Break,
    Granted,
    KeyOperation,
    Parked,
    Release,
    Remove,
    Renew,
    Restore,
)
from celery_exclusive.core.records import SECOND
from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.stores.sql import server as sql_server
from celery_exclusive.stores.sql.postgres import PostgresStore
from celery_exclusive.system.deadline import deadline
from tests.pgbouncer import PgBouncer
from tests.postgres import PostgresServer
from tests.proxy import Proxy
from tests.store.forks import fork_while_threads_call, in_a_fork

LIFE = 30 * SECOND
START = 1_800_000_000 * SECOND
COMMIT = b"COMMIT\0"
"""Not the word in `READ COMMITTED`."""
StartPostgres = Callable[..., PostgresServer]


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    opened = PostgresStore(postgres_url)
    yield opened
    opened.close()


@pytest.fixture
def proxy(postgres_url: str, postgres_server: PostgresServer) -> Iterator[Proxy]:
    with Proxy(postgres_server.port) as between:
        yield between


@pytest.fixture
def far(proxy: Proxy, postgres_server: PostgresServer) -> Iterator[PostgresStore]:
    """A store behind that network, which has made its tables."""
    opened = PostgresStore(postgres_server.url_of("tests", proxy.port))
    opened.epoch()
    yield opened
    opened.close()


def take(id: str, *, message: bytes | None = b"message") -> Acquire:
    return Acquire(id, f"token of {id}", LIFE, message=message)


def give(id: str) -> Release:
    return Release(id, f"token of {id}")


def state(store: PostgresStore, key: str) -> object:
    seen = store.inspect(key)
    return [owner.id for owner in seen.holders], seen.waiting, seen.aside


VERBS: dict[str, tuple[list[KeyOperation], KeyOperation, list[bytes]]] = {
    "grant": ([], take("a"), [b"WITH claim"]),
    "grant alone": ([], AcquireAlone("a", "token of a", LIFE, phase="queued"), [b"WITH claim"]),
    "release": ([take("a")], give("a"), [b"split_part"]),
    "park": (
        [take("a")],
        take("b"),
        [b"WITH claim", b"BEGIN", b"FOR UPDATE", b"LEFT JOIN", b"UPDATE exclusive2_lock",
         b"INSERT INTO exclusive2_line", COMMIT],
    ),
    "hand over": (
        [take("a"), take("b")],
        give("a"),
        [b"split_part", b"BEGIN", b"FOR UPDATE", b"LEFT JOIN", b"exclusive2_line", COMMIT],
    ),
    "remove": ([take("a"), take("b")], Remove("b"), [b"BEGIN", b"DELETE FROM exclusive2_line"]),
    "break": ([take("a"), take("b")], Break("a"), [b"BEGIN", b"UPDATE exclusive2_lock"]),
    "restore": ([], Restore("a", "token of a", LIFE), [b"BEGIN", b"INSERT INTO exclusive2_lock", COMMIT]),
}  # fmt: skip
LOSSES = [(verb, word) for verb, (_, _, words) in VERBS.items() for word in words]


@pytest.mark.parametrize(("verb", "word"), LOSSES, ids=[f"{verb}, {word.decode()}" for verb, word in LOSSES])
def test_a_connection_lost_at_any_statement_of_a_verb_changes_no_answer(
    verb: str, word: bytes, store: PostgresStore, proxy: Proxy, far: PostgresStore
) -> None:
    before, operation, _ = VERBS[verb]
    for key in ("whole", "lost"):
        for earlier in before:
            store.apply(key, earlier)
    expected = store.apply("whole", operation)
    proxy.lose(word)
    found = far.apply("lost", operation)
    assert proxy.met == [word]
    assert type(found.answer) is type(expected.answer)
    assert found.answer == expected.answer or not isinstance(found.answer, Applied)
    assert state(store, "lost") == state(store, "whole")
    if verb == "grant":
        assert isinstance(found.answer, Granted)
        assert store.inspect("lost").holders[0].fence == found.answer.fence


@pytest.mark.parametrize("word", [b"BEGIN", b"FOR UPDATE", b"UPDATE exclusive2_lock", COMMIT])
def test_a_connection_lost_in_a_heartbeat_costs_no_lease(
    word: bytes, store: PostgresStore, proxy: Proxy, far: PostgresStore
) -> None:
    for key in ("one", "two"):
        store.apply(key, take("a"))
    proxy.lose(word)
    leases = [(key, Renew("a", "token of a", 2 * LIFE)) for key in ("one", "two", "none")]
    assert far.renew(leases) == [True, True, False]
    assert proxy.met == [word]
    assert all(store.inspect(key).holders[0].remaining > LIFE for key in ("one", "two"))


@pytest.mark.parametrize("word", [b"BEGIN", b"UPDATE exclusive2_namespace", COMMIT])
def test_a_connection_lost_in_a_sweep_loses_no_message(
    word: bytes, store: PostgresStore, proxy: Proxy, far: PostgresStore
) -> None:
    now = START
    store.clock = far.clock = lambda: now
    for id in "abc":
        store.apply("key", take(id))
    store.apply("gone", take("a"))
    now += LIFE
    proxy.lose(word)
    far.reap()
    assert proxy.met == [word]
    assert state(store, "key") == ([], 2, 0)
    now += 5 * SECOND  # an offer whose message was in the lost answer is made again
    again = store.reap()
    assert [wake.id for wake in again.wake] == ["b"]
    assert list(store.scan()) == ["key"]


def test_a_promoted_copy_is_not_lost_if_its_lease_ended_before_the_lost_reply_was_asked_for_again(
    store: PostgresStore, proxy: Proxy, far: PostgresStore
) -> None:
    store.apply("key", take("a"))
    store.apply("key", take("b"))
    (wake,) = store.apply("key", give("a")).wake
    proxy.lose(COMMIT)
    short = Acquire("b", "token of b", ttl=1, promoted=wake.epoch)
    assert isinstance(far.apply("key", short).answer, Granted)
    assert proxy.met == [COMMIT]


def test_a_second_loss_is_told(store: PostgresStore, proxy: Proxy, far: PostgresStore) -> None:
    proxy.lose(b"WITH claim")
    proxy.lose(b"BEGIN")
    with pytest.raises(StoreUnavailable, match="check that it runs"):
        far.apply("key", take("a"))
    assert isinstance(far.apply("key", Acquire("a", "token of a", LIFE, redelivered=True)).answer, Granted)


@pytest.mark.parametrize("lost", ["requests", "replies"])
def test_a_server_that_does_not_answer_is_given_up_in_time(
    lost: str, proxy: Proxy, far: PostgresStore
) -> None:
    far.apply("key", take("a"))
    proxy.drop(**{lost: True})
    with deadline(0.3), pytest.raises(StoreUnavailable, match=r"no answer in 0\.\d+ s; check that it runs"):
        far.apply("key", take("b"))
    proxy.restore()
    assert isinstance(far.apply("key", take("a")).answer, Granted)


def test_a_server_that_stands_still_is_given_up_in_time(start_postgres: StartPostgres) -> None:
    server = start_postgres()
    store = PostgresStore(server.url)
    store.apply("key", take("a"))
    server.pause()
    with deadline(0.3):
        with pytest.raises(StoreUnavailable, match="no answer"):
            store.apply("key", take("b"))
        with pytest.raises(StoreUnavailable, match="timeout"):
            store.check()
    server.resume()
    assert isinstance(store.apply("key", take("a")).answer, Granted)
    store.close()


def test_a_server_that_nobody_started_is_told_at_once() -> None:
    store = PostgresStore("postgresql+psycopg2://user:secret@127.0.0.1:1/locks")
    with pytest.raises(StoreUnavailable, match=r"postgresql://user@127\.0\.0\.1:1/locks: .* refused") as told:
        store.apply("key", take("a"))
    assert "secret" not in str(told.value)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_restarted_server_has_kept_leases_line_and_epoch(how: str, start_postgres: StartPostgres) -> None:
    server = start_postgres()
    store = PostgresStore(server.url)
    granted = store.apply("key", take("a"))
    store.apply("key", take("b"))
    epoch = store.epoch()
    getattr(server, how)()
    with pytest.raises(StoreUnavailable):
        store.apply("key", take("a"))
    server.start()
    assert store.apply("key", take("a")) == granted
    (wake,) = store.apply("key", give("a")).wake
    assert (wake.id, wake.epoch) == ("b", epoch)
    barrier = threading.Barrier(3)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: store.transact(lambda _: barrier.wait()), range(3)))
    assert len(list(store._idle)) == 3
    server.restart()  # the next call finds a dropped connection, and trusts the others no more
    assert isinstance(store.apply("key", take("b")).answer, Granted)
    store.close()


def test_a_server_that_has_become_a_replica_is_told_as_unavailable(start_postgres: StartPostgres) -> None:
    server = start_postgres(hot_standby="on", primary_conninfo="host=127.0.0.1 port=1")
    store = PostgresStore(server.url)
    store.apply("key", take("a"))
    server.stop()
    server.become_replica()
    for ask in (lambda: store.apply("key", take("b")), store.reap, store.check):
        with pytest.raises(StoreUnavailable, match=r"read-only.* point exclusive_store to the primary"):
            ask()
    assert store.inspect("key").holders
    server.stop()
    server.become_primary()
    assert isinstance(store.apply("key", take("b")).answer, Parked)
    store.close()


def test_others_that_stay_in_the_way_are_told(
    store: PostgresStore, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.apply("key", take("a"))
    monkeypatch.setattr(sql_server, "PATIENCE", 0.1)
    with postgres_server.connect() as stranger:
        stranger.execute("BEGIN; SELECT FROM exclusive2_lock FOR UPDATE")
        with pytest.raises(StoreUnavailable, match=r"lock timeout.*others kept it locked.* stopped"):
            store.renew([("key", Renew("a", "token of a", LIFE))])
        assert store.inspect("key").holders  # who only looks does not wait
        stranger.execute("COMMIT")
    assert store.renew([("key", Renew("a", "token of a", LIFE))]) == [True]


def test_through_a_pooler_nothing_is_kept_in_a_session(
    pgbouncer: PgBouncer, store: PostgresStore, postgres_server: PostgresServer
) -> None:
    pooled = PostgresStore(pgbouncer.url)
    pooled.epoch()
    settings = "SELECT current_setting('lock_timeout'), current_setting('statement_timeout')"

    def work(name: str) -> None:
        for _ in range(30):
            assert isinstance(pooled.apply(name, take(name)).answer, Granted)
            pooled.apply(name, take(f"{name} waits"))
            pooled.apply(name, Remove(f"{name} waits"))
            assert pooled.apply(name, give(name)).answer == Applied(True)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, "abcdef"))
    for session in list(pooled._idle):
        session.cursor.execute(settings)
        assert session.cursor.fetchone() == ("0", "0")
        session.cursor.execute("SELECT count(*) FROM pg_prepared_statements")
        assert session.cursor.fetchone() == (0,)
    pooled.close()


def test_threads_share_a_store_and_leave_no_more_connections_than_ran_at_once(store: PostgresStore) -> None:
    inside: set[str] = set()

    def work(name: str) -> int:
        granted = 0
        for _ in range(50):
            if isinstance(store.apply("key", take(name, message=None)).answer, Granted):
                assert not inside
                inside.add(name)
                granted += 1
                inside.remove(name)
                assert store.apply("key", give(name)).answer == Applied(True)
        return granted

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(work, "abcd")) > 0
    assert 1 <= len(list(store._idle)) <= 4


def test_a_forked_child_has_a_connection_of_its_own(store: PostgresStore) -> None:
    granted = store.apply("key", take("a"))
    (mine,) = store._idle

    def child() -> bool:
        is_same = store.apply("key", take("a")) == granted
        (its,) = store._idle
        return is_same and its.connection.info.backend_pid != mine.connection.info.backend_pid

    assert in_a_fork(child)
    assert list(store._idle) == [mine]
    assert store.apply("key", give("a")).answer == Applied(True)
    assert list(store._idle) == [mine]  # the child's end did not end it


def test_a_child_may_be_forked_while_other_threads_call(store: PostgresStore) -> None:
    fork_while_threads_call(store)


GREEN = """
import gevent.monkey
gevent.monkey.patch_all()
import gevent, sys
from celery_exclusive.stores.sql.postgres import PostgresStore
from celery_exclusive.system.threads import NativeThread
from tests.store.test_postgres_client import give, take
from tests.proxy import Proxy

store = PostgresStore(sys.argv[1])
ticks, names = [], [f"{n}" for n in range(10)]
store.apply("held", take("a"))

def use(name):
    for _ in range(5):
        store.apply(name, take(name))
        store.apply(name, give(name))

def wait():
    store.transact(lambda it: it.cursor.execute("SELECT pg_sleep(1)"))
    ticks.append("waited")

def tick():
    gevent.sleep(0)
    ticks.append("ran meanwhile")

waiting = gevent.spawn(wait)
gevent.sleep(0.05)
gevent.joinall([gevent.spawn(tick), *(gevent.spawn(use, name) for name in names)], raise_error=True)
waiting.get()
heard = []
thread = NativeThread(lambda: heard.append(len(store.inspect("held").holders)))
thread.start()
thread.join(30)
print(ticks, heard)
"""


def test_greenlets_and_a_thread_beside_them_use_a_store_side_by_side(postgres_url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", GREEN, postgres_url], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "['ran meanwhile', 'waited'] [1]", done.stderr


def test_a_closed_store_connects_again_when_used(
    store: PostgresStore, postgres_server: PostgresServer
) -> None:
    store.apply("key", take("a"))
    (session,) = store._idle
    pid = session.connection.info.backend_pid
    count = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
    store.close()
    with postgres_server.connect() as connection:
        while connection.execute(count, (pid,)).fetchone() != (0,):
            pass
    assert store.inspect("key").holders


def test_an_interrupted_call_leaves_no_answer_for_the_next(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.apply("key", take("a"))
    (session,) = store._idle

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(session.transaction, "_swap_line", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.apply("key", take("b"))
    assert store.inspect("key").waiting == 0
    assert session not in store._idle
    assert isinstance(store.apply("key", take("b")).answer, Parked)  # no row stayed locked
