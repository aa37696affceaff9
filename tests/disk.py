"""A disk for tests that can be full: a file system in memory, which only root may mount."""

from __future__ import annotations

import os
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from typing_extensions import Self

_ROOM = 1 << 30
"""Bytes that it may have while it is not full: it uses as much memory as is written to it."""


class NoDisk(Exception):
    """This process may not mount a file system."""


class Disk:
    """A file system that has room until `fill`, and again after `make_room`.

    with Disk() as disk:
        disk.fill()
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="test-disk-"))
        try:
            self._mount(_ROOM)
        except (FileNotFoundError, subprocess.CalledProcessError):
            self.folder.rmdir()
            raise NoDisk("no disk to fill: only root may mount one, with the program `mount`") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "--lazy", self.folder], check=True)
        self.folder.rmdir()

    def fill(self) -> None:
        """Let it have no more room than is used, which others may change meanwhile."""
        while True:
            seen = os.statvfs(self.folder)
            used = (seen.f_blocks - seen.f_bfree) * seen.f_frsize
            with suppress(subprocess.CalledProcessError):  # more was written since
                self._mount(used, "remount")
            if not os.statvfs(self.folder).f_bfree:
                return

    def make_room(self) -> None:
        self._mount(_ROOM, "remount")

    def _mount(self, size: int, *options: str) -> None:
        words = ",".join([*options, f"size={size}", "mode=755"])
        command = ["mount", "-t", "tmpfs", "-o", words, "tmpfs", str(self.folder)]
        subprocess.run(command, capture_output=True, check=True)
