"""A clock that a test steps while the process that reads it runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.servers import NoServer

MADE = Path(__file__).parents[1] / ".venv/faketime"


class Clock:
    """The wall clock of a process that is started with this environment; its monotonic one stays as it is.

    clock = Clock(folder)
    with RedisServer(env=clock.env) as server:
        clock.step(-3600)

    After a step, `time.sleep` raises OSError in a Python process: libfaketime moves the monotonic time until
    which it sleeps, too. It is the library without a lock: one that another thread holds while a worker forks
    would stay locked in the child, which would hang as soon as it reads the clock.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self.step(0)
        self.env = {
            **os.environ,
            "LD_PRELOAD": str(_library()),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def step(self, seconds: int) -> None:
        """Show so much more than the machine's clock, from now on."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.rename(self._file)


def _library() -> Path:
    for folder in (Path(sys.prefix, "faketime"), MADE, Path("/")):
        if found := list(folder.glob("usr/lib/*/faketime/libfaketime.so.1")):
            return found[0]
    raise NoServer("no libfaketime here: scripts/bootstrap unpacks it from Debian's package")
