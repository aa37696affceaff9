"""The retry of a run, to which the run leaves the lease of its lock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from celery_exclusive.core.claim import Claim
from celery_exclusive.core.operations import AcquireAlone, Release, Remove, Requeue


@dataclass(frozen=True, slots=True)
class Heir:
    """A retry that is about to be published, and that holds the lock of its run while it is queued.

    Before the retry is published, the lease passes to its id, and the run continues to hold it as `claim`. So
    a retry that arrives before its run has ended finds that its own id runs, and comes again later. When the
    run ends, it leaves the lease to the retry for `queued_ttl`, in microseconds. A run that dies before loses
    the lease after its ordinary ttl.
    """

    lock: Claim
    id: str
    queued_ttl: int

    @property
    def claim(self) -> Claim:
        """The claim of the run under the id of the retry."""
        return replace(self.lock, id=self.id)

    def inherit(self) -> AcquireAlone:
        """Return the request by which the lease of the run passes to the id of the retry."""
        return self.claim.acquire_alone(self.lock.ttl, "running", inherits=self.lock)

    def run_ended(
        self, *, has_lease: bool, is_published: bool, done: bool
    ) -> Iterator[Requeue | Release | Remove]:
        """End the run. Its lease stays with the retry if that was published.

        `has_lease`: the store has granted the lease to the id of the retry. Else the answer is lost, and the
        run may hold it under either id. `done` is as in `endings.run_ended`.
        """
        if has_lease and done:  # the retry replaces the message of the run, and all its copies
            yield Remove(self.lock.id, "superseded")
        if is_published:
            yield Requeue(self.id, self.lock.token, self.queued_ttl)
        else:
            yield self.claim.release("open")
        if not has_lease:
            yield self.lock.release("done" if done else "open")


def retry_ended(id: str, *, done: bool) -> Iterator[Remove | Release]:
    """Release the lock that a run has left to its retry, which has not begun.

    `done`: the retry will not begin. A run that has not ended yet finds that, and releases the lock.
    """
    if done:
        yield Remove(id, "superseded")
    yield Release(id, "", "open")
