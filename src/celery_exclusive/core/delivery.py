"""The facts of one delivery of a message."""

from __future__ import annotations

from dataclasses import dataclass, replace

from celery_exclusive.core.claim import FINISHED, WINDOW, Claim, UniqueClaim, task_id
from celery_exclusive.core.operations import Acquire, Order


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """The claims of one delivery of a message, all with its `id` and its `token`.

    `last_chance`: set if the task is given up when its worker dies once more. `grace`: the seconds from
    supersession to interruption.
    """

    id: str
    token: str
    exclusive: Claim | None = None
    unique: UniqueClaim | None = None
    acks_late: bool = False
    last_chance: Claim | None = None
    grace: float | None = None

    @property
    def leases(self) -> tuple[Claim, ...]:
        """The claims that the heartbeat renews while the body runs."""
        unique = self.unique.claim if self.unique and self.unique.until == FINISHED else None
        return tuple(filter(None, (self.exclusive, unique, self.last_chance)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery(Claims):
    """The facts of one delivery of a message: its claims, and how it came.

    * `duplicate_of`: the key and its task, if it was sent as a duplicate. `joins`: it waits for the end of
      the task that holds its unique key, unless that task's body has published it (`called_by`), and may wait
      for it.
    * `may_have_begun`: the task has run, and does not only come again from a line, or this is its
      replacement. It does not give up, and no newer task replaces it.
    * `recovers`: the store keeps the message behind its run, at the first of its `leases`.
    * `order`: None: the order of arrival. `can_be_parked`: it can be published to its queue again.
    * `is_fanout`: all queues of the exchange got a copy. `published_by`: the task whose end or body did.
    * `follows`: the run that has handed its unique key over to this retry or replacement. `keeps_lock`: its
      run may have left its lock's lease to this retry. `superseded_by`: the newer task, if that run was
      superseded.
    * `is_awaited`: other tasks wait for its end. `expires_in`: if it waits in line.
    * `deaths`: of its workers, after which it was recovered.
    """

    duplicate_of: tuple[str, str] | None = None
    joins: bool = False
    called_by: str | None = None
    redelivered: bool = False
    promoted: str | None = None
    offered: str | None = None
    was_admitted: bool = False
    may_have_begun: bool = False
    recovers: bool = False
    order: Order | None = None
    can_be_parked: bool = True
    is_fanout: bool = False
    published_by: str | None = None
    follows: str | None = None
    keeps_lock: bool = False
    superseded_by: str | None = None
    is_awaited: bool = False
    expires_in: int | None = None
    deaths: int = 0
    queue: str = ""

    @property
    def may_be_in_line(self) -> bool:
        """Whether an earlier delivery of its message may have been parked."""
        return self.redelivered or self.promoted is not None

    @property
    def has_asked_before(self) -> bool:
        """Whether an earlier delivery or run of this task has asked for its keys."""
        return self.was_admitted or self.may_be_in_line

    @property
    def ends_window(self) -> bool:
        """Whether its message was offered at the end of its window of calls."""
        unique = self.unique
        return unique is not None and unique.until == WINDOW and self.offered == unique.claim.key

    @property
    def kin(self) -> tuple[str, ...]:
        """The tasks with which this delivery cannot conflict: its own, and the task whose end published it.

        A new call with the id of another task continues no run of that task, so its own id is left out. A
        member of a canvas counts as a continuation: other tasks wait for its end.
        """
        goes_on = self.was_admitted or self.published_by or self.follows or self.is_awaited
        return tuple(filter(None, (self.published_by, task_id(self.id) if goes_on else None)))

    @property
    def key(self) -> str:
        """The key that log lines name."""
        keys = (
            self.exclusive and self.exclusive.key,
            self.unique and self.unique.claim.key,
            self.duplicate_of and self.duplicate_of[0],
        )
        return next(key for key in keys if key)

    def acquire(self, claim: Claim, *, at_once: bool = False) -> Acquire:
        """Return the request for one of its keys. A key that was not offered sees it as a redelivery.

        `at_once`: a message that the store keeps for recovery is never parked.
        """
        recovers = self.recovers and claim in self.leases[:1]
        redelivered, promoted = self.may_be_in_line, None
        if self.promoted is not None and self.offered == claim.key:
            redelivered, promoted = self.redelivered, self.promoted
        return Acquire(
            claim.id,
            claim.token,
            claim.ttl,
            claim.limit,
            redelivered,
            promoted,
            self.acks_late,
            at_once=at_once and recovers,
            recovers=recovers,
            order=self.order if claim is self.exclusive else "published",  # before those that join it
            expires_in=self.expires_in,
            queue=self.queue if self.may_be_in_line else "",
            rates=claim.rates,
            **claim.share.fields,
        )

    def park(self, acquire: Acquire) -> Acquire:
        """Return the same request, which parks the message if the key is held."""
        return replace(acquire, at_once=False, queue=self.queue)
