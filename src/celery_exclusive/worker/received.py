"""One delivery of a message, as the main process hands it to the process that runs the task."""

from __future__ import annotations

from dataclasses import dataclass, replace
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from celery_exclusive import notices
from celery_exclusive.core.claim import Claim, UniqueClaim
from celery_exclusive.core.delivery import Delivery
from celery_exclusive.messages.header import HEADER, Header, read_header, rejections
from celery_exclusive.messages.stored import TOP, StoredMessage
from celery_exclusive.options.amounts import no_longer_than, seconds_until
from celery_exclusive.options.keys import key_of
from celery_exclusive.options.values import Values
from celery_exclusive.worker.queues import routed, source

if TYPE_CHECKING:
    from celery_exclusive.options.declared import Exclusive
    from celery_exclusive.services import Services


@dataclass(frozen=True, slots=True, kw_only=True)
class Received(Delivery):
    """A delivery, with the message itself.

    The token is new for every delivery, so that two copies of one message are never taken for each other.
    `values` are what the call gave in place of those of its task. `longest_queued_ttl` is how many
    microseconds the unique key is kept while the message waits, unless that `expires` before. `events_from`
    gives a child the name of its worker, if somebody listened to its events when it got the delivery.
    """

    values: Values
    stored: StoredMessage
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
        published = read_header(services, message.headers, request.id)
        header = _header_of_delivery(published, services, task, request)
        if header.exclusive is None and header.unique is None:
            return None
        restore_route(request, header)
        if header.redelivered:  # worker_deduplicate_successful_tasks asks, and bodies may
            request.delivery_info["redelivered"] = True
        id, token = header.claim_id(request.id), token_hex(8)
        noted = source(message)
        can_be_parked = noted.get("can_be_parked", True)
        is_acquired = published is not None and published.unique is not None
        duplicate_of = (
            (header.unique[0], header.duplicate_of) if header.unique and header.duplicate_of else None
        )
        unique = _unique_claim(services, task, header, id, token, is_acquired=is_acquired)
        option = services.exclusive(task, header.values)
        exclusive = _lock_claim(services, option, header, id, token)
        acks_late = bool(task.acks_late) and can_be_parked
        return cls(
            id=id,
            token=token,
            exclusive=exclusive,
            unique=unique,
            duplicate_of=duplicate_of,
            redelivered=is_redelivered(message),
            promoted=header.promoted,
            offered=header.offered,
            was_admitted=_was_admitted(request, header),
            acks_late=acks_late,
            recovers=acks_late and option is not None and exclusive is not None and services.recovers(option),
            order=None if option is None or option.order == "arrived" else option.order,
            can_be_parked=can_be_parked,
            is_fanout=noted.get("is_fanout", False),
            kin=tuple(filter(None, (request.id, header.published_by))),
            follows=f"{request.id}/{header.follows}" if header.follows else None,
            values=header.values,
            stored=StoredMessage.of(message, header, noted.get("queue") if header.route else None),
            longest_queued_ttl=unique.queued_ttl if unique else 0,
            expires=message.headers.get("expires"),
        )

    def at_present(self) -> Received:
        """This delivery, with its unique key held no longer than its message can wait from now on."""
        if self.unique is None or self.unique.ends_by_clock or self.expires is None:
            return self
        left = no_longer_than(self.longest_queued_ttl, seconds_until(self.expires))
        return replace(self, unique=replace(self.unique, queued_ttl=left))


def is_redelivered(message: Any) -> bool:
    """Whether the broker has delivered it before. kombu's Redis transport says so in its headers alone."""
    return bool(message.delivery_info.get("redelivered") or message.headers.get("redelivered"))


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


def _header_of_delivery(published: Header | None, services: Services, task: Any, request: Any) -> Header:
    """Complete the header that was published, if any, by what this delivery shows."""
    message = request.message
    if published is None:
        _log_if_unsigned(services, message)
    header = published or Header(_publish_id(request), masked=True)
    rejected = rejections(message.headers)
    if rejected and rejected != header.rejections:
        header = header.as_new_publish(rejected)
    if is_redelivered(message):
        header = replace(header, redelivered=True)
    return routed(_with_keys(header, services, task, request), message)


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


def _with_keys(header: Header, services: Services, task: Any, request: Any) -> Header:
    """Add the keys of options that the publisher did not know of."""
    arguments = (task.name, task.run)
    exclusive = services.exclusive(task, header.values)
    unique = services.unique(task, header.values)
    call = (request.args, request.kwargs)
    if exclusive is None or exclusive.attribute in header.switched_off:
        header = replace(header, exclusive=None)
    elif header.exclusive is None:
        header = replace(header, exclusive=key_of(*arguments, exclusive, *call))
    if unique and header.unique is None and unique.attribute not in header.switched_off:
        header = replace(header, unique=(key_of(*arguments, unique, *call), unique.held_until))
    return header


def _lock_claim(
    services: Services, option: Exclusive | None, header: Header, id: str, token: str
) -> Claim | None:
    """Make the claim to the lock; None for a duplicate, which competes for no key."""
    if option is None or header.exclusive is None or header.duplicate_of:
        return None
    return Claim(header.exclusive, id, token, services.ttl(option), option.limit)


def _unique_claim(
    services: Services, task: Any, header: Header, id: str, token: str, *, is_acquired: bool
) -> UniqueClaim | None:
    """Make the claim to the unique key; None for a duplicate, which competes for no key."""
    if header.unique is None or header.duplicate_of:
        return None
    key, until = header.unique
    option = services.unique(task, header.values)
    return UniqueClaim(
        Claim(key, id, token, services.ttl(option)), until, services.queued_ttl(option), is_acquired
    )


def _was_admitted(request: Any, header: Header) -> bool:
    """Whether the task may have been admitted before: by an earlier delivery, run or publish of it."""
    is_retry = request.request_dict.get("retries")
    was_rejected = rejections(request.message.headers) is not None
    return bool(header.redelivered or header.promoted or is_retry or was_rejected)
