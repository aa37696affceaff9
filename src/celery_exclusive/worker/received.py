"""One delivery of a message, as the main process hands it to the process that runs the task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from os import urandom
from typing import TYPE_CHECKING, Any

from celery_exclusive import notices
from celery_exclusive.core.claim import Claim, UniqueClaim
from celery_exclusive.core.delivery import Delivery
from celery_exclusive.messages.header import HEADER, Header, read_header, rejections
from celery_exclusive.messages.stored import TOP, Content, StoredMessage, content_of
from celery_exclusive.options.amounts import no_longer_than, seconds_until
from celery_exclusive.options.keys import key_of
from celery_exclusive.options.values import Values
from celery_exclusive.worker.queues import routed, source

if TYPE_CHECKING:
    from celery_exclusive.options.declared import Exclusive, Unique
    from celery_exclusive.services import Services


@dataclass(frozen=True, slots=True, kw_only=True)
class Received(Delivery):
    """A delivery, with the message itself.

    The token is new for every delivery, so that two copies of one message are never taken for each other.
    `header` is ours, completed by what this delivery shows. `longest_queued_ttl` is how many
    microseconds the unique key is kept while the message waits, unless that `expires` before. `events_from`
    gives a child the name of its worker, if somebody listened to its events when it got the delivery.
    """

    header: Header
    content: Content
    longest_queued_ttl: int = 0
    expires: str | None = None
    events_from: str | None = None

    @classmethod
    def of(cls, task: Any, request: Any) -> Received | None:
        """Read the facts of a Celery request; None if its task has no options.

        Raises OptionError or TypeError if no key can be made from its arguments.
        """
        services: Services = task.app._celery_exclusive
        message = request.message
        redelivered = is_redelivered(message)
        header = read_header(services, message.headers, request.id)
        is_acquired = header is not None and header.unique is not None
        if header is None:
            _log_if_unsigned(services, message)
            header = Header(_publish_id(request), masked=True)
        option = services.exclusive(task, header.values)
        unique_option = services.unique(task, header.values)
        rejected = rejections(message.headers)
        if rejected and rejected != header.rejections:
            header = header.as_new_publish(rejected)
        if redelivered:
            header.redelivered = True
        _add_keys(header, option, unique_option, task, request)
        routed(header, message)
        if header.exclusive is None and header.unique is None:
            return None
        restore_route(request, header)
        if header.redelivered:  # worker_deduplicate_successful_tasks asks, and bodies may
            request.delivery_info["redelivered"] = True
        id, token = header.claim_id(request.id), urandom(8).hex()
        noted = source(message)
        can_be_parked = noted.get("can_be_parked", True)
        duplicate_of = (
            (header.unique[0], header.duplicate_of) if header.unique and header.duplicate_of else None
        )
        unique = _unique_claim(services, unique_option, header, id, token, is_acquired=is_acquired)
        exclusive = _lock_claim(services, option, header, id, token)
        acks_late = bool(task.acks_late) and can_be_parked
        return cls(
            id=id,
            token=token,
            exclusive=exclusive,
            unique=unique,
            duplicate_of=duplicate_of,
            redelivered=redelivered,
            promoted=header.promoted,
            offered=header.offered,
            was_admitted=bool(
                header.redelivered or header.promoted or rejected or request.request_dict.get("retries")
            ),
            acks_late=acks_late,
            recovers=acks_late and option is not None and exclusive is not None and services.recovers(option),
            order=None if option is None or option.order == "arrived" else option.order,
            can_be_parked=can_be_parked,
            is_fanout=noted.get("is_fanout", False),
            kin=tuple(filter(None, (request.id, header.published_by))),
            follows=f"{request.id}/{header.follows}" if header.follows else None,
            header=header,
            content=content_of(message, noted.get("queue") if header.route else None),
            longest_queued_ttl=unique.queued_ttl if unique else 0,
            expires=message.headers.get("expires"),
        )

    @property
    def values(self) -> Values:
        """What the call gave in place of the values of its task."""
        return self.header.values

    @property
    def body(self) -> bytes | str:
        """The body of the message."""
        return self.content[0]

    @property
    def headers(self) -> Mapping[str, Any]:
        """All headers of the message."""
        return self.content[3]

    @property
    def stored(self) -> StoredMessage:
        """The message as a store keeps it: made when it is needed, which is never for most messages."""
        return StoredMessage.of(self.content, self.header)

    def __reduce__(self) -> tuple[Callable[..., Received], tuple[Any, ...]]:
        """Pickle it in one step: of a dataclass with slots each field is looked up in Python."""
        unique = self.unique and (_claim_of(self.unique.claim), *_rest_of_unique(self.unique))
        claims = (self.exclusive and _claim_of(self.exclusive), unique)
        return _unpickled, (*claims, self.header.as_tuple(), *_rest_of(self))

    def at_present(self) -> Received:
        """This delivery, with its unique key held no longer than its message can wait from now on."""
        if self.unique is None or self.unique.ends_by_clock or self.expires is None:
            return self
        left = no_longer_than(self.longest_queued_ttl, seconds_until(self.expires))
        return replace(self, unique=replace(self.unique, queued_ttl=left))


_REST = [each.name for each in fields(Received) if each.name not in ("exclusive", "unique", "header")]
_rest_of = attrgetter(*_REST)
_claim_of = attrgetter(*(each.name for each in fields(Claim)))
_rest_of_unique = attrgetter(*(each.name for each in fields(UniqueClaim)[1:]))


def _unpickled(exclusive: Any, unique: Any, header: Any, *rest: Any) -> Received:
    return Received(
        exclusive=exclusive and Claim(*exclusive),
        unique=unique and UniqueClaim(Claim(*unique[0]), *unique[1:]),
        header=Header(*header),
        **dict(zip(_REST, rest, strict=True)),
    )


def is_redelivered(message: Any) -> bool:
    """Whether the broker has delivered it before.

    kombu's Redis transport says so in its headers alone; SQS and PGMQ count deliveries.
    """
    info = message.delivery_info
    is_flagged = info.get("redelivered") or message.headers.get("redelivered")
    return bool(is_flagged) or _deliveries(info) > 1


def _deliveries(info: Mapping[str, Any]) -> int:
    by_sqs = info.get("sqs_message", {}).get("Attributes", {}).get("ApproximateReceiveCount")
    return int(by_sqs or info.get("pgmq_message", {}).get("read_ct") or 1)


def release_unique_key_of(services: Services, id: str, message: Any) -> None:
    """Release the unique key of a message for which no body will run, unless it may still be in line."""
    header = read_header(services, message.headers or {}, id)
    if header and not header.promoted and (header.exclusive is None or not is_redelivered(message)):
        services.releaser.add_message(id, header)


def restore_route(request: Any, header: Header) -> None:
    """Show the body the priority, exchange and routing key of the publisher, not those of an offer."""
    if header.route:
        _, request.delivery_info["exchange"], request.delivery_info["routing_key"] = header.route
    properties = request.message.properties
    if header.promoted is not None and properties.get("priority") == TOP:
        properties["priority"] = request.delivery_info["priority"] = header.priority


def _log_if_unsigned(services: Services, message: Any) -> None:
    """Log it once per process."""
    signer = services.signer
    if signer.is_on and HEADER in message.headers and not signer.has_warned_unsigned:
        signer.has_warned_unsigned = True
        notices.unsigned(str(message.headers.get("task")), str(message.headers.get("origin") or "unknown"))


def _publish_id(request: Any) -> str:
    """Return the publish id of a message from a publisher without this library: its copies share it."""
    properties = request.message.properties or {}
    return str(properties.get("delivery_tag") or request.request_dict.get("retries") or 0)


def _add_keys(
    header: Header, exclusive: Exclusive | None, unique: Unique | None, task: Any, request: Any
) -> None:
    """Add the keys of options that the publisher did not know of."""
    if exclusive is None or exclusive.attribute in header.switched_off:
        header.exclusive = None
    elif header.exclusive is None:
        header.exclusive = key_of(task.name, task.run, exclusive, request.args, request.kwargs)
    if unique and header.unique is None and unique.attribute not in header.switched_off:
        key = key_of(task.name, task.run, unique, request.args, request.kwargs)
        header.unique = (key, unique.held_until)


def _lock_claim(
    services: Services, option: Exclusive | None, header: Header, id: str, token: str
) -> Claim | None:
    """Make the claim to the lock; None for a duplicate, which competes for no key."""
    if option is None or header.exclusive is None or header.duplicate_of:
        return None
    return Claim(header.exclusive, id, token, services.ttl(option), option.limit)


def _unique_claim(
    services: Services, option: Unique | None, header: Header, id: str, token: str, *, is_acquired: bool
) -> UniqueClaim | None:
    """Make the claim to the unique key; None for a duplicate, which competes for no key."""
    if header.unique is None or header.duplicate_of:
        return None
    key, until = header.unique
    return UniqueClaim(
        Claim(key, id, token, services.ttl(option)), until, services.queued_ttl(option), is_acquired
    )
