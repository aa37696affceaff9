"""The choice of a client's calls: as workers and publishers make them, and some that none would make."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from celery_exclusive.core.operations import (
    Acquire,
    AcquireAlone,
    Drop,
    Enqueue,
    ForceRelease,
    GiveUp,
    Granted,
    Reap,
    Recall,
    Release,
    Remove,
    Renew,
    Requeue,
    Restore,
    StandBehind,
)
from celery_exclusive.core.records import NEVER
from celery_exclusive.stores.base import Reply, Wake
from tests.concurrent.calls import Asked, Call, Keep, Look
from tests.concurrent.round import CROWD, KEYS, Round

HOUR = 3_600_000_000
PER_GENERATION = 25
"""After so many calls a client goes on to other ids, as all others do about then."""


class Actor:
    """One client's choice. It remembers the leases that it was granted, and the messages that were woken."""

    def __init__(self, plan: Round, number: int) -> None:
        self._plan, self._number = plan, number
        self._random = random.Random(f"{plan.seed} {number}")
        self._limits = plan.limits
        self._made = 0
        self._held: list[tuple[str, str, str]] = []
        self._woken: list[Wake] = []
        self._failed: Call | None = None
        self._kinds = {
            self._take: 24,
            self._follow: 14,
            self._finish: 20,
            self._enqueue: 8 * plan.has_line,
            self._alone: 9,
            self._keep: 6,
            self._restore: 3,
            self._others: 12,
            self._look: 8,
            self._reap: 8,
        }

    def next(self) -> tuple[str, Asked]:
        """Return a key and an operation on it."""
        if self._failed and self._random.random() < 0.7:
            failed, self._failed = self._failed, None
            return failed.key, _again(failed.operation)
        self._made += 1
        kinds = [*self._kinds]
        return self._random.choices(kinds, [*self._kinds.values()])[0]()

    def hear(self, call: Call) -> None:
        """Learn from what became of a call."""
        operation, reply = call.operation, call.reply
        if not isinstance(reply, Reply):
            self._failed = None if call.is_answered else call
            return
        self._woken = [*self._woken, *reply.wake][-6:]
        if isinstance(reply.answer, Granted) and isinstance(operation, (Acquire, AcquireAlone)):
            self._held = [*self._held, (call.key, operation.id, operation.token)][-6:]

    def _take(self, promoted: str | None = None) -> tuple[str, Asked]:
        """Let a message be delivered."""
        key, chance = self._key(), self._chance
        return key, Acquire(
            self._id(key),
            self._token(),
            self._ttl(),
            self._limits[key] if chance(0.9) else 2,
            redelivered=chance(0.25),
            promoted="of another store" if chance(0.05) else promoted,
            acks_late=chance(0.6),
            message=self._message() if chance(0.85) else None,
            max_waiting=self._random.choice((None, None, None, None, 1, 3)),
            takes_over=(self._id(key), self._random.choice(("queued", "again", "period")))
            if chance(0.1)
            else None,
            at_once=chance(0.15),
            recovers=chance(0.3),
            order=self._random.choice((None, None, None, "published", "any")),
            **self._terms(),
        )

    def _follow(self) -> tuple[str, Asked]:
        """Deliver a message that was published again."""
        if not self._woken:
            return self._take()
        wake, chance = self._random.choice(self._woken), self._chance
        return wake.key, Acquire(
            wake.id,
            self._token(),
            self._ttl(),
            self._limits[wake.key],
            redelivered=chance(0.2),
            promoted=wake.epoch,
            acks_late=chance(0.6),
            message=wake.message,
            recovers=chance(0.3),
        )

    def _finish(self) -> tuple[str, Asked]:
        """End a run, though its lease may be over."""
        if not self._held:
            return self._take()
        key, id, token = self._held.pop(self._random.randrange(len(self._held)))
        if self._chance(0.15):
            return key, Requeue(id, token, self._ttl())
        return key, Release(id, token, self._ending())

    def _enqueue(self) -> tuple[str, Asked]:
        key = self._key()
        if self._chance(0.3):
            window = self._random.choice(
                ((0, 0), (HOUR, 3 * HOUR), *(((20_000, 100_000),) * self._plan.is_timed))
            )
            return key, Enqueue(self._id(key), self._message(), waits=window)
        return key, Enqueue(self._id(key), self._message(), self._limits[key], **self._terms())

    def _alone(self) -> tuple[str, Asked]:
        key, inherits, chance = self._key(), None, self._chance
        if self._held and chance(0.3):
            key, *lease = self._random.choice(self._held)
            inherits = (lease[0], lease[1])
        is_call = inherits is None and chance(0.5)
        return key, AcquireAlone(
            self._id(key),
            self._token(),
            self._ttl(),
            inherits,
            "queued" if is_call else self._random.choice(("running", "queued", "again", "period")),
            sends=is_call and self._plan.pushes and chance(0.6),
            repeated=chance(0.15),
        )

    def _keep(self) -> tuple[str, Asked]:
        if self._held and not self._plan.is_timed and self._chance(0.5):
            leases = tuple((key, Renew(id, token, self._ttl())) for key, id, token in self._held)
            return leases[0][0], Keep(leases)
        if not self._held or self._chance(0.2):
            key = self._key()
            return key, Renew(self._id(key), self._token(), self._ttl())
        key, id, token = self._random.choice(self._held)
        return key, Renew(id, token, self._ttl())

    def _restore(self) -> tuple[str, Asked]:
        if not self._held or self._chance(0.5):
            key = self._key()
            return key, Restore(self._id(key), self._token(), self._ttl(), self._limits[key])
        key, id, token = self._random.choice(self._held)
        return key, Restore(id, token, self._ttl(), self._limits[key])

    def _others(self) -> tuple[str, Asked]:
        key, token = self._key(), self._token()
        id = self._id(key)
        operations: list[Asked] = [
            Release(id, token, self._ending()),
            Requeue(id, token, self._ttl()),
            Remove(id, self._random.choice(("done", "open", "superseded", "aside"))),
            Recall(id),
            StandBehind(id),
            Drop(id, token),
            Drop(id, token),
            GiveUp(id, self._chance(0.5)),
            ForceRelease(id),
        ]
        return key, self._random.choice(operations)

    def _look(self) -> tuple[str, Asked]:
        return self._key(), Look()

    def _reap(self) -> tuple[str, Asked]:
        return self._key(), Reap(self._random.choice((0, NEVER, NEVER)))

    def _terms(self) -> dict[str, Any]:
        """When a waiting message ends."""
        if not self._plan.has_line:
            return {}
        times = (None, None, None, 0, HOUR, *((20_000, 200_000) * self._plan.is_timed))
        return {
            "expires_in": self._random.choice(times),
            "gives_up_in": self._random.choice(times),
            "replaces": self._chance(0.25),
            "queue": self._random.choice(("", "/low", "/low", "/high")),
        }

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    def _key(self) -> str:
        return self._random.choice(KEYS)

    def _id(self, key: str) -> str:
        letters = "abcdefghijklmnopqrst" if self._limits[key] == CROWD else "abcde"
        return f"{self._random.choice(letters)}{self._made // PER_GENERATION}"

    def _token(self) -> str:
        """Of this delivery alone, or of one that another client may have, too."""
        return "t" if self._chance(0.3) else f"{self._number}.{self._made}"

    def _ttl(self) -> int:
        if not self._plan.has_line:
            return self._random.choice((1, 500_000, 1_500_000, HOUR, HOUR))
        if self._plan.is_timed:
            return self._random.choice((1, 2_000, 20_000, 200_000, HOUR, HOUR))
        return self._random.choice((1, HOUR, HOUR, 3 * HOUR))

    def _message(self) -> bytes:
        return b"message %d of %d" % (self._made, self._number)

    def _ending(self) -> Any:
        return self._random.choice(("done", "done", "done", "open", "if_no_copy"))


def _again(operation: Asked) -> Asked:
    """A request that is repeated after its answer was lost, as the contract of stores says."""
    if isinstance(operation, Acquire):
        return replace(operation, redelivered=True)
    if isinstance(operation, AcquireAlone) and operation.sends:
        return replace(operation, repeated=True)
    return operation
