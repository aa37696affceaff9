"""The functions of the package that a process enters, in order: in a file that the process appends to."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import celery_exclusive

_PACKAGE = f"{Path(celery_exclusive.__file__).parent}{os.sep}"


class Call(NamedTuple):
    file: str
    function: str


class Trace:
    """Notes the calls of the process's main thread in `folder`, and so does each process that it forks."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = folder
        self._open()
        os.register_at_fork(after_in_child=self._open)

    def _open(self) -> None:
        path = file_of(self._folder, os.getpid())
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def start(self) -> None:
        sys.setprofile(self._note)

    @contextmanager
    def on(self) -> Iterator[None]:
        self.start()
        try:
            yield
        finally:
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(_PACKAGE):
            line = f"{code.co_filename}\t{code.co_name}:{code.co_firstlineno}\n"
            os.write(self._file, line.encode())  # at once: another process reads the file meanwhile


def file_of(folder: str | Path, pid: int) -> Path:
    return Path(folder, f"{pid}.calls")


def read(file: Path, start: int) -> list[Call]:
    """Return the calls that a process has noted since its file had `start` bytes."""
    text = file.read_bytes()[start:].decode().replace(_PACKAGE, "")
    return [Call(*line.split("\t")) for line in text.splitlines()]
