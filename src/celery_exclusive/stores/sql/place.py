"""Where a database file is, and whether several processes can share it there."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from celery_exclusive.errors import OptionError

PATIENCE = 5.0
"""Seconds for which a call waits for others to finish theirs, unless the URL says otherwise."""
_NETWORK = frozenset(
    {
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
    }
    | {"ocfs2", "orangefs", "prl_fs", "pvfs2", "smb3", "smbfs", "vboxsf", "vmhgfs"}
    | {
        "fuse.ceph",
        "fuse.davfs",
        "fuse.gcsfuse",
        "fuse.glusterfs",
        "fuse.juicefs",
        "fuse.rclone",
        "fuse.s3fs",
    }
    | {"fuse.sshfs", "fuse.vmhgfs-fuse"}
)
_MEMORY = frozenset({"tmpfs", "ramfs"})


@dataclass(frozen=True, slots=True)
class Place:
    """An absolute path, as it was found in a URL."""

    path: Path
    patience: float
    is_relative: bool

    def refuse(self) -> None:
        """Raise OptionError where locks cannot be kept."""
        folder = self.path.parent
        if not _is_there(folder):
            raise OptionError(
                f"exclusive_store: there is no folder {folder}: create it, or correct the path; "
                "a path after three slashes begins where the process runs, after four at the root"
            )
        kind = self._file_system()
        if kind in _NETWORK:
            raise OptionError(
                f"exclusive_store: {self.path} is on a network file system ({kind}), where SQLite can "
                "neither lock nor share memory: put it on a local disk, or use a redis:// URL for many hosts"
            )

    def warnings(self) -> list[str]:
        """What an operator should know of it."""
        found = []
        if self.is_relative:
            found.append(
                f"exclusive_store: a relative path, here it means {self.path}; give an absolute one, with "
                "four slashes, so that a process that runs elsewhere does not keep locks of its own"
            )
        if self.is_in_memory:
            found.append(
                f"exclusive_store: {self.path} is in the machine's memory, so a restart forgets locks and "
                "waiting tasks: put it on a disk"
            )
        return found

    @property
    def is_in_memory(self) -> bool:
        return self._file_system() in _MEMORY

    def _file_system(self) -> str:
        try:
            mounts = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
        except OSError:
            return ""  # not Linux: it cannot be told
        return file_system(os.path.realpath(self.path), mounts)


def parse(url: str) -> Place:
    """Read a URL as SQLAlchemy does.

    Example:
        sqlite:////var/lib/feeds/locks.db, sqlite:///relative.db?timeout=10

    Raises:
        OptionError: it names no file, or cannot be understood.
    """
    try:
        parts = make_url(url)
        patience = float(str(parts.query.get("timeout", PATIENCE)))
        if not 0 <= patience < float("inf"):
            raise ValueError(f"a timeout of {patience} seconds")
    except (ArgumentError, ValueError) as error:
        raise OptionError(f"exclusive_store: cannot understand {url!r}: {error}") from None
    path = parts.database or ""
    if path in ("", ":memory:"):
        raise OptionError(
            f"exclusive_store: {url} names no file: write three slashes before a relative path, as in "
            "sqlite:///locks.db, and four before an absolute one; for locks in memory use memory://"
        )
    if path.startswith("file:"):
        raise OptionError(f"exclusive_store: {url}: give a plain path instead of file:")
    return Place(Path.cwd() / path, patience, not Path(path).is_absolute())


def _is_there(folder: Path) -> bool:
    try:
        return folder.is_dir()
    except PermissionError:
        return True  # SQLite itself will say that it may not look


def file_system(path: str, mounts: str) -> str:
    """The kind of file system that a real path is on, by the text of Linux's /proc/self/mountinfo.

    The mount point that is the longest beginning of the path counts, and of several there the last.
    """
    kind, longest = "", -1
    for mount in mounts.splitlines():
        before, _, after = mount.partition(" - ")
        words = before.split(" ")
        if len(words) < 5 or not after:
            continue
        point = re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), words[4])
        if len(point) >= longest and (path + "/").startswith(point.rstrip("/") + "/"):
            kind, longest = after.split(" ")[0], len(point)
    return kind
