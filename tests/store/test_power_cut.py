"""A power cut: what a store has answered is still so, if its setting says that it is on the disk by then."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import or_leave_out
from tests.power_cut.disk import Disk
from tests.power_cut.play import play
from tests.power_cut.stages import STAGES
from tests.power_cut.verdict import Verdict

WRITES = """if True:
    import os
    def write(name, text, *, syncs):
        with open(name, "ab") as file:
            file.write(text)
            file.flush()
            if syncs:
                os.fsync(file.fileno())
    write("both", b"synced", syncs=True)
    write("both", b", and not", syncs=False)
    write("renamed", b"synced", syncs=True)
    os.rename("renamed", "by another name")
    write("never", b"synced", syncs=False)
    write("deleted", b"synced", syncs=True)
    os.remove("deleted")
    print("written", flush=True)
    write("never", b"", syncs=input())
"""


@pytest.fixture(scope="module")
def disk() -> Iterator[Disk]:
    with ExitStack() as disks:
        yield disks.enter_context(or_leave_out(Disk))


def cut(disk: Disk, store: str, setting: str, journal: Path) -> Verdict:
    make, settings = STAGES[store]
    assert setting in settings
    with or_leave_out(lambda: make(disk, setting)) as stage:
        return play(disk, stage, journal)


@pytest.mark.promise(
    "What a store answers outlives a power cut with `appendfsync always` (Redis), `synchronous_commit` at "
    "its default (PostgreSQL), and a SQLite file that syncs each commit: leases, queued calls, messages of "
    "calls that wait, ends of runs. A Redis that has lost all its data is noticed",
    name="power cut",
    broke="a setting that syncs later; a disk that keeps nothing, or lets a sync return after the cut",
    figure="[what each setting loses](evidence/power-cut.md)",
    command="python -m tests.power_cut",
)
@pytest.mark.parametrize(("store", "setting"), [("redis", "always"), ("sqlite", "FULL"), ("postgres", "on")])
def test_answers_that_were_synced_outlive_a_power_cut(
    disk: Disk, tmp_path: Path, store: str, setting: str
) -> None:
    verdict = cut(disk, store, setting, tmp_path / "journal")
    assert verdict.answered > 50
    assert (verdict.lost, verdict.damage) == ({}, "")


@pytest.mark.proves("power cut")
@pytest.mark.parametrize(("store", "setting"), [("redis", "no"), ("sqlite", "OFF")])
def test_answers_that_were_not_synced_are_lost_with_the_power(
    disk: Disk, tmp_path: Path, store: str, setting: str
) -> None:
    verdict = cut(disk, store, setting, tmp_path / "journal")
    assert verdict.lost.total() > 50
    assert verdict.notices.get("noticed") is (True if store == "redis" else None)
    assert verdict.overlaps == 0


@pytest.mark.proves("power cut")
def test_the_disk_of_these_tests_has_what_was_synced_and_nothing_else(disk: Disk, tmp_path: Path) -> None:
    with (
        disk.on(),
        subprocess.Popen(
            [sys.executable, "-c", WRITES],
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "written\n"
        disk.cut()
        process.stdin.write("sync\n")
        process.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):  # it waits for a disk without power
            process.wait(0.2)
        process.kill()
    disk.restore(tmp_path)
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == {"both": "synced", "by another name": "synced", "never": ""}
