"""The witness: the fences that a process knows, by which it notices that a server has lost its data."""

from __future__ import annotations

import mmap
from os import urandom
from typing import Any

from celery_exclusive.stores.redis import scripts

from redis import exceptions  # isort: skip - `protocol` has said what is missing

_SCRIPT = scripts.load("witness.lua", arguments="run fence candidate", reply="run fence is_noted")
_SIZE, _SIZE_OF_FENCE = 64, 8
"""Bytes of a witness, and of them the fence; the others are for the id of a run, which has 40."""


class Witness:
    """Remembers the highest fence that this process and its forked children were granted, and by which run.

    A run of a server is identified by the random id that the server makes at its start. A server that
    restarts from a snapshot, or a replica that is promoted, may have older data, with their old epoch. The
    first process that connects then states the fence that it was granted. If the server's data are older, the
    server gets a new epoch, and is treated like a server that has lost all its data. Processes note without a
    lock: two at the same instant may lose one note, and with it a notice.

    Its memory is shared with the children, since the parent connects while they work.
    """

    def __init__(self, base: str) -> None:
        self.base, memory = base, memoryview(mmap.mmap(-1, _SIZE))
        self._fence, self._id = memory[:_SIZE_OF_FENCE].cast("q"), memory[_SIZE_OF_FENCE:_SIZE]

    def note(self, fence: int) -> None:
        """Remember a fence that was granted, maybe long ago."""
        self._fence[0] = max(self._fence[0], fence)

    def statement(self) -> tuple[object, ...]:
        """Return the command by which a new connection begins."""
        fence = self._fence[0]  # before the run: if another process hears of a new one now, it is too low
        return ("EVAL", _SCRIPT.text, 1, self.base, self._run, fence, urandom(8).hex())

    def hear(self, answer: Any) -> bool:
        """Learn from the answer which run of the server grants leases from now on.

        False: the server could note nothing; the statement has to be repeated before the server grants a
        lease. What the server refuses is said by the call that follows.
        """
        if isinstance(answer, Exception):
            return isinstance(answer, exceptions.NoPermissionError)
        run, fence, is_noted = answer
        if is_noted and run != self._run:
            self._id[:] = run.ljust(_SIZE - _SIZE_OF_FENCE, b"\0")
            self._fence[0] = fence
        return bool(is_noted)

    @property
    def _run(self) -> bytes:
        return bytes(self._id).rstrip(b"\0")
