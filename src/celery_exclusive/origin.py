"""What a message goes on from: a retry and a replacement follow a run, and keep its unique key."""

from __future__ import annotations

from dataclasses import dataclass

from celery_exclusive.claim import Claim
from celery_exclusive.header import Header
from celery_exclusive.task import current_run


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
    def of(cls, id: str, key: str, header: Header, previous: Header | None, *, retries: int) -> Origin:
        """`previous` is the header with which it has been sent before, if it has."""
        run = current_run.get()
        is_of_own_run = run is not None and run.task_id == id
        is_of_lost_child = run is None  # which the main process retries
        is_retry = bool(retries and (previous or is_of_own_run or is_of_lost_child))
        held = run.unique if run and is_of_own_run else None
        if held and held.claim.key != key:
            held = None
        former = None
        if is_of_own_run:
            former = held.claim if held and held.may_hold else None
        elif is_retry and previous and previous.u == header.u:
            former = Claim(key, previous.claim_id(id), previous.id, ttl=0)
        return cls(is_retry, is_of_own_run, is_retry or held is not None, former)
