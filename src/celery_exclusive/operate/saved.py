"""The file of dropped tasks: their whole messages, and what became of each one, a JSON object per line.

The first line names the version of the file, its token, its namespace and the epoch of its store. `saved`
has a message. `ended`: its task was removed from the line and ended as REVOKED. `left`: its task had left
the line before, so it runs or has run. `put`: its message was published again. The last of these lines about
an id counts.
"""

from __future__ import annotations

import fcntl
import json
import os
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from celery_exclusive.errors import ExclusiveError

if TYPE_CHECKING:
    from typing_extensions import Self

VERSION = 1
_HEAD = "dropped_by_celery_exclusive"
Fate = Literal["saved", "ended", "left", "put"]
FATES: tuple[Fate, ...] = ("saved", "ended", "left", "put")


@dataclass(frozen=True, slots=True)
class Saved:
    """A waiting task as the file keeps it: the key of its line, its claim id, and its stored message."""

    key: str
    id: str
    message: bytes


class SavedFile:
    """A file of dropped tasks that this process alone writes.

    `prefix`: the namespace of the tasks; None: the file must exist. `epoch`: of the store that they leave.
    ExclusiveError: it has another version or namespace, or another process writes it.
    """

    def __init__(self, path: Path, prefix: str | None = None, epoch: str = "") -> None:
        if path.exists() and not path.is_file():  # as /dev/null, which would get the rights of the file
            raise ExclusiveError(f"{path} keeps nothing, since it is no ordinary file: name another one")
        self.path = path
        self._file: BinaryIO = path.open("r+b" if prefix is None else "a+b")
        try:
            self._open(prefix, epoch)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def save(self, tasks: Iterable[Saved]) -> None:
        """Write these messages. When this returns, they outlast a crash of the machine."""
        for task in tasks:
            try:
                kept = {"message": task.message.decode()}
            except UnicodeDecodeError:
                kept = {"base64": b64encode(task.message).decode()}
            self._write({"saved": task.id, "key": task.key, **kept})
            self.fates[task.id] = "saved"
        os.fsync(self._file.fileno())

    def note(self, fate: Fate, id: str) -> None:
        """Write what has become of a task, at once: the end of this process does not undo it."""
        self._write({fate: id})
        self.fates[id] = fate

    def tasks(self) -> Iterator[Saved | str]:
        """Yield the messages in the order in which they were saved, and a problem for each damaged line."""
        for number, fields in self._lines():
            if fields is not None and any(fate in fields for fate in FATES[1:]):
                continue
            try:
                yield _saved(fields)
            except (KeyError, TypeError, ValueError):
                yield f"line {number} of {self.path} is damaged"

    def _open(self, prefix: str | None, epoch: str) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ExclusiveError(f"another process uses {self.path}: wait for its end") from error
        if prefix is not None and not self._file.seek(0, os.SEEK_END):
            self._begin(prefix, epoch)
        self._file.seek(0)
        head = _fields(self._file.readline()) or {}
        version = head.get(_HEAD)
        if version != VERSION:
            what = "is no file of dropped tasks" if version is None else f"has version {version!r}"
            raise ExclusiveError(
                f"{self.path} {what}, and this release reads version {VERSION} of the files that "
                "`locks drop --to` writes: name another file"
            )
        self.token, self.prefix = str(head.get("token")), str(head.get("prefix"))
        self.epoch = head.get("epoch")
        if prefix not in (None, self.prefix):
            raise ExclusiveError(
                f"{self.path} has tasks of exclusive_prefix={self.prefix!r}, and not of {prefix!r}: name "
                "another file"
            )
        if prefix is not None:  # it gets arguments of tasks
            os.fchmod(self._file.fileno(), 0o600)
        self._cut_torn_line()
        self.fates = dict(self._fates())

    def _begin(self, prefix: str, epoch: str) -> None:
        self._write({_HEAD: VERSION, "token": os.urandom(8).hex(), "prefix": prefix, "epoch": epoch})
        os.fsync(self._file.fileno())
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # else the name of the new file may be lost
        finally:
            os.close(folder)

    def _cut_torn_line(self) -> None:
        """Cut the line that a killed process has not finished. No later step relies on it."""
        end = self._file.seek(0, os.SEEK_END)
        self._file.seek(0)
        whole = sum(len(line) for line in self._file if line.endswith(b"\n"))
        if whole < end:
            self._file.truncate(whole)

    def _fates(self) -> Iterator[tuple[str, Fate]]:
        for _, fields in self._lines():
            for fate in FATES:
                if fields and isinstance(id := fields.get(fate), str):
                    yield id, fate

    def _lines(self) -> Iterator[tuple[int, dict[str, Any] | None]]:
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if number > 1:
                    yield number, _fields(line)

    def _write(self, fields: dict[str, Any]) -> None:
        self._file.seek(0, os.SEEK_END)
        self._file.write(json.dumps(fields).encode() + b"\n")
        self._file.flush()


def _fields(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _saved(fields: dict[str, Any] | None) -> Saved:
    """Return the task of a line. Raises KeyError, TypeError or ValueError if it is damaged."""
    if fields is None:
        raise TypeError
    key, id, text = fields["key"], fields["saved"], fields["message" if "message" in fields else "base64"]
    if not (isinstance(key, str) and isinstance(id, str) and isinstance(text, str)):
        raise TypeError
    return Saved(key, id, text.encode() if "message" in fields else b64decode(text, validate=True))
