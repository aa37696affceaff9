"""A worker that meets a lock whose data are damaged in the store."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from shlex import quote
from typing import Any

import pytest

from celery_exclusive import StoreRefused
from tests.cli.test_locks import listed, locks
from tests.worker.lab import Lab

pytestmark = pytest.mark.proves("refused for good")


@pytest.mark.proves("damaged lock")
@pytest.mark.parametrize("kind", ["redis", "sqlite"])
def test_a_damaged_lock_is_reported_once_and_holds_up_no_other_until_it_is_dropped(
    make_lab: Callable[..., Lab], tmp_path: Path, kind: str
) -> None:
    file = tmp_path / "locks.db"
    settings: dict[str, Any] = {"exclusive_store": f"sqlite:///{file}"} if kind == "sqlite" else {}
    lab = make_lab(task_acks_late=True, exclusive_ttl=2, exclusive_reap_period=0.2, **settings)
    doomed = lab.start_worker("w1", 4)
    for key in ("bad", "good"):
        lab.send("wait", key, tag=f"holder of {key}", hold=True)
    lab.journal.wait_for("start", 2)
    waiting = {key: lab.send("wait", key, tag=f"next at {key}") for key in ("bad", "good")}
    for key in waiting:
        lab.wait_for_line(1, "wait", key)
    bad = lab.task("wait").lock_state("bad").key
    doomed.kill()
    if kind == "redis":
        lab.doors.set(f"cx2:{{0}}:q:{bad}", "x")
    else:
        with closing(sqlite3.connect(file)) as database, database:
            damage = "UPDATE exclusive2_lock SET document = 'x' WHERE key = ?"
            assert database.execute(damage, (bad.encode(),)).rowcount
    worker = lab.start_worker("w2", 2)
    lab.open("holder of good")  # where calls start as they were published, it begins again first
    assert waiting["good"].get(timeout=60) == "next at good"
    told = worker.wait_for_log(f"the data of lock {bad} are damaged")
    assert f"locks release --force --reason 'damaged data' -- {quote(bad)}" in told
    newcomer = lab.send("wait", "bad", tag="newcomer")
    with pytest.raises(StoreRefused) as refused:
        newcomer.get(timeout=60)
    assert f"locks release --force --reason 'damaged data' -- {quote(bad)}" in str(refused.value)
    assert lab.send("wait", "another", tag="another").get(timeout=60) == "another"
    assert worker.log.count("the reaper skips this key") == 1

    assert [lock["state"] for lock in listed(lab) if lock["key"] == bad] == ["damaged"]
    refused = locks(lab, "release", bad)
    assert (refused.returncode, "damaged" in refused.stderr) == (1, True)
    done = locks(lab, "release", bad, "--force", "--reason", "a test")
    assert (done.returncode, "are deleted" in done.stdout) == (0, True), done.stderr
    assert lab.send("wait", "bad", tag="later").get(timeout=60) == "later"
