"""A round: a client works, the power is cut, and what the disk has is compared with what it was told."""

from __future__ import annotations

import random
import time
from contextlib import closing
from pathlib import Path

from celery_exclusive.errors import ExclusiveError
from tests.power_cut.client import Process, open_store, read
from tests.power_cut.disk import Disk
from tests.power_cut.stages import Stage
from tests.power_cut.verdict import KINDS, Verdict, forgotten, overlaps
from tests.servers import wait_until


def play(disk: Disk, stage: Stage, journal: Path, *, answers: int = 100, lasts: float = 0.0) -> Verdict:
    """Cut the power some `lasts` seconds after so many answers; let the system write back once meanwhile."""
    journal.write_bytes(b"")
    stage.refresh()
    with disk.on():
        client = Process()
    try:
        client.ask("start", stage.url, stage.synchronous, str(journal))
        wait_until(lambda: journal.read_bytes().count(b"\n") >= answers, "answers", 60)
        if lasts:
            early = random.uniform(0, lasts)
            time.sleep(early)
            disk.write_back(stage.folder)
            time.sleep(lasts - early)
        at = disk.cut()
        if stage.outlives:
            client.ask("stop")
        stage.end(client)
        disk.restore(stage.folder)
        stage.start()
        # A run that began to end just then, and cannot any more, is none whose lease must be there.
        notes = [note for note in read(journal) if note.at < at or note.what == "ending"]
        verdict = Verdict(sum(note.what in KINDS for note in notes))
        try:
            with closing(open_store(stage.url)) as store:
                lost = forgotten(store, notes)
                verdict.lost.update(note.what for note in lost)
                verdict.oldest = max((at - note.at for note in lost), default=0.0)
                if stage.outlives:
                    verdict.notices = client.ask("notice")
                    verdict.overlaps = overlaps(store, lost)
        except ExclusiveError as error:
            verdict.damage = str(error)
        return verdict
    finally:
        client.kill()
