"""What a message goes on from: a retry and a replacement follow a run, and keep its unique key."""

from __future__ import annotations

from dataclasses import dataclass

from celery_exclusive.leases.claim import Claim
from celery_exclusive.messages.header import Header
from celery_exclusive.run import current_run


@dataclass(frozen=True, slots=True)
class Origin:
    """Of a message with a unique key that is about to be sent.

    `is_of_own_run`: the body of the same task id sends it. `goes_on`: it has the key already, whoever the
    store names. `former` is the lease that it takes over; None: what it follows has none any more.
    """

    is_retry: bool
    is_of_own_run: bool
    goes_on: bool
    former: Claim | None

    @classmethod
    def of(cls, id: str, key: str, previous: Header | None, *, retries: int) -> Origin:
        """`previous` is the header with which it has been sent before, if it has."""
        run = current_run.get()
        own = run if run and run.task_id == id else None
        is_retry = bool(retries and (previous or own))
        held = own.unique if own and own.unique and own.unique.claim.key == key else None
        former = held.claim if held and held.may_hold else None
        return cls(is_retry, own is not None, is_retry or held is not None, former)
