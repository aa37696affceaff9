"""The roster: the reports of a worker's runs about themselves, and the facts of their worker that they need.

Celery's pool does not know all running tasks. When a worker loses its broker, the pool forgets each task that
it has passed to a child and whose start it has not seen yet, and the child runs it all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Structure, c_bool, c_char, c_double

from celery_exclusive.core.claim import Claim
from celery_exclusive.core.delivery import Claims
from celery_exclusive.leases.keeper import Known

_LONGEST_EPOCH, _LONGEST_NAME = 64, 256


class Facts(Structure):
    """The facts of a worker, in memory that its processes can share."""

    _fields_ = (
        ("at", c_double),
        ("epoch", c_char * _LONGEST_EPOCH),
        ("is_stopping", c_bool),
        ("listener", c_char * _LONGEST_NAME),
    )


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

    def holds(self, claim: Claim) -> bool:
        """Whether the run holds this lease now."""
        return claim in self.held


class Roster:
    """The slots of the runs in this process."""

    is_shared = False

    def __init__(self) -> None:
        self._slots: dict[Slot, None] = {}
        self._facts = Facts()

    def begin(self, claims: Claims) -> Slot:
        """Note that a run begins which may be granted these claims."""
        slot = Slot(claims)
        self._slots[slot] = None
        return slot

    def end(self, slot: Slot) -> None:
        """Note that the run ends, and has released its leases."""
        slot.held = ()
        self._slots.pop(slot, None)

    def runs(self) -> Sequence[Slot]:
        """Return the slots of the runs that have begun and not ended."""
        return list(self._slots)

    def left(self) -> Sequence[Slot]:
        """Return the slots of the runs whose children are gone."""
        return ()

    def find(self, token: str) -> Slot | None:
        """Return the slot of a delivery, also of a child that is gone. None: it has ended, or not begun."""
        return next((slot for slot in (*self.runs(), *self.left()) if slot.claims.token == token), None)

    def see(self, known: Known) -> None:
        """Let the runs know the epoch of the store."""
        epoch = known.epoch.encode()
        self._facts.at, self._facts.epoch = known.at, epoch if len(epoch) <= _LONGEST_EPOCH else b""

    def known(self) -> Known | None:
        """Return the epoch of the store, as the heartbeat saw it last."""
        epoch = self._facts.epoch
        return Known(epoch.decode(), self._facts.at) if epoch else None

    def stop(self) -> None:
        """Let the runs know that the worker stops."""
        self._facts.is_stopping = True

    @property
    def is_stopping(self) -> bool:
        """Whether the worker stops, as the main process has noted it: only that one sees a warm shutdown."""
        return bool(self._facts.is_stopping)

    def listen(self, name: str | None) -> None:
        """Let the runs know the worker's name while a monitor listens to its events."""
        self._facts.listener = (name or "").encode("utf-8", "surrogatepass")[:_LONGEST_NAME]

    @property
    def listener(self) -> str | None:
        """The worker's name, while a monitor listens to its events."""
        return self._facts.listener.decode(errors="ignore") or None

    def close(self) -> None:
        """Remove all that the roster has made."""
