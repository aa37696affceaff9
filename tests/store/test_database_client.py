"""The connections to a database server: lost ones, silent and restarted servers, poolers, threads, forks."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_exclusive.core.operations import (
    Acquire,
    AcquireAlone,
    Applied,
    ForceRelease,
    Granted,
    KeyOperation,
    Parked,
    Release,
    Remove,
    Renew,
    Requeue,
    Restore,
)
from celery_exclusive.core.records import SECOND
from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.stores.base import open_store
from celery_exclusive.stores.sql import server as sql_server
from celery_exclusive.stores.sql.server import ServerStore
from celery_exclusive.system.deadline import deadline
from tests.proxy import Proxy
from tests.store.conftest import Database, StartDatabase
from tests.store.forks import fork_while_threads_call, in_a_fork
from tests.store.operations import LIFE, give, take
from tests.store.threads import threads_hold_a_key_one_at_a_time

START = 1_800_000_000 * SECOND
GRANT, RELEASE, BEGIN, COMMIT = b"AS stones", b'"holders": []}', b"BEGIN", b"COMMIT"
WORDS = {
    "postgres": {COMMIT: b"COMMIT\0"},  # not the word in `READ COMMITTED`
    "maria": {BEGIN: b"START TRANSACTION", COMMIT: b"COMMIT;"},
}


class Network(Proxy):
    """One that knows statements by the words of any kind of database."""

    def __init__(self, port: int, kind: str) -> None:
        super().__init__(port)
        self._words = WORDS[kind]

    def spelt(self, word: bytes) -> bytes:
        return self._words.get(word, word)

    def lose(self, word: bytes, times: int = 1) -> None:
        super().lose(self.spelt(word), times)


@pytest.fixture
def proxy(database: Database, kind: str) -> Iterator[Network]:
    with Network(database.port, kind) as between:
        yield between


@pytest.fixture
def far(proxy: Network, database: Database) -> Iterator[ServerStore]:
    """A store behind that network, which has made its tables."""
    opened = database.open_store(proxy.port)
    opened.epoch()
    yield opened
    opened.close()


def state(store: ServerStore, key: str) -> object:
    seen = store.inspect(key)
    return [owner.id for owner in seen.holders], seen.waiting, seen.aside


COPY = Acquire("a", "token of its copy", LIFE, redelivered=True, message=b"message")
VERBS: dict[str, tuple[list[KeyOperation], KeyOperation, list[bytes]]] = {
    "grant": ([], take("a"), [GRANT]),
    "grant alone": ([], AcquireAlone("a", "token of a", LIFE, phase="queued"), [GRANT]),
    "release": ([take("a")], give("a"), [RELEASE]),
    "release beside a copy": (
        [take("a"), COPY], Release("a", "token of a", "if_no_copy"), [BEGIN, b"FOR UPDATE", COMMIT],
    ),
    "park": (
        [take("a")],
        take("b"),
        [GRANT, BEGIN, b"FOR UPDATE", b"LEFT JOIN", b"UPDATE exclusive2_lock",
         b"INSERT INTO exclusive2_line", COMMIT],
    ),
    "hand over": (
        [take("a"), take("b")],
        give("a"),
        [RELEASE, BEGIN, b"FOR UPDATE", b"LEFT JOIN", b"exclusive2_line", COMMIT],
    ),
    "requeue": (
        [take("a"), COPY], Requeue("a", "token of a", LIFE), [BEGIN, b"UPDATE exclusive2_lock", COMMIT],
    ),
    "remove": ([take("a"), take("b")], Remove("b"), [BEGIN, b"DELETE FROM exclusive2_line"]),
    "force release": ([take("a"), take("b")], ForceRelease("a"), [BEGIN, b"UPDATE exclusive2_lock"]),
    "restore": ([], Restore("a", "token of a", LIFE), [BEGIN, b"INSERT INTO exclusive2_lock", COMMIT]),
}  # fmt: skip
LOSSES = [(verb, word) for verb, (_, _, words) in VERBS.items() for word in words]


@pytest.mark.promise(
    "A connection to a database that is lost at any statement of any verb changes no answer",
    name="databases, lost connection",
    broke="no other try; not as a redelivered one; a repeated release is an alarm",
)
@pytest.mark.proves("refused release with a lost answer")
@pytest.mark.parametrize(("verb", "word"), LOSSES, ids=[f"{verb}, {word.decode()}" for verb, word in LOSSES])
def test_a_connection_lost_at_any_statement_of_a_verb_changes_no_answer(
    verb: str, word: bytes, store: ServerStore, proxy: Network, far: ServerStore
) -> None:
    before, operation, _ = VERBS[verb]
    for key in ("whole", "lost"):
        for earlier in before:
            store.apply(key, earlier)
    expected = store.apply("whole", operation)
    proxy.lose(word)
    found = far.apply("lost", operation)
    assert proxy.met == [proxy.spelt(word)]
    assert type(found.answer) is type(expected.answer)
    assert found.answer == expected.answer or not isinstance(found.answer, Applied)
    assert state(store, "lost") == state(store, "whole")
    if verb == "grant":
        assert isinstance(found.answer, Granted)
        assert store.inspect("lost").holders[0].fence == found.answer.fence


@pytest.mark.proves("databases, lost connection")
@pytest.mark.parametrize("word", [BEGIN, b"FOR UPDATE", b"UPDATE exclusive2_lock", COMMIT])
def test_a_connection_lost_in_a_heartbeat_costs_no_lease(
    word: bytes, store: ServerStore, proxy: Network, far: ServerStore
) -> None:
    for key in ("one", "two"):
        store.apply(key, take("a"))
    proxy.lose(word)
    leases = [(key, Renew("a", "token of a", 2 * LIFE)) for key in ("one", "two", "none")]
    assert far.renew(leases) == [True, True, False]
    assert proxy.met == [proxy.spelt(word)]
    assert all(store.inspect(key).holders[0].remaining > LIFE for key in ("one", "two"))


@pytest.mark.proves("databases, lost connection")
@pytest.mark.parametrize("word", [BEGIN, b"UPDATE exclusive2_namespace", COMMIT])
def test_a_connection_lost_in_a_sweep_loses_no_message(
    word: bytes, store: ServerStore, proxy: Network, far: ServerStore
) -> None:
    now = START
    store.clock = far.clock = lambda: now
    for id in "abc":
        store.apply("key", take(id))
    store.apply("gone", take("a"))
    now += LIFE
    proxy.lose(word)
    far.reap()
    assert proxy.met == [proxy.spelt(word)]
    assert state(store, "key") == ([], 2, 0)
    now += 5 * SECOND  # an offer whose message was in the lost answer is made again
    woken = list[str]()
    while not woken:  # the server may not have noticed yet that the lost connection is gone, and its locks
        woken = [wake.id for wake in store.reap().wake]
    assert woken == ["b"]
    assert list(store.scan()) == ["key"]


@pytest.mark.proves("databases, lost connection")
def test_a_promoted_copy_is_not_lost_if_its_lease_ended_before_the_lost_reply_was_asked_for_again(
    store: ServerStore, proxy: Network, far: ServerStore
) -> None:
    store.apply("key", take("a"))
    store.apply("key", take("b"))
    (wake,) = store.apply("key", give("a")).wake
    proxy.lose(COMMIT)
    short = Acquire("b", "token of b", ttl=1, promoted=wake.epoch)
    assert isinstance(far.apply("key", short).answer, Granted)
    assert proxy.met == [proxy.spelt(COMMIT)]


@pytest.mark.proves("databases, lost connection")
def test_a_second_loss_is_reported(store: ServerStore, proxy: Network, far: ServerStore) -> None:
    proxy.lose(GRANT)
    proxy.lose(BEGIN)
    with pytest.raises(StoreUnavailable, match="check that it runs"):
        far.apply("key", take("a"))
    assert isinstance(far.apply("key", Acquire("a", "token of a", LIFE, redelivered=True)).answer, Granted)


@pytest.mark.promise(
    "A database server that is silent, stands still, restarts, is killed, or becomes a replica is given up "
    "in time, and used when it is back",
    name="databases, silent server",
    broke="answers are waited for without end; the other connections are trusted after one was lost",
)
@pytest.mark.parametrize("lost", ["requests", "replies"])
def test_a_server_that_does_not_answer_is_given_up_in_time(
    lost: str, proxy: Network, far: ServerStore
) -> None:
    far.apply("key", take("a"))
    proxy.drop(**{lost: True})
    with deadline(0.3), pytest.raises(StoreUnavailable, match=r"no answer in 0\.\d+ s; .* its URL is right"):
        far.apply("key", take("b"))
    proxy.restore()
    assert isinstance(far.apply("key", take("a")).answer, Granted)


@pytest.mark.proves("databases, silent server")
def test_a_server_that_stands_still_is_given_up_in_time(start_database: StartDatabase) -> None:
    server = start_database()
    store = server.open_store()
    store.apply("key", take("a"))
    server.pause()
    with deadline(0.3):
        with pytest.raises(StoreUnavailable, match="no answer"):
            store.apply("key", take("b"))
        with pytest.raises(StoreUnavailable, match=r"timeout|no answer"):
            store.check()
    server.resume()
    assert isinstance(store.apply("key", take("a")).answer, Granted)
    store.close()


@pytest.mark.proves("databases, silent server")
@pytest.mark.parametrize("scheme", ["postgresql+psycopg2", "mysql+mysqldb", "mariadb"])
def test_a_server_that_does_not_run_is_reported_at_once(scheme: str) -> None:
    store = open_store(f"{scheme}://user:secret@127.0.0.1:1/locks")
    shown = rf"{scheme.partition('+')[0]}://user@127\.0\.0\.1:1/locks: .* refused"
    with pytest.raises(StoreUnavailable, match=shown) as raised:
        store.apply("key", take("a"))
    assert "secret" not in str(raised.value)


@pytest.mark.proves("databases, silent server")
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_restarted_server_has_kept_leases_line_and_epoch(how: str, start_database: StartDatabase) -> None:
    server = start_database()
    store = server.open_store()
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


@pytest.mark.proves("databases, silent server")
def test_a_server_that_has_become_a_replica_is_reported_as_unavailable(start_database: StartDatabase) -> None:
    server = start_database()
    store = server.open_store()
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


@pytest.mark.proves("databases, standing client", "databases, silent server")
def test_other_connections_that_block_a_call_are_reported(
    store: ServerStore, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.apply("key", take("a"))
    monkeypatch.setattr(sql_server, "PATIENCE", 0.1)
    with database.stranger() as stranger:
        stranger.execute("BEGIN")
        stranger.execute("SELECT 1 FROM exclusive2_lock FOR UPDATE")
        with pytest.raises(
            StoreUnavailable, match=r"(?i)lock (wait )?timeout.*others kept it locked.* stopped"
        ):
            store.apply("key", ForceRelease("nobody"))
        assert store.inspect("key").holders  # who only looks does not wait
        stranger.execute("COMMIT")
    assert store.apply("key", ForceRelease("a")).answer == Applied(True)


@pytest.mark.promise(
    "A database store works in threads, forks, gevent and through interruptions",
    name="databases, threads and forks",
    broke="the parent's connections used",
)
def test_threads_share_a_store_and_leave_no_more_connections_than_ran_at_once(store: ServerStore) -> None:
    threads_hold_a_key_one_at_a_time(store, 50)
    assert 1 <= len(list(store._idle)) <= 4


@pytest.mark.proves("databases, threads and forks")
def test_a_forked_child_has_a_connection_of_its_own(store: ServerStore, database: Database) -> None:
    granted = store.apply("key", take("a"))
    (mine,) = store._idle
    number = database.number(mine.connection)

    def child() -> bool:
        is_same = store.apply("key", take("a")) == granted
        (its,) = store._idle
        return is_same and database.number(its.connection) != number

    assert in_a_fork(child)
    assert list(store._idle) == [mine]
    assert store.apply("key", give("a")).answer == Applied(True)
    assert list(store._idle) == [mine]  # the child's end did not end it


@pytest.mark.proves("databases, threads and forks")
def test_a_child_may_be_forked_while_other_threads_call(store: ServerStore) -> None:
    fork_while_threads_call(store)


GREEN = """
import gevent.monkey
gevent.monkey.patch_all()
import gevent, sys
from celery_exclusive.stores.base import open_store
from celery_exclusive.system.threads import NativeThread
from tests.store.operations import give, take

store = open_store(sys.argv[1])
ticks, names = [], [f"{n}" for n in range(10)]
store.apply("held", take("a"))

def use(name):
    for _ in range(5):
        store.apply(name, take(name))
        store.apply(name, give(name))

def wait():
    store.transact(lambda it: it.cursor.execute(f"SELECT {sys.argv[2]}(1)"))
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


@pytest.mark.proves("databases, threads and forks")
def test_greenlets_and_a_thread_beside_them_use_a_store_side_by_side(database: Database) -> None:
    done = subprocess.run(
        [sys.executable, "-c", GREEN, database.url, database.sleep],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "['ran meanwhile', 'waited'] [1]", done.stderr


def test_a_closed_store_connects_again_when_used(store: ServerStore, database: Database) -> None:
    store.apply("key", take("a"))
    (session,) = store._idle
    number = database.number(session.connection)
    assert number in database.numbers()
    store.close()
    while number in database.numbers():
        pass
    assert store.inspect("key").holders


@pytest.mark.proves("databases, threads and forks")
def test_an_interrupted_call_leaves_no_answer_for_the_next(
    store: ServerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.apply("key", take("a"))
    (session,) = store._idle

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "_swap_line", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.apply("key", take("b"))
    assert store.inspect("key").waiting == 0
    assert session not in store._idle
    assert isinstance(store.apply("key", take("b")).answer, Parked)  # no row stayed locked
