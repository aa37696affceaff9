"""One delivery of a message, as the main process hands it to whoever runs the task."""

from __future__ import annotations

from dataclasses import dataclass, replace
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from celery_exclusive import notices
from celery_exclusive.core.operations import Acquire, Release, Request
from celery_exclusive.leases.claim import Claim
from celery_exclusive.messages.header import HEADER, Header, publish_claim_id, read_header, rejections
from celery_exclusive.messages.stored import TOP, StoredMessage
from celery_exclusive.options.amounts import no_longer_than, seconds_until
from celery_exclusive.options.declared import FINISHED, PERIOD
from celery_exclusive.options.keys import key_of
from celery_exclusive.options.per_call import Values
from celery_exclusive.worker.queues import routed, source

if TYPE_CHECKING:
    from celery_exclusive.services import Services


@dataclass(frozen=True, slots=True)
class UniqueClaim:
    """The unique lease of a message, and until when it is for: "finished", "started" or "period".

    `is_taken` says that its publisher has taken it, `longest` is what it lasts for while the message waits,
    in microseconds, unless that `expires`.
    """

    claim: Claim
    until: str
    longest: int
    expires: str | None
    is_taken: bool

    @property
    def queued_ttl(self) -> int:
        """For how long it is kept if the message waits from now on."""
        return no_longer_than(self.longest, seconds_until(self.expires)) if self.expires else self.longest

    @property
    def queued(self) -> Claim:
        """That of the published message: until a copy of it begins, it is one for all queues."""
        return replace(self.claim, id=publish_claim_id(self.claim.id))

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Under which ids this delivery, or its message, may have the key."""
        return (self.claim,) if self.queued == self.claim else (self.claim, self.queued)

    def release_for_queue(self) -> Release:
        """The message comes again: until then the key stays its own, unless a copy waits in the store."""
        return self.claim.release(done=False, keep=self.queued_ttl)


@dataclass(frozen=True, slots=True)
class Delivery:
    """Which keys a delivered message is for, under which claims, and the message itself.

    The token is new for every delivery, so that two copies of one message are never taken for each other.
    `dup` names the key, and the task that has it, of a duplicate; `is_let_in` says that it goes on with what
    has been let in before: a retry, or a message that comes again; `is_stored` that its queue can get it
    back, `is_fanout` that all queues of its exchange got a copy;
    `values` are what the call has given instead of those of its task; `late` says that it is acknowledged
    when it has ended, and comes again if that is not seen. `events_from` tells a child whether somebody
    listened to its worker, and its name, when it got the delivery.
    """

    id: str
    token: str
    x: Claim | None
    u: UniqueClaim | None
    dup: tuple[str, str] | None
    redelivered: bool
    promoted: str | None
    offered: str | None
    is_let_in: bool
    late: bool
    values: Values
    kin: tuple[str, ...]
    stored: StoredMessage
    events_from: str | None = None
    is_stored: bool = True
    is_fanout: bool = False

    @classmethod
    def of(cls, task: Any, request: Any) -> Delivery | None:
        """What the message of a Celery request asks for; None if it wants nothing.

        Raises OptionError or TypeError if no key can be made from its arguments.
        """
        services: Services = task.app._celery_exclusive
        message = request.message
        header = read_header(services, message.headers, request.id)
        if header is None:
            _tell_if_unsigned(services, message)
            header = Header(_publish_id(request), masked=True)
        is_taken = header.u is not None
        rejected = rejections(message.headers)
        is_reborn = rejected not in (None, header.rejections)
        if rejected and is_reborn:
            header = header.reborn(rejected)
        header = routed(_completed(header, services, task, request), message)
        if header.x is None and header.u is None:
            return None
        restore_request(request, header)
        redelivered = is_redelivered(message)
        if redelivered or header.redelivered:  # worker_deduplicate_successful_tasks asks, and bodies may
            header = replace(header, redelivered=True)
            request.delivery_info["redelivered"] = True
        kin = [request.id]
        if header.next:
            kin.append(header.next)
        id, token = header.claim_id(request.id), token_hex(8)
        noted = source(message)
        is_stored = noted.get("is_stored", True)
        x = u = None
        exclusive = services.exclusive(task, header.values)
        if exclusive and header.x and not header.dup:
            x = Claim(header.x, id, token, services.ttl(exclusive), exclusive.limit)
        if header.u and not header.dup:
            key, until = header.u
            unique = services.unique(task, header.values)
            claim = Claim(key, id, token, services.ttl(unique))
            expires = message.headers.get("expires")
            u = UniqueClaim(claim, until, services.queued_ttl(unique), expires, is_taken)
        return cls(
            id=id,
            token=token,
            x=x,
            u=u,
            dup=(header.u[0], header.dup) if header.u and header.dup else None,
            redelivered=redelivered,
            promoted=header.promoted,
            offered=header.offered,
            is_let_in=bool(
                request.request_dict.get("retries") or redelivered or header.redelivered or header.promoted
            )
            or rejected is not None,
            late=bool(task.acks_late) and is_stored,
            values=header.values,
            kin=tuple(kin),
            stored=StoredMessage.of(message, header, noted.get("queue") if header.route else None),
            is_stored=is_stored,
            is_fanout=noted.get("is_fanout", False),
        )

    @property
    def may_be_in_line(self) -> bool:
        """Whether an earlier delivery of its message may have been parked."""
        return self.redelivered or self.promoted is not None

    @property
    def key(self) -> str:
        """What people may call it by."""
        keys = self.x and self.x.key, self.u and self.u.claim.key, self.dup and self.dup[0]
        return next(key for key in keys if key)

    @property
    def guard(self) -> Claim | None:
        """The claim that keeps two deliveries of this message from running at the same time."""
        return self.x or (self.u.claim if self.u and self.u.until == FINISHED else None)

    @property
    def leases(self) -> tuple[Claim, ...]:
        """What the heartbeat has to keep."""
        u = self.u.claim if self.u and self.u.until == FINISHED else None
        return tuple(claim for claim in (self.x, u) if claim)

    def ending(self, *, done: bool, returns: bool) -> tuple[tuple[str, Request], ...]:
        """What the store is asked for when this has ended; if its message `returns`, that keeps its key."""
        operations: list[tuple[str, Request]] = []
        if self.x:
            operations.append((self.x.key, self.x.release(done=done)))
        if self.u and self.u.until != PERIOD and returns:
            operations.append((self.u.claim.key, self.u.release_for_queue()))
        elif self.u and self.u.until != PERIOD:
            operations += [(claim.key, claim.release(done=done)) for claim in self.u.claims]
        return tuple(operations)

    def acquire(self, claim: Claim, *, park: bool, max_waiting: int | None = None) -> Acquire:
        """Ask for one of its keys. Where the offer was for the other one, it is not the copy of an offer."""
        is_other = self.promoted is not None and self.offered != claim.key
        return replace(
            claim.acquire(),
            redelivered=self.redelivered,
            promoted="" if is_other else self.promoted,
            late=self.late,
            message=self.stored.dump() if park and self.is_stored else None,
            max_waiting=max_waiting,
        )


def is_redelivered(message: Any) -> bool:
    """Whether the broker has delivered it before. kombu's Redis transport says so in its headers alone."""
    return bool(message.delivery_info.get("redelivered") or message.headers.get("redelivered"))


def give_back_unique_key(services: Services, id: str, message: Any) -> None:
    """Give back what a message has that no body will run for, unless it may still be in line."""
    header = read_header(services, message.headers or {}, id)
    if header and not header.promoted and (header.x is None or not is_redelivered(message)):
        services.releaser.add_message(id, header)


def restore_request(request: Any, header: Header) -> None:
    """Give a copy the priority, exchange and routing key of its publisher, for what its task publishes."""
    if header.route:
        _, request.delivery_info["exchange"], request.delivery_info["routing_key"] = header.route
    properties = request.message.properties
    if header.promoted is not None and properties.get("priority") == TOP:
        properties["priority"] = request.delivery_info["priority"] = header.prio


def _tell_if_unsigned(services: Services, message: Any) -> None:
    """Log it once per process."""
    signer = services.signer
    if signer.is_on and HEADER in message.headers and not signer.has_told:
        signer.has_told = True
        notices.unsigned(str(message.headers.get("task")), str(message.headers.get("origin") or "unknown"))


def _completed(header: Header, services: Services, task: Any, request: Any) -> Header:
    """With the keys of options that its publisher did not know of."""
    arguments = (task.name, task.run)
    exclusive = services.exclusive(task, header.values)
    unique = services.unique(task, header.values)
    call = (request.args, request.kwargs)
    if exclusive is None or exclusive.attribute in header.off:
        header = replace(header, x=None)
    elif header.x is None:
        header = replace(header, x=key_of(*arguments, exclusive, *call))
    if unique and header.u is None and unique.attribute not in header.off:
        header = replace(header, u=(key_of(*arguments, unique, *call), unique.window))
    return header


def _publish_id(request: Any) -> str:
    """For a message from a publisher without this library: what its copies share, and no other has."""
    properties = request.message.properties or {}
    return str(properties.get("delivery_tag") or request.request_dict.get("retries") or 0)
