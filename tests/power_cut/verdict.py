"""What a store has forgotten of what it answered before the power was cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from celery_exclusive.core.operations import Acquire, Granted, Stale
from celery_exclusive.stores.base import Store, states
from tests.power_cut.client import HOUR, MESSAGE, Note

KINDS = ("held", "unique", "waits", "ended")


@dataclass(slots=True)
class Verdict:
    """What a cut has cost.

    * `lost`: answers that are forgotten, of each kind. `oldest`: seconds from the oldest of them to the cut.
    * `overlaps`: keys of lost leases that another run is granted after the heartbeat of their holders.
    * `notices`: what the client says of itself then; empty if it is dead.
    * `damage`: the error of a store that cannot be read.
    """

    answered: int
    lost: Counter[str] = field(default_factory=Counter)
    oldest: float = 0.0
    overlaps: int = 0
    notices: dict[str, int] = field(default_factory=dict)
    damage: str = ""


def forgotten(store: Store, notes: Iterable[Note]) -> list[Note]:
    """Return the notes that the store knows nothing of."""
    notes = list(notes)
    snapshots = dict(states(store, {note.key for note in notes}))
    ending = {note.id for note in notes if note.what == "ending"}
    waiting = [(note.key, note.id) for note in notes if note.what == "waits"]
    messages = dict(zip(waiting, store.messages_of(waiting), strict=True))
    lost = []
    for note in notes:
        holders = [owner.id for owner in snapshots[note.key].holders]
        if note.what == "unique" or (note.what == "held" and note.id not in ending):
            is_kept = holders == [note.id]
        elif note.what == "waits":
            line = [task.id for task in snapshots[note.key].line]
            is_kept = line == [note.id] and messages[note.key, note.id] == MESSAGE
        elif note.what == "ended":
            again = Acquire(note.id, "another", HOUR, redelivered=True)
            is_kept = not holders and isinstance(store.apply(note.key, again).answer, Stale)
        else:
            continue
        if not is_kept:
            lost.append(note)
    return lost


def overlaps(store: Store, lost: Iterable[Note]) -> int:
    """Return how many keys of running bodies another run is granted."""
    stranger = Acquire("stranger", "stranger", HOUR)
    keys = [note.key for note in lost if note.what == "held"]
    return sum(isinstance(store.apply(key, stranger).answer, Granted) for key in keys)
