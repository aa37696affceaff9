"""A claim: the identity under which a delivery or a process acquires a key."""

from __future__ import annotations

from dataclasses import dataclass

from celery_exclusive.core.document import Phase
from celery_exclusive.core.operations import Acquire, Own, Release, Renew, Restore


@dataclass(frozen=True, slots=True)
class Claim:
    """A key, with the id and the token of its claimant. Its lease lasts for `ttl` microseconds."""

    key: str
    id: str
    token: str
    ttl: int
    limit: int = 1

    def acquire(self) -> Acquire:
        return Acquire(self.id, self.token, self.ttl, self.limit)

    def own(self, ttl: int, phase: Phase, former: Claim | None = None) -> Own:
        return Own(self.id, self.token, ttl, (former.id, former.token) if former else None, phase)

    def renew(self, phase: Phase | None = None) -> Renew:
        return Renew(self.id, self.token, self.ttl, phase)

    def restore(self) -> Restore:
        return Restore(self.id, self.token, self.ttl, self.limit)

    def release(self, *, done: bool = True, alone: bool = False, keep: int = 0) -> Release:
        return Release(self.id, self.token, done, alone, keep)
