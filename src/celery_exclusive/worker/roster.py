"""The roster: the reports of a worker's runs about themselves, and the facts of their worker that they need.

Celery's pool does not know all running tasks. When a worker loses its broker, the pool forgets each task that
it has passed to a child and whose start it has not seen yet, and the child runs it all the same.
"""

from __future__ import annotations

import json
import mmap
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from ctypes import Structure, c_bool, c_char, c_double, c_int64, c_uint32, sizeof
from dataclasses import replace
from pathlib import Path
from zlib import crc32

from celery_exclusive import notices
from celery_exclusive.core.claim import LAST_CHANCE, Claim, UniqueClaim
from celery_exclusive.core.delivery import Claims
from celery_exclusive.core.room import Rates, Share
from celery_exclusive.errors import ExclusiveError
from celery_exclusive.leases.keeper import Known
from celery_exclusive.seams.billiard_pool import number_of_child
from celery_exclusive.system.cached import cached
from celery_exclusive.system.processes import is_gone
from celery_exclusive.system.signals import SOFT_LIMIT

_PATH = "CELERY_EXCLUSIVE_ROSTER"
"""The environment variable with the name of the file, for children that inherit no memory."""
_FEWEST = 1024
_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False, ensure_ascii=False).encode
_LONGEST = 16_000
"""The bytes of a slot for the claims of its run. Most runs need one page of memory."""
_HEADER = 512
"""Bytes before the table of pids."""
_Pid = c_int64
_LONGEST_EPOCH, _LONGEST_NAME, _LONGEST_TOKEN = 64, 256, 32
TimeLimits = tuple[float | None, float | None]


class Slot:
    """The entry of one run: its claims, and the leases that it holds.

    slot = roster.begin(claims)     # from now on its leases are renewed, as soon as it has them
    slot.hold(claim)                # from now on it is restored if the store loses its data
    slot.hold()                     # before the release
    roster.end(slot)
    """

    def __init__(self, claims: Claims, held: tuple[Claim, ...] = ()) -> None:
        self.claims, self.held = claims, held

    def hold(self, *claims: Claim) -> None:
        """Note that the run holds these leases, and no others: only they are restored from now on."""
        self.held = claims

    def hand_over(self, claim: Claim) -> None:
        """Note that the run holds its lock under this claim from now on."""
        others = [other for other in self.held if other != self.claims.exclusive]
        self.claims = replace(self.claims, exclusive=claim)
        self.hold(claim, *others)


class Roster:
    """The slots of the runs in this process."""

    is_shared = False

    def __init__(self) -> None:
        self._slots: dict[Slot, None] = {}
        self._known: Known | None = None
        self._is_stopping = False
        self._listener: str | None = None
        self._time_limits: TimeLimits = (None, None)

    def begin(self, claims: Claims) -> Slot:
        slot = Slot(claims)
        self._slots[slot] = None
        return slot

    def end(self, slot: Slot) -> None:
        slot.held = ()
        self._slots.pop(slot, None)

    def runs(self) -> Sequence[Slot]:
        """Return the slots of the runs that have begun and not ended."""
        return list(self._slots)

    def holds(self, claim: Claim, slot: Slot) -> bool:
        """Whether the run of this slot, as `runs` has returned it, holds this lease now."""
        return claim in slot.held

    def left(self) -> Sequence[Slot]:
        return ()

    def find(self, token: str) -> Slot | None:
        """Return the slot of a delivery, also of a child that is gone. None: it has ended, or not begun."""
        return next((slot for slot in (*self.runs(), *self.left()) if slot.claims.token == token), None)

    def see(self, known: Known) -> None:
        self._known = known  # one assignment, since other threads read it

    def known(self) -> Known | None:
        return self._known

    def stop(self) -> None:
        self._is_stopping = True

    @property
    def is_stopping(self) -> bool:
        """Whether the worker stops, as the main process has noted it: only that one sees a warm shutdown."""
        return self._is_stopping

    def listen(self, name: str | None) -> None:
        """Let the runs know the worker's name while a monitor listens to its events."""
        self._listener = name

    @property
    def listener(self) -> str | None:
        """The worker's name, while a monitor listens to its events."""
        return self._listener

    def limit(self, hard: float | None, soft: float | None) -> None:
        """Let the runs know the worker's own time limits, which the command line may have given."""
        self._time_limits = hard, soft

    @property
    def time_limits(self) -> TimeLimits:
        """The worker's own hard and soft time limits, in seconds."""
        return self._time_limits

    def interrupt(self, slot: Slot) -> None:
        """Interrupt the body of this run, if that is possible from another thread or process."""

    def close(self) -> None:
        """Remove all that the roster has made."""


class SharedRoster(Roster):
    """The slots of the runs in the children of a pool. No process waits for a lock.

    Each child writes a slot of its own, by the number that the pool gives it. A number is free when its child
    has ended. A table before the slots has the pids of the children that run a task; only living ones count.

    Control commands may double `children`. `is_inherited`: by forks; others find a file by its name in their
    environment.
    """

    is_shared = True
    _path: Path | None = None

    def __init__(self, children: int, *, is_inherited: bool = True) -> None:
        size = _HEADER + max(2 * children, _FEWEST) * (sizeof(_Pid) + sizeof(Record))
        if is_inherited:
            self._map(mmap.mmap(-1, size))
            return
        descriptor, path = tempfile.mkstemp(prefix="celery-exclusive-")
        os.truncate(descriptor, size)
        self._map(mmap.mmap(descriptor, size))
        os.close(descriptor)
        self._path, os.environ[_PATH] = Path(path), path

    @classmethod
    def of_parent(cls) -> SharedRoster | None:
        """Return the roster of the main process in a child that was not forked, and None elsewhere."""
        roster = cls.__new__(cls)
        try:
            with Path(os.environ[_PATH]).open("r+b") as file:
                roster._map(mmap.mmap(file.fileno(), 0))
        except KeyError:
            return None
        except FileNotFoundError:
            notices.no_roster(os.environ[_PATH])
            return None
        return roster

    def _map(self, memory: mmap.mmap) -> None:
        count = (len(memory) - _HEADER) // (sizeof(_Pid) + sizeof(Record))
        self._facts = _Facts.from_buffer(memory)
        self._pids = (_Pid * count).from_buffer(memory, _HEADER)
        self._records = (Record * count).from_buffer(memory, _HEADER + sizeof(self._pids))

    def close(self) -> None:
        if self._path:
            self._path.unlink(missing_ok=True)
            os.environ.pop(_PATH, None)

    def see(self, known: Known) -> None:
        epoch = known.epoch.encode()
        self._facts.at, self._facts.epoch = known.at, epoch if len(epoch) <= _LONGEST_EPOCH else b""
        if self._path:
            with suppress(FileNotFoundError):  # a child that starts then logs that it is gone
                os.utime(self._path)  # else a job that deletes old temporary files may delete it

    def known(self) -> Known | None:
        epoch = self._facts.epoch
        return Known(epoch.decode(), self._facts.at) if epoch else None

    def stop(self) -> None:
        self._facts.is_stopping = True

    @property
    def is_stopping(self) -> bool:
        return bool(self._facts.is_stopping)

    def listen(self, name: str | None) -> None:
        self._facts.listener = (name or "").encode("utf-8", "surrogatepass")[:_LONGEST_NAME]

    @property
    def listener(self) -> str | None:
        return self._facts.listener.decode(errors="ignore") or None

    def limit(self, hard: float | None, soft: float | None) -> None:
        self._facts.hard, self._facts.soft = hard or 0, soft or 0

    @property
    def time_limits(self) -> TimeLimits:
        return self._facts.hard or None, self._facts.soft or None

    @cached
    def _number(self) -> int:
        return number_of_child()

    def begin(self, claims: Claims) -> Slot:
        slot = ChildSlot(claims, self._records[self._number])
        self._pids[self._number] = os.getpid()
        return slot

    def end(self, slot: Slot) -> None:
        slot.held = ()
        self._pids[self._number] = 0

    def runs(self) -> Sequence[Slot]:
        return [slot for slot in self._all() if not is_gone(slot.pid)]

    def holds(self, claim: Claim, slot: Slot) -> bool:
        assert isinstance(slot, _SeenSlot)  # noqa: S101 - `runs` has returned it
        now = self._read(slot.index, slot.pid)
        return now is not None and claim in now.held and not is_gone(slot.pid)

    def interrupt(self, slot: Slot) -> None:
        """Send its child the signal of a soft time limit, which raises it in this run alone."""
        assert isinstance(slot, _SeenSlot)  # noqa: S101 - `runs` has returned it
        now = self._read(slot.index, slot.pid)
        if SOFT_LIMIT is not None and now is not None and now.claims.token == slot.claims.token:
            self._records[slot.index].interrupted = slot.claims.token.encode()
            with suppress(ProcessLookupError):
                os.kill(slot.pid, SOFT_LIMIT)

    def left(self) -> Sequence[Slot]:
        return [slot for slot in self._all() if is_gone(slot.pid)]

    def _all(self) -> Iterator[_SeenSlot]:
        for index, pid in enumerate(self._pids):
            if pid and (slot := self._read(index, pid)):
                yield slot

    def _read(self, index: int, pid: int) -> _SeenSlot | None:
        """Read the slot of a child. None: the child runs no task, or was killed while it wrote."""
        for _ in range(3):  # its child may write it just then
            record = self._records[index]
            claims = record.claims[: record.size]
            if crc32(claims) == record.checksum and self._pids[index] == pid:
                return _SeenSlot(index, pid, *_load(claims))
            time.sleep(0.001)
        return None


class _Facts(Structure):
    """The facts of a worker, in memory that its processes can share."""

    _fields_ = (
        ("at", c_double),
        ("epoch", c_char * _LONGEST_EPOCH),
        ("is_stopping", c_bool),
        ("listener", c_char * _LONGEST_NAME),
        ("hard", c_double),
        ("soft", c_double),
    )


class Record(Structure):
    """The claims of a run, as JSON; a checksum shows whether a child has written only half of it."""

    interrupted: bytes

    _fields_ = (
        ("size", c_uint32),
        ("checksum", c_uint32),
        ("claims", c_char * _LONGEST),
        ("interrupted", c_char * _LONGEST_TOKEN),
    )

    def take_interruption(self) -> str:
        """Return the token of the run that the main process has interrupted, once. "": none."""
        token, self.interrupted = self.interrupted, b""
        return token.decode(errors="replace")


class ChildSlot(Slot):
    def __init__(self, claims: Claims, record: Record) -> None:
        self.claims, self.record = claims, record
        self.hold()

    def hold(self, *claims: Claim) -> None:
        self.held = claims
        of, lock, unique = self.claims, self.claims.exclusive, self.claims.unique
        said = _encode(
            (
                *(of.id, of.token, of.acks_late),
                lock
                and (
                    *(lock.key, lock.ttl, lock.limit, lock.rates, lock.share, lock in claims),
                    lock.id if lock.id != of.id else "",
                ),
                unique
                and (
                    *(unique.claim.key, unique.claim.ttl, unique.until, unique.queued_ttl),
                    *(unique.is_acquired, unique.claim in claims),
                ),
                of.last_chance and (of.last_chance.ttl, of.last_chance in claims),
                of.grace,
            )
        ).encode("utf-8", "surrogatepass")
        if len(said) > _LONGEST:
            raise ExclusiveError(
                f"the task id and the keys take {len(said)} bytes, and a worker keeps {_LONGEST} of a run: "
                "use a shorter task_id"
            )
        self.record.size, self.record.checksum, self.record.claims = len(said), crc32(said), said


class _SeenSlot(Slot):
    """The slot of a child, as the main process has read it."""

    def __init__(self, index: int, pid: int, claims: Claims, held: tuple[Claim, ...]) -> None:
        super().__init__(claims, held)
        self.index, self.pid = index, pid


def _load(said: bytes) -> tuple[Claims, tuple[Claim, ...]]:
    id, token, acks_late, of_lock, of_unique, of_chance, grace = json.loads(said)
    lock, unique, chance, held = None, None, None, []
    if of_lock:
        key, ttl, limit, rates, (cost, part, weight, part_limit, part_rates), is_held, id_of_retry = of_lock
        share = Share(cost, part, weight, part_limit, _rates(part_rates))
        lock = Claim(key, id_of_retry or id, token, ttl, limit, _rates(rates), share)
        held += [lock] * is_held
    if of_unique:
        key, ttl, until, queued_ttl, is_acquired, is_held = of_unique
        unique = UniqueClaim(Claim(key, id, token, ttl), until, queued_ttl, is_acquired)
        held += [unique.claim] * is_held
    if of_chance:
        ttl, is_held = of_chance
        chance = Claim(LAST_CHANCE, id, token, ttl)
        held += [chance] * is_held
    claims = Claims(
        id=id,
        token=token,
        exclusive=lock,
        unique=unique,
        acks_late=acks_late,
        last_chance=chance,
        grace=grace,
    )
    return claims, tuple(held)


def _rates(said: list[list[int]]) -> Rates:
    return tuple((units, period) for units, period in said)
