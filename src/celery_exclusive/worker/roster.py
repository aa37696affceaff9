"""The roster: which delivery each child of the pool executes, and which leases that holds.

Celery's pool does not know. When a worker loses its broker, the pool forgets each task that it has handed to
a child and of whose start it has not heard yet, and the child runs it all the same.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from billiard.process import current_process

from celery_exclusive import notices
from celery_exclusive.core.claim import Claim
from celery_exclusive.core.delivery import Delivery
from celery_exclusive.leases.lease import Known
from celery_exclusive.system.processes import is_gone

_EPOCH = struct.Struct("=d64s")
"""The time at which the main process asked for the store's epoch, and the epoch."""
_STOPPING = _EPOCH.size
"""Where it says whether the worker stops."""
_FIRST = _STOPPING + 8
"""Where the first slot begins."""
_SLOT = struct.Struct("=q16s??6x")
"""The pid of a child, the token of the delivery that it executes, and which of its leases it holds."""
_HELD, _NONE = struct.calcsize("=q16s"), bytes(2)
"""Where in a slot it says which leases are held, and that none is."""
_NOTHING = bytes(_SLOT.size)
_FEWEST = 1024
_PATH = "CELERY_EXCLUSIVE_ROSTER"
"""The environment variable that names the file, for children that inherit no memory."""


class Roster:
    """Memory that the main process shares with its children. Nobody waits for a lock.

    Each child writes a slot of its own: the pool numbers them, and a number is free when its child has ended.
    The main process writes the header before them. A slot outlives its child, so it counts only while its
    pid does.

    Parameters:
        children: how many there may be at the start; control commands may double that.
        is_inherited: whether children are forked. Others find a file by its name in their environment.
    """

    _pid = _at = 0
    """The child that has written last, and where its slot begins."""

    def __init__(self, children: int, *, is_inherited: bool = True) -> None:
        self.slots = max(2 * children, _FEWEST)
        self._path: Path | None = None
        size = _FIRST + self.slots * _SLOT.size
        if is_inherited:
            self._memory = mmap.mmap(-1, size)
            return
        descriptor, path = tempfile.mkstemp(prefix="celery-exclusive-")
        self._path = Path(path)
        os.truncate(descriptor, size)
        self._memory = mmap.mmap(descriptor, size)
        os.close(descriptor)
        os.environ[_PATH] = path

    @classmethod
    def of_parent(cls) -> Roster | None:
        """The roster of the main process, in a child of its pool that was not forked; elsewhere None."""
        roster = cls.__new__(cls)
        roster._path = None
        try:
            with Path(os.environ[_PATH]).open("r+b") as file:
                roster._memory = mmap.mmap(file.fileno(), 0)
        except KeyError:
            return None
        except FileNotFoundError:
            notices.no_roster(os.environ[_PATH])
            return None
        return roster

    def close(self) -> None:
        """Leave no file behind."""
        if self._path:
            self._path.unlink(missing_ok=True)
            os.environ.pop(_PATH, None)

    def begin(self, token: str) -> None:
        """Note that this child executes this delivery from now on. It may be granted its leases."""
        pid = os.getpid()
        if pid != self._pid:  # this child has written nothing yet
            process: Any = current_process()
            self._pid, self._at = pid, _FIRST + process.index * _SLOT.size
        slot = _SLOT.pack(pid, token.encode(), False, False)
        # In one piece: the main process may read it now.
        self._memory[self._at : self._at + _SLOT.size] = slot

    def note_granted(self, delivery: Delivery, claims: Collection[Claim]) -> None:
        """Note that the delivery that this child executes was granted these leases."""
        for number, claim in enumerate(delivery.leases):
            self._memory[self._at + _HELD + number] = claim in claims

    def note_releasing(self, delivery: Delivery, claims: Collection[Claim] | None = None) -> None:
        """Note that these leases, or all, are about to be released: nobody must restore them from now on."""
        first = self._at + _HELD
        if claims is None:
            self._memory[first : first + len(_NONE)] = _NONE
            return
        for number, claim in enumerate(delivery.leases):
            if claim in claims:
                self._memory[first + number] = False

    def finish(self) -> None:
        """Note that this child executes nothing."""
        self._memory[self._at : self._at + _SLOT.size] = _NOTHING

    def read(self) -> dict[str, list[bool]]:
        """The tokens of what living children execute, each with which of its delivery's leases are held."""
        slots = _SLOT.iter_unpack(self._memory[_FIRST:])
        return {
            token.decode(): held for pid, token, *held in slots if token.strip(b"\0") and not is_gone(pid)
        }

    def see(self, known: Known) -> None:
        """Write the epoch of the store, for the children to read."""
        epoch = known.epoch.encode()
        is_short = len(epoch) <= _EPOCH.size - 8
        self._memory[: _EPOCH.size] = _EPOCH.pack(known.at, epoch if is_short else b"")
        if self._path:
            with suppress(FileNotFoundError):  # a child that starts then logs that it is gone
                os.utime(self._path)  # else a job that deletes old temporary files may delete it

    def note_stopping(self) -> None:
        """Note that the worker stops, for the children to read."""
        self._memory[_STOPPING] = True

    @property
    def is_stopping(self) -> bool:
        """Whether the worker stops. Of a warm shutdown only the main process hears."""
        return bool(self._memory[_STOPPING])

    def known(self) -> Known | None:
        """The epoch of the store, as the main process saw it last."""
        at, epoch = _EPOCH.unpack(self._memory[: _EPOCH.size])
        return Known(epoch.rstrip(b"\0").decode(), at) if epoch.strip(b"\0") else None
