"""The journal: one line per event, appended by all processes at once, and read when they are gone."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Event:
    """`at` is monotonic and the same clock in all processes; `delivery` is unique per delivery."""

    at: float
    pid: int
    what: str
    delivery: str = ""
    data: Any = None


class Journal:
    """A line is one `write`, so a kill leaves it whole or out."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)

    def write(self, what: str, delivery: str = "", data: object = None) -> None:
        line = json.dumps([time.monotonic(), os.getpid(), what, delivery, data])
        os.write(self._file, line.encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


def read(path: Path, offset: int = 0) -> tuple[list[Event], int]:
    """The events from an offset on, and the next one."""
    with path.open("rb") as file:
        file.seek(offset)
        text = file.read()
    whole = text[: text.rfind(b"\n") + 1]
    return list(_events(whole)), offset + len(whole)


def _events(text: bytes) -> Iterator[Event]:
    for line in text.splitlines():
        yield Event(*json.loads(line))
