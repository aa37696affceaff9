"""One store, many users: clients, threads, forked children."""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from celery_exclusive.core.operations import Granted, Held
from tests.kit.subject import OTHER, Key, Subject, found, until, woken


class SharingPromises(Subject):
    def test_all_clients_of_a_namespace_see_the_same(self) -> None:
        one, two = self.key(), self.key()
        one.hold("a")
        assert isinstance(two.acquire("b", OTHER).answer, Held)
        assert two.holders() == ["a"]
        assert found(two.release("a"))
        assert one.holders() == []

    def test_a_closed_client_opens_itself_again(self) -> None:
        key = self.key()
        key.hold("a")
        key.store.close()
        key.store.close()
        assert found(key.release("a"))

    @pytest.mark.proves("exclusion")
    @pytest.mark.parametrize("threads_share_a_client", [True, False])
    def test_threads_count_without_a_lock_of_their_own(self, *, threads_share_a_client: bool) -> None:
        shared = self.key()
        keys = [shared if threads_share_a_client else self.key() for _ in range(4)]
        counter = _Counter()
        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(_count, key, counter, f"{n}") for n, key in enumerate(keys)]:
                done.result()
        assert counter.value == 4 * 25
        assert self.lists(shared.store)

    def test_threads_that_wait_in_line_lose_no_wake_up(self) -> None:
        """Without reaper and polling, a lost offer would let the other tasks wait for ever."""
        key = self.key()
        key.needs_line()
        running, ran, guard = [0], set[str](), threading.Lock()

        def run(id: str, promoted: str | None = None) -> None:
            waking = []
            if isinstance(key.acquire(id, promoted=promoted, message=b"").answer, Granted):
                with guard:
                    running[0] += 1
                    assert running[0] == 1
                    ran.add(id)
                time.sleep(0)
                running[0] -= 1
                waking = list(key.release(id).wake)
            for wake in waking:
                run(wake.id, wake.epoch)

        names = [f"task {number}" for number in range(40)]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(run, names))
        assert ran == set(names)
        assert self.lists(key.store)

    def test_a_forked_child_uses_the_store_of_its_parent(self) -> None:
        key = self.key()
        self.needs_fork()
        key.hold("parent")
        children = [_in_child(partial(_is_refused, key, f"child {number}")) for number in range(2)]
        for _ in range(50):  # meanwhile the parent's connection must not be read by them
            assert key.holders() == ["parent"]
        assert [_ended(child) for child in children] == [0, 0]
        assert found(key.release("parent"))

    def test_a_parent_sees_the_lease_that_its_forked_child_acquired(self) -> None:
        key = self.key()
        self.needs_fork()
        key.hold("parent")
        key.release("parent")
        assert _ended(_in_child(lambda: key.hold("child") > 0)) == 0
        assert key.holders() == ["child"]

    @pytest.mark.proves("stored before acknowledged")
    def test_a_message_that_a_dead_process_parked_is_kept(self) -> None:
        key = self.key()
        self.needs_fork()
        key.needs_line()
        key.hold("parent")
        assert _ended(_in_child(lambda: bool(key.park("child", message=b"of the child")))) == 0
        (wake,) = key.release("parent").wake
        assert (wake.id, wake.message) == ("child", b"of the child")
        assert woken(key.release("parent")) == []

    def needs_fork(self) -> None:
        if not self.is_shared_by_processes:
            pytest.skip("this store belongs to one process")
        if not hasattr(os, "fork"):
            pytest.skip("this system has no fork")


class _Counter:
    value = 0


def _count(key: Key, counter: _Counter, id: str) -> None:
    for _ in range(25):
        until(lambda: isinstance(key.acquire(id).answer, Granted), "the key is granted")
        seen = counter.value
        time.sleep(0)  # let others acquire it, if they can
        counter.value = seen + 1
        assert found(key.release(id))


def _is_refused(key: Key, id: str) -> bool:
    return all(key.is_held_against(id) for _ in range(50))


def _in_child(is_so: Callable[[], bool]) -> int:
    """Fork; the child exits with 0 if the condition holds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the threads that there may be are not ours
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        code = 0 if is_so() else 1
    except BaseException as error:  # noqa: BLE001 - nothing of the test run may go on in the child
        sys.stderr.write(f"{error!r}\n")
    os._exit(code)


def _ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
