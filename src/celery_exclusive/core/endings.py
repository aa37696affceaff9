"""The operations that end a delivery, in the child or in the main process, or hand its lock over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from celery_exclusive.core.claim import WINDOW, Claim
from celery_exclusive.core.delivery import Claims, Delivery
from celery_exclusive.core.operations import (
    AcquireAlone,
    Answer,
    Ending,
    Full,
    Held,
    Release,
    Remove,
    Requeue,
    Stale,
)


def body_ended(delivery: Claims, *, will_be_redelivered: bool) -> Release | Requeue | None:
    """Release the unique key before callbacks, a retry or the next step of a chain are published.

    A message that will be redelivered keeps it. With copies the lease stays: `run_ended` drops them.
    """
    unique = delivery.unique
    if not unique or unique.ends_by_clock:
        return None
    return unique.requeue() if will_be_redelivered else unique.claim.release("if_no_copy")


def run_ended(
    delivery: Claims, *, done: bool, will_be_redelivered: bool
) -> Iterator[tuple[str, Release | Requeue | Remove]]:
    """Release all keys of a delivery. `done`: the message is over, and its result is stored.

    A message that will be redelivered keeps its unique key. A run that holds its lock under the id of its
    retry, see `HandOver`, ends neither that id nor its copies.
    """
    ending: Ending = "done" if done else "open"
    if chance := delivery.last_chance:
        yield chance.key, chance.release(ending)
    if lock := delivery.exclusive:
        is_of_retry = lock.id != delivery.id
        yield lock.key, lock.release("open" if is_of_retry else ending)
        if is_of_retry and done:
            yield lock.key, Remove(delivery.id, "superseded")
    unique = delivery.unique
    if unique and unique.until == WINDOW:
        if done:
            yield unique.claim.key, leave_no_copy(unique.claim)
        yield unique.claim.key, unique.claim.release("open")  # it may end before it has left its window
    if not unique or unique.ends_by_clock:
        return
    if will_be_redelivered:
        yield unique.claim.key, unique.requeue()
    else:
        for claim in unique.claims:
            yield claim.key, claim.release(ending)


def leave_no_copy(window: Claim) -> Remove:
    """Make copies of the offers of a message obsolete, which has ended, also those that are redelivered."""
    return Remove(window.id, "superseded")


def lease_that_keeps_message(delivery: Delivery) -> Claim | None:
    """Return the claim that keeps two deliveries of this message from running at the same time."""
    if delivery.unique and delivery.ends_window:
        return delivery.unique.claim
    return next(iter(delivery.leases), None)


def is_obsolete_copy(delivery: Delivery, answer: Answer) -> bool:
    """Whether the delivery is the copy of an offer whose task runs as another copy, or has run.

    A retry that has come early, and again, is no copy: its own id is held by the run before it.
    """
    is_retry = delivery.keeps_lock and not delivery.redelivered
    by = answer.by if isinstance(answer, (Held, Full)) and not is_retry else ()
    return answer == Stale() or delivery.id in [owner.id for owner in by]


@dataclass(frozen=True, slots=True)
class HandOver:
    """A retry that is about to be published, and that holds the lock of its run while it is queued.

    The lease passes to its id before it is published, and the run holds it on as `claim`: a retry that comes
    early finds that its own id runs, and comes again later. The run's end leaves it the lease for
    `queued_ttl`, in microseconds; after its death the lease has its ordinary ttl.
    """

    lock: Claim
    id: str
    queued_ttl: int

    @property
    def claim(self) -> Claim:
        """The claim of the run under the id of the retry."""
        return replace(self.lock, id=self.id)

    def begin(self) -> AcquireAlone:
        """Return the request by which the lease of the run passes to the id of the retry."""
        return self.claim.acquire_alone(self.lock.ttl, "running", inherits=self.lock)

    def run_ended(
        self, *, has_lease: bool, is_published: bool, done: bool
    ) -> Iterator[Requeue | Release | Remove]:
        """End the run. Its lease stays with the retry if that was published.

        Without `has_lease` the answer is lost, and the run may hold it under either id.
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

    `done`: it will not. A run that has not ended yet finds that, and releases the lock.
    """
    if done:
        yield Remove(id, "superseded")
    yield Release(id, "", "open")
