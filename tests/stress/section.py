"""A section that tasks must not enter at the same time, watched by means that know nothing of leases."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import TextIO


class Section:
    """Has as many slots as the key's limit, each a lock of the kernel, that dies with its process.

    section = Section(directory, "key", limit=1)
    if not section.enter(): ...  # somebody else is in
    section.leave()
    """

    def __init__(self, directory: Path, key: str, limit: int) -> None:
        self._files = [directory / f"section {key} {number}" for number in range(limit)]
        self._place: TextIO | None = None

    def enter(self) -> bool:
        for path in self._files:
            file = path.open("a")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
            else:
                self._place = file
                return True
        return False

    def leave(self) -> None:
        if self._place:
            self._place.close()


def write(directory: Path, key: str, fence: int) -> tuple[bool, int]:
    """Write to the key's resource, that refuses a fence older than it has seen; tell that one."""
    with (directory / f"resource {key}").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        newest = int(file.read() or 0)
        if fence < newest:
            return False, newest
        file.truncate(0)
        file.write(str(fence))
        file.flush()
        return True, newest
