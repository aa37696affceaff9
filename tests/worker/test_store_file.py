"""A file of locks that cannot be written while a worker runs."""

from __future__ import annotations

import resource
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from celery_exclusive.stores.base import open_store
from tests.worker.journal import eventually
from tests.worker.lab import Worker
from tests.worker.stage import Stage, on_stages
from tests.worker.trouble import HEARTBEAT, REAPER, begun, over

DEADLINE = 90


@pytest.mark.promise(
    "A SQLite file that cannot be written holds up only tasks that start",
    broke="a locked, or a full, file is no StoreUnavailable",
)
@on_stages("prefork", brokers=("redis",), lates=(True,))
@pytest.mark.parametrize("trouble", ["locked", "full"])
def test_a_file_that_cannot_be_written_holds_up_only_tasks_that_start(
    stage: Stage, tmp_path: Path, trouble: str
) -> None:
    file = tmp_path / "locks.db"
    lab = stage.make_lab(
        "tests.worker.shop_trouble", exclusive_store=f"sqlite:///{file}?timeout=0.5", exclusive_ttl=6
    )
    worker = stage.start_worker(lab)
    holder = lab.send("wait", "k", tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    waiting = lab.send("wait", "k", tag="next")
    lab.wait_for_line(1, "wait", "k")
    with UNWRITABLE[trouble](file, worker):
        begins = lab.send("wait", "l", tag="begins")
        worker.wait_for_log(f"[{begins.id}] waits for its lock's store")
        eventually(lambda: begun(worker, HEARTBEAT) == begun(worker, REAPER) == 1, "both to notice")
        lab.open("holder")
        assert holder.get(timeout=DEADLINE) == "holder"
        worker.wait_for_log(f"task {holder.id} could not release lock")
        assert lab.journal.tags() == ["holder"]
    assert [result.get(timeout=DEADLINE) for result in (begins, waiting)] == ["begins", "next"]
    eventually(lambda: over(worker, HEARTBEAT) == over(worker, REAPER) == 1, "both to go on")
    assert begun(worker, HEARTBEAT) == begun(worker, REAPER) == 1
    assert lab.journal.most_open(key="k") == 1
    eventually(lambda: not kept_in(file), "a file without leases and lines")


@contextmanager
def locked(file: Path, worker: Worker) -> Iterator[None]:
    """Another process is in the middle of a write."""
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


@contextmanager
def full(file: Path, worker: Worker) -> Iterator[None]:
    """No file of the worker may grow beyond what its logs need."""
    pids = [worker.pid, *worker.children]
    for pid in pids:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (30_000, resource.RLIM_INFINITY))
    yield
    for pid in pids:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


UNWRITABLE = {"locked": locked, "full": full}


def kept_in(file: Path) -> list[str]:
    store = open_store(f"sqlite:///{file}")
    try:
        return list(store.scan())
    finally:
        store.close()
