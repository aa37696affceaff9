"""The file of a SQLite store: where it is, and whether several processes can share it there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs

from celery_exclusive.errors import OptionError

PATIENCE = 5.0
"""Seconds for which a call waits for others to finish theirs, unless the URL says otherwise."""
_NETWORK = re.compile(
    "9p|afs|beegfs|ceph|cifs|coda|gfs2|glusterfs|gpfs|lustre|ncpfs|nfs4?|ocfs2|orangefs|prl_fs|pvfs2|smb3|smbfs"
    r"|vboxsf|vmhgfs|fuse\.(ceph|davfs|gcsfuse|glusterfs|juicefs|rclone|s3fs|sshfs|vmhgfs-fuse)"
)


@dataclass(frozen=True, slots=True)
class SqliteFile:
    """A database file by its absolute path, as it was found in a URL."""

    path: Path
    patience: float
    is_relative: bool

    def refuse(self) -> None:
        """Raise OptionError where locks cannot be kept."""
        folder = self.path.parent
        with suppress(PermissionError):  # SQLite itself will say that it may not look
            if not folder.is_dir():
                raise OptionError(
                    f"exclusive_store: there is no folder {folder}: create it, or correct the path; "
                    "a path after three slashes begins where the process runs, after four at the root"
                )
        kind = self._file_system()
        if _NETWORK.fullmatch(kind):
            raise OptionError(
                f"exclusive_store: {self.path} is on a network file system ({kind}), where SQLite can "
                "neither lock nor share memory: put it on a local disk, or use a redis:// URL for many hosts"
            )

    def create(self) -> None:
        """Make the file for its owner alone: it holds the arguments of tasks that wait.

        SQLite gives the files beside it the same mode. A file that is there keeps the one that it has.
        """
        with suppress(OSError):  # it is there, or SQLite will say why it cannot be
            os.close(os.open(os.path.realpath(self.path), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))

    def warnings(self) -> Iterator[str]:
        """Yield a warning of a path that means several files."""
        if self.is_relative:
            yield (
                f"exclusive_store: a relative path, here it means {self.path}; give an absolute one, with "
                "four slashes, so that a process that runs elsewhere does not keep locks of its own"
            )

    def _file_system(self) -> str:
        try:
            mounts = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
        except OSError:
            return ""  # not Linux: it cannot be told
        return file_system(os.path.realpath(self.path), mounts)


def parse(url: str) -> SqliteFile:
    """Read a URL as SQLAlchemy does.

    Example:
        sqlite:////var/lib/feeds/locks.db, sqlite:///relative.db?timeout=10

    Raises:
        OptionError: it names no file, or cannot be understood.
    """
    where, _, query = url.partition("://")[2].partition("?")
    try:
        (timeout,) = parse_qs(query).get("timeout", [PATIENCE])
        patience = float(timeout)
        if not 0 <= patience < float("inf"):
            raise ValueError
    except ValueError:
        raise OptionError(
            "exclusive_store: cannot understand this sqlite:// URL: its timeout must be a number of seconds"
        ) from None
    path = where[1:]
    if path in ("", ":memory:") or not where.startswith("/"):
        raise OptionError(
            "exclusive_store: this sqlite:// URL names no file: write three slashes before a relative path, "
            "as in sqlite:///locks.db, and four before an absolute one; for locks in memory use memory://"
        )
    if path.startswith("file:"):
        raise OptionError("exclusive_store: in a sqlite:// URL give a plain path instead of file:")
    return SqliteFile(Path.cwd() / path, patience, not Path(path).is_absolute())


def file_system(path: str, mounts: str) -> str:
    """Return the kind of file system of a real path, by the text of Linux's /proc/self/mountinfo.

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
