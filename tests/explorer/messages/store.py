"""The store of a small world: a few keys, each run through the real `step`, without what makes it infinite.

Of times the model keeps whether they are over, of fences and places in line their order, of tokens which
delivery has them. An expired lease is gone: operations drop it first, so no operation sees the difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from celery_exclusive.core import step as core
from celery_exclusive.core.claim import LAST_CHANCE
from celery_exclusive.core.operations import (
    Acquire,
    Answer,
    Full,
    Granted,
    Held,
    Operation,
    Over,
    Owner,
    Parked,
    Reap,
    Renew,
)
from celery_exclusive.core.records import (
    BEGUN,
    GIVEN_UP,
    NEVER,
    OVER,
    SENT,
    Document,
    Entry,
    Holder,
    Line,
    Phase,
    State,
    overdue,
)
from celery_exclusive.core.room import NO_TERMS, Terms

if TYPE_CHECKING:
    from tests.explorer.messages.world import Copy

NOW, LATER, MUCH_LATER, LAST_FENCE = 0, 1, 2, 100
"""A lease lasts until `LATER` by its ttl, and until `MUCH_LATER` by its `queued_ttl`."""
LOCK, KEYS = "x", ("x", "u", "v", LAST_CHANCE)
"""The key of the lock, and all keys: `u` and `v` are unique keys."""
MESSAGE = b"its message"
"""What stands for a message in an operation; the model knows which one it is."""
NOBODY = 0
"""The token of leases that no living delivery has."""


class Lease(NamedTuple):
    """A lease that has not expired. Its token matters only while it is "running"."""

    id: str
    token: int
    phase: Phase
    waited: bool
    expiry: int


class Place(NamedTuple):
    """An entry of the line, with its message. Its deadline has come, may come, or never does."""

    id: str
    copy: Copy
    is_offered: bool
    was_offered: bool
    state: State
    deadline: int = NEVER
    gives_up: bool = False
    replaceable: bool = False
    over: str | None = None
    joins: bool = False


class Key(NamedTuple):
    """The store's data of one key. `is_due`: the reaper will look at it. `done`: as in `Terms`."""

    leases: tuple[Lease, ...] = ()
    line: tuple[Place, ...] = ()
    tombstones: tuple[tuple[str, int | str], ...] = ()
    is_due: bool = False
    done: str = ""

    @property
    def owners(self) -> list[str]:
        """The ids that have the key, or to which a free slot is offered: those that join need none."""
        first = [place.id for place in self.line if place.state == "waiting" and not place.joins][:1]
        return [lease.id for lease in self.leases] or first

    def with_tokens(self, tokens: dict[int, int]) -> Key:
        if not (self.leases or self.tombstones):
            return self
        numbers = [*(lease.token for lease in self.leases), *(mark for _, mark in self.tombstones)]
        if all(isinstance(it, str) or it == NOBODY or tokens.get(it) == it for it in numbers):
            return self
        leases = tuple(lease._replace(token=tokens.get(lease.token, NOBODY)) for lease in self.leases)
        tombstones = tuple(
            (id, mark if isinstance(mark, str) else tokens.get(mark, NOBODY)) for id, mark in self.tombstones
        )
        return self._replace(leases=leases, tombstones=tombstones)

    def without_lease(self, lease: Lease) -> Key:
        return self._replace(leases=tuple(other for other in self.leases if other != lease))


class Store(NamedTuple):
    """All keys, in the order of `KEYS`, and how often the store has lost its data."""

    keys: tuple[Key, ...] = (Key(),) * len(KEYS)
    losses: int = 0

    @property
    def epoch(self) -> str:
        return f"epoch {self.losses}"

    @property
    def is_empty(self) -> bool:
        return not any(key.leases or key.line for key in self.keys)

    def key(self, name: str) -> Key:
        return self.keys[KEYS.index(name)]

    def put(self, name: str, key: Key) -> Store:
        at = KEYS.index(name)
        return self._replace(keys=(*self.keys[:at], key, *self.keys[at + 1 :]))

    def keys_of(self, token: int) -> tuple[str, ...]:
        """The keys that the delivery with this token has."""
        return tuple(
            name
            for name, key in zip(KEYS, self.keys, strict=True)
            if (key.leases and token in [lease.token for lease in key.leases])
            or (key.tombstones and token in [mark for _, mark in key.tombstones])
        )

    def with_tokens(self, tokens: dict[int, int]) -> Store:
        keys = tuple([key.with_tokens(tokens) for key in self.keys])
        return self if keys == self.keys else self._replace(keys=keys)

    def has_parked(self, id: str) -> bool:
        return any(place.id == id for key in self.keys for place in key.line)

    def __str__(self) -> str:
        shown = []
        for name, key in zip(KEYS, self.keys, strict=True):
            shown += [f"{name}: {lease.id} {lease.phase}" for lease in key.leases]
            shown += [
                f"{name}: {place.id} {place.state}{' offered' * place.is_offered}" for place in key.line
            ]
        return ", ".join(shown) or "no keys"


class Stores:
    """Runs operations on the keys of stores. It remembers what came of each."""

    def __init__(self) -> None:
        self._known: dict[object, tuple[Key, Answer, tuple[Copy, ...]]] = {}

    def ask(
        self, store: Store, name: str, operation: Operation | None, copy: Copy | None = None
    ) -> tuple[Store, Answer, tuple[Copy, ...]]:
        """Let the store do one step: its new content, the answer, and the messages to publish.

        Without an operation it only tells the holders. `copy` is the message of the operation, if it has one.
        """
        key = store.key(name)
        known = (name, key, store.losses, operation, copy)
        if known not in self._known:
            self._known[known] = _step(name, key, store.epoch, operation, copy)
        changed, answer, wakes = self._known[known]
        return (store if changed is key else store.put(name, changed)), answer, wakes


def _step(
    name: str, key: Key, epoch: str, operation: Operation | None, copy: Copy | None
) -> tuple[Key, Answer, tuple[Copy, ...]]:
    if operation is None:
        by = tuple(Owner(lease.id, 0, 0, 1, lease.phase, str(lease.token)) for lease in key.leases)
        return key, Held(by), ()
    id = "" if isinstance(operation, Reap) else operation.id
    document, line = _load(key, id, epoch)
    transition = core.step(document, line, operation, NOW)
    copies = {place.id: place.copy for place in key.line}
    if isinstance(operation, Acquire) and operation.message and transition.kept:
        assert copy
        copies[id] = copy._replace(promoted=None, offered="")
    entries = {entry.id: entry for entry in (*line.head, *line.aside, *line.behind)}
    for gone in transition.removed:
        entries.pop(gone, None)
    entries.update({entry.id: entry for entry in transition.entries})
    places = tuple(
        Place(
            entry.id,
            copies[entry.id],
            entry.state != "aside" and entry.offer_until > NOW,
            entry.offers > 0,
            entry.state,
            entry.deadline if entry.deadline == NEVER else LATER,
            entry.gives_up,
            entry.replaceable,
            entry.over,
            entry.joins,
        )
        for entry in sorted(entries.values(), key=lambda entry: entry.seq)
    )
    leases = tuple(
        Lease(
            holder.id,
            _token(holder.token) if holder.phase == "running" else NOBODY,
            holder.phase,
            holder.may_have_copies,
            holder.expiry,
        )
        for holder in sorted(transition.document.holders, key=lambda holder: holder.fence)
        if holder.expiry > NOW
    )
    tombstones = dict(key.tombstones)
    if transition.tombstone is not None:
        is_word = transition.tombstone in (BEGUN, SENT, GIVEN_UP) or transition.tombstone.startswith(OVER)
        tombstones[id] = transition.tombstone if is_word else _token(transition.tombstone)
    marks = tuple(sorted(tombstones.items()))
    # A renewal does not look at the clock: what is due by a lease that has expired is due after it, too.
    is_due = transition.due is not None or (isinstance(operation, Renew) and key.is_due)
    changed = Key(leases, places, marks, is_due, transition.document.terms.done)
    wakes = tuple(copies[woken]._replace(promoted=epoch, offered=name) for woken in transition.wake)
    return changed, _answer(transition.answer), wakes


def _load(key: Key, id: str, epoch: str) -> tuple[Document, Line]:
    holders = tuple(
        Holder(lease.id, str(lease.token), lease.expiry, fence, lease.waited, lease.phase)
        for fence, lease in enumerate(key.leases, 1)
    )
    entries = [
        Entry(
            place.id,
            seq,
            NEVER if place.state == "aside" else LATER if place.is_offered else NOW,
            int(place.was_offered),
            place.state,
            0,
            place.deadline,
            place.gives_up,
            place.replaceable,
            place.over,
            joins=place.joins,
        )
        for seq, place in enumerate(key.line, 1)
    ]
    due, deadline = overdue(entries, NOW)
    own = next((entry for entry in entries if entry.id == id), None)
    head = tuple(entry for entry in entries if entry.state == "waiting")
    mark = dict(key.tombstones).get(id)
    line = Line(
        waiting=len(head),
        head=head,
        aside=tuple(entry for entry in entries if entry.state == "aside"),
        behind=tuple(entry for entry in entries if entry.state == "behind"),
        overdue=due,
        deadline=deadline,
        last=head,
        entry=own,
        ahead=sum(own is None or entry.seq < own.seq for entry in head),
        tombstone=None if mark is None else str(mark),
    )
    terms = Terms(done=key.done) if key.done else NO_TERMS
    return Document(1, LAST_FENCE, holders, epoch, NOW if due else deadline, terms=terms), line


def _token(token: str) -> int:
    return int(token) if token.isdigit() else NOBODY


def _answer(answer: Answer) -> Answer:
    """The answer without numbers that no plan looks at."""
    if isinstance(answer, Granted):
        return Granted(1, answer.after)
    if isinstance(answer, Parked):
        return Parked(min(answer.position, 1), ())
    if isinstance(answer, Over):
        return Over(answer.newer, ())
    if isinstance(answer, (Held, Full)):
        owners = tuple(Owner(owner.id, 0, 0, min(owner.fence, 1), owner.phase) for owner in answer.by)
        return Held(owners) if isinstance(answer, Held) else Full(1, owners)
    return answer
