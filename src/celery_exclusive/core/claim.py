"""The claim with which a message asks for a key, and the ids of claims."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from celery_exclusive.core.operations import (
    Acquire,
    AcquireAlone,
    Ending,
    Owner,
    Release,
    Renew,
    Requeue,
    Restore,
)
from celery_exclusive.core.records import Phase
from celery_exclusive.core.room import ONE_UNIT, Rates, Share

FINISHED: Literal["finished"] = "finished"
STARTED: Literal["started"] = "started"
PERIOD: Literal["period"] = "period"
WINDOW: Literal["window"] = "window"
UniqueUntil = Literal["finished", "started", "period", "window"]
LAST_CHANCE = "x=celery_exclusive.last_chance"
"""The key that a task needs, beside its own, for its last run before it is given up: one at a time."""
NO_WORKER = "0000"
"""The first digits of the token of a claim that no worker has made from a delivery."""
_TOKEN = re.compile("[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Claim:
    """A key, with the id and the token of its claimant. `ttl`: microseconds. `share`: what it takes."""

    key: str
    id: str
    token: str
    ttl: int
    limit: int = 1
    rates: Rates = ()
    share: Share = ONE_UNIT

    def acquire(self) -> Acquire:
        return Acquire(self.id, self.token, self.ttl, self.limit, rates=self.rates, **self.share.fields)

    def acquire_alone(self, ttl: int, phase: Phase, inherits: Claim | None = None) -> AcquireAlone:
        return AcquireAlone(
            self.id, self.token, ttl, (inherits.id, inherits.token) if inherits else None, phase
        )

    def renew(self) -> Renew:
        return Renew(self.id, self.token, self.ttl)

    def restore(self) -> Restore:
        return Restore(self.id, self.token, self.ttl, self.limit, rates=self.rates, **self.share.fields)

    def release(self, ending: Ending = "done") -> Release:
        return Release(self.id, self.token, ending)


@dataclass(frozen=True, slots=True)
class UniqueClaim:
    """The claim of a message to its unique key, which it holds `until` an event.

    `is_acquired`: by the publisher. `queued_ttl`: microseconds of the lease while the message is queued.
    """

    claim: Claim
    until: UniqueUntil
    queued_ttl: int
    is_acquired: bool

    @property
    def ends_by_clock(self) -> bool:
        """Whether no run holds the key: it lasts for a period, or its message waits in a window of calls."""
        return self.until in (PERIOD, WINDOW)

    @property
    def queued(self) -> Claim:
        """The claim of the published message. All its queues share this claim until a copy begins."""
        return replace(self.claim, id=publish_claim_id(self.claim.id))

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The claims under which this delivery, or its message, may hold the key."""
        return (self.claim,) if self.queued == self.claim else (self.claim, self.queued)

    def requeue(self) -> Requeue:
        """Return the operation that leaves the key to the message, which is delivered again."""
        return Requeue(self.claim.id, self.claim.token, self.queued_ttl)


def worker_mark(number: int) -> str:
    """Return the first digits of all tokens of a worker with this number, from 1 to 65535."""
    return f"{number:04x}"


def worker_number(token: str) -> int:
    """Return the number of the worker that has made this token; 0 if no worker has."""
    return int(token[: len(NO_WORKER)], 16) if _TOKEN.fullmatch(token) else 0


def task_id(id: str) -> str:
    return id.rpartition("/")[0]


def first_task_id(by: Sequence[Owner]) -> str:
    """Return the task id of the first of these owners, or "" if the store names none."""
    return task_id(by[0].id) if by else ""


def publish_id(id: str) -> str:
    return id.rpartition("/")[2]


def publish_claim_id(id: str) -> str:
    """Return the claim id of a publish, from the claim id of its copy in any queue."""
    return f"{task_id(id)}/{publish_id(id).partition('@')[0]}"


def is_other_copy(id: str, other: str) -> bool:
    return id != other and publish_claim_id(id) == publish_claim_id(other)
