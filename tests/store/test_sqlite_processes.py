"""A SQLite store between processes: forks, threads, kills and pauses in the middle of a write."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import signal
import sqlite3
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from secrets import token_hex

import pytest

from celery_exclusive.core.operations import (
    Acquire,
    Applied,
    Granted,
    KeyOperation,
    Release,
    Remove,
    Renew,
    Stale,
)
from celery_exclusive.core.records import SECOND
from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.stores.base import Snapshot, Store, open_store
from celery_exclusive.stores.sql.sqlite import SqliteStore
from celery_exclusive.stores.sql.sqlite_transaction import _inherited
from tests.store.operations import LIFE, give, take
from tests.worker.journal import eventually

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    opened = open_store(f"sqlite:///{path}?timeout=60")
    assert isinstance(opened, SqliteStore)
    yield opened
    opened.close()


@pytest.fixture
def fork() -> Iterator[Callable[[Callable[[], object]], int]]:
    """Forks a child that does something; it ends with 0 if that comes back. None outlives the test."""
    children: list[int] = []

    def start(work: Callable[[], object]) -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the threads that there may be are ours
            pid = os.fork()
        if pid:
            children.append(pid)
            return pid
        try:
            work()
        except BaseException:  # noqa: BLE001 - nothing of the test run may go on in the child
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    yield start
    for pid in children:
        with suppress(ChildProcessError):  # the test has seen its end
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def is_sound(path: Path) -> bool:
    with closing(sqlite3.connect(path)) as database:
        return database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def open_files(path: Path) -> int:
    """How many descriptors of the database, its log and its index this process has."""
    links = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum(str(link).startswith(str(path)) for link in links)


@pytest.mark.promise(
    "A SQLite store works in forks and threads",
    name="SQLite, forks and threads",
    broke="connections open during a fork",
)
def test_a_forked_child_is_known_to_others_as_a_user_of_the_file(
    store: SqliteStore, path: Path, fork: Callable[[Callable[[], object]], int]
) -> None:
    """Else the last of the others to close the file takes away the log into which the child writes."""
    store.apply("key", take("parent"))
    go, done = os.pipe(), os.pipe()

    def child() -> None:
        store.inspect("key")
        os.write(done[1], b".")
        os.read(go[0], 1)
        assert store.apply("key", take("child")).answer

    pid = fork(child)
    os.read(done[0], 1)
    store.close()
    os.write(go[1], b".")
    assert ended(pid) == 0
    assert store.inspect("key").waiting == 1
    assert is_sound(path)
    for end in (*go, *done):
        os.close(end)


@pytest.mark.proves("SQLite, forks and threads")
def test_a_fork_waits_for_a_thread_that_writes(
    store: SqliteStore, fork: Callable[[Callable[[], object]], int]
) -> None:
    """Else the child would take over the thread's lock, and no one who could give it back."""
    store.apply("key", take("parent"))
    is_inside, go_on = threading.Event(), threading.Event()
    clock = store.clock

    def slow() -> int:
        is_inside.set()
        go_on.wait()
        store.clock = clock
        return clock()

    store.clock = slow
    writer = threading.Thread(target=lambda: store.apply("key", give("parent")))
    writer.start()
    is_inside.wait()
    waker = threading.Timer(0.1, go_on.set)
    waker.start()
    pid = fork(lambda: answer_is_granted(store, take("child")))
    writer.join()
    waker.join()
    assert ended(pid) == 0
    assert [owner.id for owner in store.inspect("key").holders] == ["child"]


def answer_is_granted(store: Store, operation: KeyOperation) -> None:
    assert isinstance(store.apply("key", operation).answer, Granted)


@pytest.mark.proves("SQLite, forks and threads")
def test_parent_and_children_use_a_store_at_the_same_time(
    store: SqliteStore, path: Path, fork: Callable[[Callable[[], object]], int]
) -> None:
    """Forked again and again, while threads of the parent are at it."""

    def work(name: str) -> None:
        for number in range(20):
            operation = take(f"{name} {number}")
            store.apply(name, operation)
            assert store.apply(name, give(operation.id)).answer == Applied(True)

    threads = [threading.Thread(target=work, args=(f"thread {number}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    children = [fork(lambda number=number: work(f"child {number}")) for number in range(6)]
    for thread in threads:
        thread.join()
    assert [ended(pid) for pid in children] == [0] * 6
    assert not list(store.scan())
    assert is_sound(path)


@pytest.mark.proves("SQLite, forks and threads")
@pytest.mark.skipif(sys.platform != "linux", reason="needs the C library's fork")
def test_a_child_that_was_forked_behind_pythons_back_leaves_the_connection_of_its_parent_alone(
    store: SqliteStore, path: Path
) -> None:
    store.apply("key", take("parent"))
    (before,) = store._idle
    pid = ctypes.PyDLL(None).fork()
    if not pid:
        code = 1
        with suppress(BaseException):
            store.apply("key", take("child"))
            code = 0 if before not in store._idle and before in _inherited else 2
        os._exit(code)
    assert ended(pid) == 0
    assert store._idle == [before]
    assert [wake.id for wake in store.apply("key", give("parent")).wake] == ["child"]
    assert is_sound(path)


@pytest.mark.proves("SQLite, trouble")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a file not closed, but freed
def test_an_error_of_a_signal_handler_leaves_no_transaction_open(store: SqliteStore, path: Path) -> None:
    """A time limit strikes at any moment; what was asked is asked again, with the same outcome."""

    class TimeUp(Exception):
        pass

    def strike(*_: object) -> None:
        raise TimeUp

    store.epoch()
    chance, strikes = random.Random(0), 0
    before = signal.signal(signal.SIGALRM, strike)
    try:
        with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
            for number in range(500):
                id = f"{number}"
                is_closed = number % 4 == 0
                if is_closed:  # the next call opens the file, and makes what is missing
                    store.close()
                    other.execute("DELETE FROM exclusive2_namespace")
                try:
                    signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 3e-3 if is_closed else 5e-4))
                    store.apply("key", take(id))
                    store.apply("key", give(id))
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except TimeUp:
                    strikes += 1
                    other.execute("BEGIN IMMEDIATE")  # while the traceback holds all that the call used
                    other.execute("COMMIT")
                store.apply("key", Acquire(id, f"token of {id}", LIFE, redelivered=True))
                store.apply("key", give(id))
                assert store.inspect("key") == Snapshot()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    gc.collect()  # now, not in another test
    assert strikes > 10
    assert is_sound(path)


@pytest.mark.proves("SQLite, forks and threads")
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_threads_that_have_ended_leave_no_connection(store: SqliteStore, path: Path) -> None:
    for number in range(20):
        thread = threading.Thread(target=store.apply, args=("key", take(f"{number}")))
        thread.start()
        thread.join()
    assert 1 <= open_files(path) <= 3
    store.close()
    assert open_files(path) == 0


@pytest.mark.proves("SQLite, forks and threads")
def test_a_new_file_may_be_opened_by_many_at_once(
    path: Path, fork: Callable[[Callable[[], object]], int]
) -> None:
    start, epochs = os.pipe(), os.pipe()

    def child() -> None:
        store = open_store(f"sqlite:///{path}?timeout=60")
        os.read(start[0], 1)
        os.write(epochs[1], store.epoch().encode())

    children = [fork(child) for _ in range(8)]
    os.write(start[1], b"." * 8)
    assert [ended(pid) for pid in children] == [0] * 8
    told = os.read(epochs[0], 1000)
    assert told == 8 * told[:16]
    for end in (*start, *epochs):
        os.close(end)


OPERATIONS: list[tuple[str, KeyOperation]] = [
    ("key", take("a")),
    ("key", take("b")),
    ("other", take("c")),
    ("key", take("d")),
    ("key", Remove("d")),
    ("key", give("a")),
    ("other", give("c")),
    ("key", take("b")),
    ("key", give("b")),
]


@pytest.mark.promise(
    "A SQLite store survives SIGKILL in any statement",
    name="SQLite, SIGKILL",
    broke="no transaction",
    figure="1,000 kills (`KILLS=1000`): integrity ok, fences grow, lines empty",
)
def test_a_process_killed_before_any_statement_leaves_all_of_an_operation_or_nothing(
    path: Path, fork: Callable[[Callable[[], object]], int]
) -> None:
    """Each child dies one statement later. Who repeats what it did not finish comes to the same end."""

    def work(store: SqliteStore, first: int = 0) -> None:
        for key, operation in OPERATIONS[first:]:
            store.apply(key, operation)
            os.write(finished[1], b".")

    def child(store: SqliteStore, last_statement: int) -> None:
        store.inspect("key")
        left = [last_statement]

        def count(statement: str) -> None:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)

        store._idle[0].connection.set_trace_callback(count)
        work(store)

    deaths = 0
    while True:
        finished = os.pipe()
        store = open_store(f"sqlite:///{path}", prefix=f"{deaths}")
        assert isinstance(store, SqliteStore)
        code = ended(fork(lambda store=store, deaths=deaths: child(store, deaths)))
        os.write(finished[1], b" ")
        done = os.read(finished[0], 100).count(b".")
        assert is_sound(path)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        work(store, done)  # the one that was cut off is repeated
        assert not list(store.scan())
        redelivered = Acquire("b", "another token", LIFE, redelivered=True, message=b"")
        assert store.apply("key", redelivered).answer == Stale()
        store.close()
        for end in finished:
            os.close(end)
        deaths += 1
    assert deaths >= 3 * len(OPERATIONS)
    store.close()
    for end in finished:
        os.close(end)


@pytest.mark.proves("SQLite, SIGKILL")
def test_a_process_stopped_in_the_middle_of_a_write_is_in_the_way_until_it_dies(
    store: SqliteStore, path: Path, fork: Callable[[Callable[[], object]], int]
) -> None:
    fence = store.apply("key", take("a")).answer
    store.apply("key", take("b"))

    def child() -> None:
        """Has written the lock's row, not yet the line's: stops before it gives b its offer."""
        store.inspect("key")
        store._idle[0].connection.set_trace_callback(
            lambda statement: "UPDATE exclusive2_line" in statement and os.kill(os.getpid(), signal.SIGSTOP)
        )
        store.apply("key", give("a"))

    pid = fork(child)
    assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
    impatient = open_store(f"sqlite:///{path}?timeout=0.1")
    with pytest.raises(StoreUnavailable, match="stopped"):
        impatient.apply("other", take("c"))
    assert [owner.id for owner in impatient.inspect("key").holders] == ["a"]  # who looks sees what was
    os.kill(pid, signal.SIGKILL)
    assert ended(pid) == -signal.SIGKILL
    assert isinstance(impatient.apply("other", take("c")).answer, Granted)
    (wake,) = impatient.apply("key", give("a")).wake  # nothing of the half release has happened
    assert wake.id == "b"
    next_one = impatient.apply("key", Acquire("b", "t", LIFE, promoted=wake.epoch)).answer
    assert isinstance(fence, Granted)
    assert isinstance(next_one, Granted)
    assert next_one.fence > fence.fence
    assert is_sound(path)
    impatient.close()


KILLS = int(os.environ.get("KILLS", "60"))


@pytest.mark.proves("SQLite, SIGKILL")
@pytest.mark.timeout(600 + KILLS)
def test_eight_processes_that_are_killed_at_any_moment_do_no_harm(
    path: Path, tmp_path: Path, fork: Callable[[Callable[[], object]], int]
) -> None:
    store = open_store(f"sqlite:///{path}?timeout=60", offer=0.01)
    journal = os.open(tmp_path / "journal", os.O_APPEND | os.O_CREAT | os.O_WRONLY)
    store.epoch()

    def child(seed: int) -> None:
        be_busy(store, journal, random.Random(seed))

    children = [fork(lambda seed=seed: child(seed)) for seed in range(8)]
    chance = random.Random(0)
    for number in range(KILLS):
        time.sleep(chance.random() / 40)
        victim = chance.randrange(8)
        os.kill(children[victim], signal.SIGKILL)
        assert ended(children[victim]) == -signal.SIGKILL
        children[victim] = fork(lambda number=number: child(100 + number))
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        assert ended(pid) == -signal.SIGKILL
    os.close(journal)
    assert is_sound(path)
    grants = [line.split("\t") for line in (tmp_path / "journal").read_text().splitlines()]
    fences = [(key, int(fence)) for key, fence in grants]
    assert len(fences) > KILLS
    assert len(set(fences)) == len(fences)
    highest = {key: max(fence for one, fence in fences if one == key) for key in {key for key, _ in fences}}
    all_move_on(store)
    for key, fence in highest.items():
        answer = store.apply(key, take("last")).answer
        assert isinstance(answer, Granted)
        assert answer.fence > fence
    store.close()


def be_busy(store: Store, journal: int, chance: random.Random) -> None:
    """Take and give back; deliver to oneself what one is told to publish; note all fences."""
    ttl = SECOND // 20
    for number in count():
        todo = [(f"key {chance.randrange(4)}", take(f"{os.getpid()} {number}", ttl=ttl))]
        while todo:
            key, asked = todo.pop()
            replies = [store.apply(key, asked)]
            if isinstance(granted := replies[0].answer, Granted):
                os.write(journal, f"{key}\t{granted.fence}\n".encode())
                store.renew([(key, Renew(asked.id, asked.token, ttl))])
                replies.append(store.apply(key, Release(asked.id, asked.token)))
            if chance.random() < 0.1:
                replies.append(store.reap())
            if chance.random() < 0.01:
                store.close()
            todo += [
                (wake.key, Acquire(wake.id, token_hex(8), ttl, promoted=wake.epoch))
                for reply in replies
                for wake in reply.wake
            ]


def all_move_on(store: Store) -> None:
    """Who died in line is offered its turn by the reaper and taken out: no wake-up is lost."""

    def move() -> bool:
        for wake in store.reap().wake:
            store.apply(wake.key, Remove(wake.id))
        return not list(store.scan())

    eventually(move, "all lines are empty")
