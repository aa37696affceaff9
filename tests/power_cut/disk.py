"""A disk whose power can be cut: it forgets what was not synced.

It keeps what each file held when a process synced it last. Names are kept at once: a file that is made,
renamed or deleted is so after the cut, though a new one is empty if it was never synced. A real disk may have
more, and may have it in any order, since a system writes back by itself: see `write_back`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from typing_extensions import Self

from tests.servers import NoServer

_SOURCE = Path(__file__).with_name("disk.c")
_LONG = 1.0
"""Seconds. Two writes within a tick of the system leave the same time."""


class Disk:
    """Processes that are started while it is `on` write to it.

    with Disk() as disk:
        with disk.on():
            server = RedisServer(appendonly=True)
        disk.cut()
        server.kill()
        disk.restore(folder)
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="test-power-"))
        self._folder.chmod(0o755)
        self._disk, self._library = self._folder / "disk", self._folder / "disk.so"
        self._dead = self._folder / "dead"
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if sys.platform != "linux" or not compiler:
            self.close()
            raise NoServer("no disk whose power can be cut: it needs Linux and a C compiler, such as gcc")
        subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", self._library, _SOURCE], check=True)
        self._disk.mkdir()
        self._disk.chmod(0o777)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        shutil.rmtree(self._folder)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Let the processes that are started meanwhile write to it."""
        os.environ |= {"LD_PRELOAD": str(self._library), "DISK": str(self._disk)}
        try:
            yield
        finally:
            del os.environ["LD_PRELOAD"], os.environ["DISK"]

    def write_back(self, folder: Path) -> None:
        """Keep what all files below hold now, as the system does from time to time, or `sync`."""
        for path in _files(folder):
            try:
                self._keep(path)
            except FileNotFoundError:  # it was deleted meanwhile
                continue

    def cut(self) -> float:
        """Cut the power: no process gets anything onto the disk any more. End them all, then `restore`."""
        self._disk.rename(self._dead)
        return time.monotonic()

    def restore(self, folder: Path) -> None:
        """Let each file below have what is on the disk, and let that be a new disk."""
        for path in _files(folder):
            facts = path.stat()
            kept = self._dead / str(facts.st_ino)
            if _is_same(kept, facts):
                continue
            # A new file: a process that is not quite dead yet may write to the old one.
            new = path.with_name(f"{path.name}.new")
            new.write_bytes(kept.read_bytes() if kept.exists() else b"")
            new.chmod(facts.st_mode)
            os.chown(new, facts.st_uid, facts.st_gid)
            new.replace(path)
            for name in (kept, _second(kept)):
                name.unlink(missing_ok=True)
        self._dead.rename(self._disk)

    def _keep(self, path: Path) -> None:
        """Keep the file as in disk.c. What has long been as it is gets its time, so that it is read once."""
        with path.open("rb") as file:
            facts = os.fstat(file.fileno())
            kept = self._disk / str(facts.st_ino)
            if _is_same(kept, facts):
                return
            if not _second(kept).exists():
                _second(kept).hardlink_to(path)
            with kept.open("a+b") as to:
                kept.chmod(0o666)
                fcntl.flock(to, fcntl.LOCK_EX)
                to.truncate(0)
                shutil.copyfileobj(file, to)
        if facts.st_mtime < time.time() - _LONG:
            os.utime(kept, ns=(facts.st_mtime_ns, facts.st_mtime_ns))


def _second(kept: Path) -> Path:
    return kept.with_name(f"{kept.name}.file")


def _is_same(kept: Path, facts: os.stat_result) -> bool:
    """Whether this was kept of a file that nobody has written to since."""
    return kept.exists() and (kept.stat().st_mtime_ns, kept.stat().st_size) == (
        facts.st_mtime_ns,
        facts.st_size,
    )


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
