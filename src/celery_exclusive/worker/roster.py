"""The roster: the reports of a worker's runs about themselves, and the facts of their worker that they need.

Celery's pool does not know all running tasks. When a worker loses its broker, the pool forgets each task that
it has passed to a child and whose start it has not seen yet, and the child runs it all the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from celery_exclusive.core.claim import Claim
from celery_exclusive.core.delivery import Claims
from celery_exclusive.leases.keeper import Known


class Slot:
    """The entry of one run: its claims, and the leases that it holds.

    slot = roster.begin(claims)     # from now on its leases are renewed, as soon as it has them
    slot.hold(claim)                # from now on it is restored if the store loses its data
    slot.let_go(claim)              # before the release
    slot.end()
    """

    def __init__(self, claims: Claims, held: tuple[Claim, ...] = ()) -> None:
        self.claims, self.held = claims, held

    def hold(self, *claims: Claim) -> None:
        """Note that these leases, and no others, were granted."""
        self.held = claims

    def let_go(self, *claims: Claim) -> None:
        """Note that these leases are about to be released: they must not be restored from now on."""
        self.hold(*[claim for claim in self.held if claim not in claims])

    def holds(self, claim: Claim) -> bool:
        """Whether the run holds this lease now."""
        return claim in self.held

    def end(self) -> None:
        """Note that the run ends, and is about to release its leases."""
        raise NotImplementedError


class Roster:
    """The slots of the runs in this process."""

    is_shared = False

    def __init__(self) -> None:
        self._slots: dict[_OwnSlot, None] = {}
        self._known: Known | None = None
        self._is_stopping = False
        self._listener: str | None = None

    def begin(self, claims: Claims) -> Slot:
        """Note that a run begins which may be granted these claims."""
        return _OwnSlot(claims, self._slots)

    def runs(self) -> Sequence[Slot]:
        """Return the slots of the runs that have begun and not ended."""
        return list(self._slots)

    def find(self, token: str) -> Slot | None:
        """Return the slot of a delivery, also of a child that is gone. None: it has ended, or not begun."""
        return next((slot for slot in self._slots if slot.claims.token == token), None)

    def see(self, known: Known) -> None:
        """Let the runs know the epoch of the store."""
        self._known = known

    def known(self) -> Known | None:
        """Return the epoch of the store, as the heartbeat saw it last."""
        return self._known

    def stop(self) -> None:
        """Let the runs know that the worker stops."""
        self._is_stopping = True

    @property
    def is_stopping(self) -> bool:
        """Whether the worker stops."""
        return self._is_stopping

    def listen(self, name: str | None) -> None:
        """Let the runs know the worker's name while a monitor listens to its events."""
        self._listener = name

    @property
    def listener(self) -> str | None:
        """The worker's name, while a monitor listens to its events."""
        return self._listener

    def close(self) -> None:
        """Remove all that the roster has made."""


class _OwnSlot(Slot):
    """The slot of a run in this process."""

    def __init__(self, claims: Claims, slots: dict[_OwnSlot, None]) -> None:
        super().__init__(claims)
        self._slots = slots
        slots[self] = None

    def end(self) -> None:
        self.held = ()
        self._slots.pop(self, None)
