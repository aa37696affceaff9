"""The body of each system's task: it writes a journal of its own, and ends when its door is open."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

JOURNAL = "journal"


class Event(NamedTuple):
    """One line of the journal."""

    at: float
    pid: int
    what: str
    tag: str


def run(folder: str, tag: str) -> None:
    """Run one task: note the start, wait for its door, note the end."""
    note(folder, "start", tag)
    while not door(folder, tag).exists():
        time.sleep(0.02)
    note(folder, "end", tag)


def note(folder: str, what: str, tag: str) -> None:
    """Append an event; one short write is whole, whichever processes write beside it."""
    line = f"{time.monotonic()} {os.getpid()} {what} {tag}\n"
    with Path(folder, JOURNAL).open("ab", buffering=0) as file:
        file.write(line.encode())


def door(folder: str, tag: str) -> Path:
    """Return the file that lets the body of a tag end; the tags `noop#1` and `noop#2` have one door."""
    return Path(folder, f"open-{tag.partition('#')[0]}")


def ended(folder: str) -> int:
    """Return how many calls have ended or were dropped so far, sooner than `events` would."""
    journal = Path(folder, JOURNAL)
    text = journal.read_bytes() if journal.exists() else b""
    return text.count(b" end ") + text.count(b" skipped ")


def events(folder: str) -> list[Event]:
    """Return all events so far, in the order in which they were written."""
    journal = Path(folder, JOURNAL)
    lines = journal.read_text().splitlines() if journal.exists() else []
    return [Event(float(at), int(pid), what, tag) for at, pid, what, tag in map(str.split, lines)]
