"""The independent record: who was in a body, and when. The library never writes it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from tests.looks import looks

Event = dict[str, Any]


class Journal:
    """Lines of JSON, appended in one write each by whoever is in a body, timed by a clock that all share."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.touch()
        self._lock = Lock()
        self._read: list[Event] = []
        self._read_until = 0

    def write(self, what: str, **details: Any) -> None:
        line = json.dumps({"what": what, "at": time.monotonic_ns(), "pid": os.getpid(), **details}) + "\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def clear(self) -> None:
        """Forget all events. Nobody writes meanwhile."""
        with self._lock:
            self.path.write_bytes(b"")
            self._read, self._read_until = [], 0

    def events(self, what: str | None = None, **details: Any) -> list[Event]:
        with self._lock:
            self._read_on()
            return [
                event
                for event in self._read
                if what in (None, event["what"])
                and all(event.get(name) == value for name, value in details.items())
            ]

    def _read_on(self) -> None:
        """Read what is new: whoever waits for an event looks fifty times a second."""
        with self.path.open("rb") as file:
            file.seek(self._read_until)
            whole, end, _ = file.read().rpartition(b"\n")  # without a line that is being written
        self._read += [json.loads(line) for line in whole.splitlines()]
        self._read_until += len(whole) + len(end)

    def tags(self, what: str = "start", **details: Any) -> list[str]:
        return [event["tag"] for event in self.events(what, **details)]

    def wait_for(self, what: str, count: int = 1, *, timeout: float = 60, **details: Any) -> list[Event]:
        """Wait until so many such events are on the record, and return them."""
        try:
            return eventually(
                lambda: found if len(found := self.events(what, **details)) >= count else None,
                f"{count} x {what} {details}",
                timeout,
            )
        except AssertionError as error:
            record = [(event["what"], event.get("tag")) for event in self.events()]
            raise AssertionError(f"{error}; on the record: {record}") from None

    def most_open(self, **details: Any) -> int:
        """The most bodies that were open at one instant; one that never ended counts until the last event."""
        return max((open_now for _, open_now in _levels(self.spells(**details))), default=0)

    def spells(self, **details: Any) -> list[Spell]:
        """The bodies, each from its start to its end in the same process."""
        events = self.events(**details)
        last = max((event["at"] for event in events), default=0)
        spells, unfinished = [], {}
        for event in events:
            body = (event["pid"], event.get("id"))
            if event["what"] == "start":
                unfinished[body] = event
            elif event["what"] == "end" and body in unfinished:
                spells.append(Spell(unfinished.pop(body), event["at"]))
        return spells + [Spell(event, last + 1) for event in unfinished.values()]


@dataclass(frozen=True)
class Spell:
    event: Event
    until: int

    @property
    def since(self) -> int:
        return int(self.event["at"])


def _levels(spells: Iterable[Spell]) -> list[tuple[int, int]]:
    changes = sorted(change for spell in spells for change in ((spell.since, 1), (spell.until, -1)))
    level, levels = 0, []
    for at, change in changes:
        level += change
        levels.append((at, level))
    return levels


def is_alive(pid: int) -> bool:
    """Whether a process can still do something."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def eventually(look: Callable[[], Any], what: str, timeout: float = 150) -> Any:
    """Look again and again until there is something to see; a timeout is a failure, never a measurement."""
    for _ in looks(timeout):
        if seen := look():
            return seen
    raise AssertionError(f"waited {timeout:g} s in vain for {what}")
