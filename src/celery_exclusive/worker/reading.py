"""Reads a delivery, in the child that runs it, or in the main process if no child sees its end."""

from __future__ import annotations

from collections.abc import Mapping
from os import urandom
from typing import TYPE_CHECKING, Any, NamedTuple

from celery.utils.serialization import get_pickleable_exception

from celery_exclusive import notices
from celery_exclusive.core.claim import FINISHED, Claim, UniqueClaim
from celery_exclusive.messages.header import HEADER, Header, read_header, rejections
from celery_exclusive.messages.stored import Content, content_of
from celery_exclusive.options.keys import key_of
from celery_exclusive.seams.celery_request import as_dict
from celery_exclusive.worker.queues import source
from celery_exclusive.worker.received import Received

if TYPE_CHECKING:
    from celery_exclusive.options.declared import Exclusive, Unique
    from celery_exclusive.options.option import Option
    from celery_exclusive.services import Services


class Delivered(NamedTuple):
    """A delivery as it came. The main process makes it of each Celery request, and passes it to the child.

    * `id`: the id of the task. `token`: a new random string for each delivery, which tells the copies of one
      message apart.
    * `noted`: the worker's note of its queue, see `queues`. `redelivered`: the flag of the broker. `retries`:
      the count in the request as it came, before Celery adds fields from the body of the message.
    * `error`: the worker cannot take the message apart. The gate raises it.
    """

    id: str
    token: str
    content: Content
    noted: dict[str, Any]
    retries: int
    redelivered: bool
    error: Exception | None = None

    @classmethod
    def of(cls, request: Any) -> Delivered:
        """Make it of a Celery request. An error is kept and not raised, so that the consumer goes on."""
        message, token = request.message, urandom(8).hex()
        retries = as_dict(request).get("retries") or 0
        try:
            content, redelivered = content_of(message), is_redelivered(message)
            return cls(request.id, token, content, source(message), retries, redelivered)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the message
            headers = message.headers if isinstance(message.headers, dict) else {}
            content = (b"", "", "", headers, {}, "", "")
            return cls(request.id, token, content, {}, retries, False, get_pickleable_exception(error))

    @property
    def headers(self) -> dict[str, Any]:
        return self.content[3]

    @property
    def publish_id(self) -> str:
        """The publish id of a message from a publisher without this library, which its copies share."""
        return str(self.content[4].get("delivery_tag") or self.retries)

    @property
    def of_its_queue(self) -> Content:
        """The message to publish if it has to wait: to its own queue alone, since others may have a copy."""
        queue = self.noted.get("queue")
        return (*self.content[:5], queue, "") if queue else self.content


def read(delivered: Delivered, task: Any, request: dict[str, Any], args: Any, kwargs: Any) -> Received | None:
    """Return the facts of a delivery. None: its task has no options.

    `request` is Celery's request as a dict. This function restores the publisher's own values in it.

    Raises OptionError or TypeError if the arguments make no key.
    """
    if delivered.error:
        raise delivered.error
    services: Services = task.app._celery_exclusive
    headers = delivered.content[3]
    header = read_header(services, headers, delivered.id, task.name)
    is_acquired = header is not None and header.unique is not None
    if header is None:
        _log_if_unsigned(services, headers)
        header = Header(delivered.publish_id, masked=True)
    option = services.exclusive(task, header.values)
    unique_option = services.unique(task, header.values)
    rejected = rejections(headers) if "x-death" in headers else None
    if rejected and rejected != header.rejections:
        header = header.as_new_publish(rejected)
    if delivered.redelivered:
        header.redelivered = True
    _add_keys(header, option, unique_option, task, args, kwargs, headers)
    note_route(delivered, header)
    if header.exclusive is None and header.unique is None:
        return None
    if header.route or header.redelivered:
        show_origin(request, header)
    id, token = header.claim_id(delivered.id), delivered.token
    can_be_parked = delivered.noted.get("can_be_parked", True)
    duplicate_of = (header.unique[0], header.duplicate_of) if header.unique and header.duplicate_of else None
    unique = None
    if header.unique:
        unique = _unique_claim(services, unique_option, header, id, token, is_acquired=is_acquired)
    exclusive = _lock_claim(services, option, header, id, token)
    acks_late = bool(task.acks_late) and can_be_parked
    return Received(
        id=id,
        token=token,
        exclusive=exclusive,
        unique=unique,
        duplicate_of=duplicate_of,
        redelivered=delivered.redelivered,
        promoted=header.promoted,
        offered=header.offered,
        was_admitted=bool(header.redelivered or header.promoted or rejected or delivered.retries),
        acks_late=acks_late,
        recovers=acks_late and _recovers(services, option if exclusive else None, unique, unique_option),
        order=None if option is None or option.order == "arrived" else option.order,
        can_be_parked=can_be_parked,
        is_fanout=delivered.noted.get("is_fanout", False),
        published_by=header.published_by,
        follows=f"{delivered.id}/{header.follows}" if header.follows else None,
        header=header,
        content=delivered.of_its_queue if header.route else delivered.content,
        exclusive_option=option,
        unique_option=unique_option,
        longest_queued_ttl=unique.queued_ttl if unique else 0,
        expires=headers.get("expires"),
        deaths=header.deaths,
    )


def _add_keys(
    header: Header,
    exclusive: Exclusive | None,
    unique: Unique | None,
    task: Any,
    args: Any,
    kwargs: Any,
    headers: Mapping[str, Any],
) -> None:
    """Add the keys of options that the publisher did not know of."""

    def key(option: Option) -> str:
        return key_of(
            task.name, task.run, option, args, kwargs, headers, task.app._celery_exclusive.key_headers
        )

    if exclusive is None or exclusive.attribute in header.switched_off:
        header.exclusive = None
    elif header.exclusive is None:
        header.exclusive = key(exclusive)
    if unique and header.unique is None and unique.attribute not in header.switched_off:
        header.unique = (key(unique), unique.held_until)


def note_route(delivered: Delivered, header: Header) -> None:
    """Let the header name the queue of this copy, if its publish may have reached others too.

    The copy of an offer has the id under which its message is in line.
    """
    queue, (routing_key, exchange) = delivered.noted.get("queue"), delivered.content[5:]
    if not (header.route or header.promoted is not None or not queue or (queue, "") == delivered.content[5:]):
        header.route, header.auto_delete = (queue, exchange, routing_key), delivered.noted["auto_delete"]


def is_redelivered(message: Any) -> bool:
    """Whether the broker has delivered it before.

    kombu's Redis transport says so in its headers alone; SQS and PGMQ count deliveries.
    """
    info = message.delivery_info
    if info.get("redelivered") or message.headers.get("redelivered"):
        return True
    return ("sqs_message" in info or "pgmq_message" in info) and _deliveries(info) > 1


def _deliveries(info: Mapping[str, Any]) -> int:
    by_sqs = (info.get("sqs_message", {}).get("Attributes") or {}).get("ApproximateReceiveCount")
    return int(by_sqs or info.get("pgmq_message", {}).get("read_ct") or 1)


def release_unique_key_of(
    services: Services, id: str, headers: Mapping[str, Any], *, redelivered: bool
) -> None:
    """Release the unique key of a message for which no body will run, unless it may still be in line."""
    header = read_header(services, headers, id)
    if header and not header.promoted and (header.exclusive is None or not redelivered):
        services.releaser.add_message(id, header)


def show_origin(request: dict[str, Any], header: Header) -> None:
    """Restore the exchange and routing key of the publisher, not of an offer, and the mark of a redelivery.

    Bodies and hooks may read them, and worker_deduplicate_successful_tasks does.
    """
    info = request["delivery_info"]
    if header.route:
        _, info["exchange"], info["routing_key"] = header.route
    if header.redelivered:
        info["redelivered"] = True


def _log_if_unsigned(services: Services, headers: Mapping[str, Any]) -> None:
    """Log once per process that a message has no valid signature."""
    signer = services.signer
    if signer.is_on and HEADER in headers and not signer.has_warned_unsigned:
        signer.has_warned_unsigned = True
        notices.unsigned(str(headers.get("task")), str(headers.get("origin") or "unknown"))


def _recovers(
    services: Services, exclusive: Exclusive | None, unique: UniqueClaim | None, option: Unique | None
) -> bool:
    """Whether the store keeps the message behind its run, which needs a key that is held until the end."""
    guards = unique is not None and unique.until == FINISHED
    return (exclusive is not None or guards) and services.recovers(exclusive, option if guards else None)


def _lock_claim(
    services: Services, option: Exclusive | None, header: Header, id: str, token: str
) -> Claim | None:
    """Make the claim to the lock. None: a duplicate, which competes for no key."""
    if option is None or header.exclusive is None or header.duplicate_of:
        return None
    return Claim(header.exclusive, id, token, services.ttl(option), option.limit)


def _unique_claim(
    services: Services, option: Unique | None, header: Header, id: str, token: str, *, is_acquired: bool
) -> UniqueClaim | None:
    """Make the claim to the unique key. None: a duplicate, which competes for no key."""
    if header.unique is None or header.duplicate_of:
        return None
    key, until = header.unique
    return UniqueClaim(
        Claim(key, id, token, services.ttl(option)), until, services.queued_ttl(option), is_acquired
    )
