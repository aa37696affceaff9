"""Reads a delivery, in the child that runs it, or in the main process if no child sees its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from os import urandom
from typing import TYPE_CHECKING, Any, NamedTuple

from celery.exceptions import Reject
from celery.utils.serialization import get_pickleable_exception

from celery_exclusive import notices
from celery_exclusive.core.claim import FINISHED, LAST_CHANCE, NO_WORKER, WINDOW, Claim, UniqueClaim
from celery_exclusive.core.delivery import Delivery
from celery_exclusive.core.operations import Order
from celery_exclusive.errors import OptionError
from celery_exclusive.messages.header import HEADER, Header, read_header, rejections
from celery_exclusive.messages.stored import Content, StoredMessage, content_of, queue_of
from celery_exclusive.options.amounts import microseconds_until, no_longer_than, seconds_until
from celery_exclusive.options.declared import Exclusive, UniqueOption
from celery_exclusive.options.keys import key_of, share_of
from celery_exclusive.seams.celery_request import as_dict
from celery_exclusive.worker.joining import may_join
from celery_exclusive.worker.queues import source

if TYPE_CHECKING:
    from celery_exclusive.options.option import Option
    from celery_exclusive.services import Services

_last_limits: dict[Any, int] = {}
"""What each function has returned that is the limit of a task."""
_OF_STEPS = ("chain", "chord", "callbacks")
"""The fields of Celery's request of a task whose result the next step gets. No errback gets it."""


class Delivered(NamedTuple):
    """A delivery as it came. The main process makes it of each Celery request, and passes it to the child.

    `token` tells the copies of one message apart: the mark of the worker, and random digits. `noted`: the
    worker's note of its queue, see `queues`. `retries`: before Celery adds fields from the message's body.
    `error`: the worker cannot take the message apart; the gate raises it.
    """

    id: str
    token: str
    content: Content
    noted: dict[str, Any]
    retries: int
    redelivered: bool
    error: Exception | None = None

    @classmethod
    def of(cls, request: Any, mark: str = NO_WORKER) -> Delivered:
        """Make it of a Celery request. An error is kept and not raised, so that the consumer goes on."""
        message, token = request.message, mark + urandom(6).hex()
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Received(Delivery):
    """A delivery, with the message itself, and the options of its task with the values of its call.

    `header`: with the facts of this delivery. `has_next_step`: another task gets its result. `is_delayed`:
    the broker delays what is published to its queue again.
    """

    header: Header
    content: Content
    has_next_step: bool = False
    is_delayed: bool = False
    expires: str | None = None
    exclusive_option: Exclusive | None = None
    unique_option: UniqueOption | None = None

    @property
    def stored(self) -> StoredMessage:
        return StoredMessage.of(self.content, self.header)

    def parked_at(self, key: str) -> StoredMessage:
        """Return the message that waits for this key.

        The line of its first key counts its deaths; that of its lock also keeps its place for a last chance.
        """
        has_place = self.exclusive is not None and key == LAST_CHANCE
        is_first = key in [claim.key for claim in self.leases[:1]]
        return self.stored if is_first or has_place else self.stored.moved()

    def at_present(self) -> Received:
        if self.expires is None:
            return self
        unique = self.unique
        if unique and not unique.ends_by_clock:
            left = no_longer_than(unique.queued_ttl, seconds_until(self.expires))
            unique = replace(unique, queued_ttl=left)
        return replace(self, unique=unique, expires_in=microseconds_until(self.expires))

    def as_duplicate_of(self, key: str, existing_id: str) -> Received:
        """Return the delivery of a message that waits for this task, which holds its unique key."""
        header = replace(self.header, duplicate_of=existing_id, joins=True)
        return replace(self, header=header, duplicate_of=(key, existing_id), joins=True)

    def as_holder(self) -> Received:
        """Return the delivery of a duplicate that holds its unique key now, since no other has run for it."""
        header = replace(self.header, duplicate_of=None, awaited=False, joins=False)
        unique = self.unique and replace(self.unique, is_acquired=True)
        return replace(self, header=header, duplicate_of=None, joins=False, unique=unique)

    def is_redelivered_for(self, error: object) -> bool:
        """Whether the error of the body makes the message be redelivered: a requeue, or a MemoryError."""
        is_requeued = isinstance(error, Reject) and bool(getattr(error, "requeue", False))
        return self.acks_late and (is_requeued or isinstance(error, MemoryError))

    @property
    def waited_s(self) -> float | None:
        """The seconds since a rescheduled task first found its key held. None: they are not known."""
        since = self.header.since
        return None if since is None else max(time.time() - since, 0)

    def lock_option(self, key: str) -> Exclusive | None:
        return self.exclusive_option if self.exclusive and key == self.exclusive.key else None


def read(delivered: Delivered, task: Any, request: dict[str, Any], args: Any, kwargs: Any) -> Received | None:
    """Return the facts of a delivery; None: no options. Restores the publisher's values in `request`."""
    if delivered.error:
        raise delivered.error
    services: Services = task.app._celery_exclusive
    headers, noted = delivered.headers, delivered.noted
    header = read_header(services, headers, delivered.id, task.name)
    is_acquired = header is not None and header.unique is not None
    if header is None:
        _log_if_unsigned(services, headers)
        # A publisher without this library has given it a publish id that its copies share.
        header = Header(str(delivered.content[4].get("delivery_tag") or delivered.retries), masked=True)
    option, unique_option = services.exclusive(task, header.values), services.unique(task, header.values)
    rejected = rejections(headers) if "x-death" in headers else None
    if rejected and rejected != header.rejections:
        header = header.as_new_publish(rejected)
    header.redelivered |= delivered.redelivered

    def key(option: Option) -> str:
        return key_of(task.name, task.run, option, args, kwargs, headers, services.key_headers)

    _add_keys(header, option, unique_option, key)
    note_route(delivered, header)
    if header.exclusive is None and header.unique is None:
        return None
    if header.route or header.redelivered:
        show_origin(request, header)
    id, token = header.claim_id(delivered.id), delivered.token
    has_next_step, can_be_parked = any(map(request.get, _OF_STEPS)), noted.get("can_be_parked", True)
    is_member = has_next_step or header.awaited or bool(request.get("group"))
    joins = can_be_parked and (
        header.joins or may_join(services, task, request, unique_option, is_member=is_member)
    )
    exclusive = unique = None  # a duplicate that is skipped competes for no key
    if option and header.exclusive is not None and (joins or not header.duplicate_of):
        share = share_of(task.name, task.run, option, args, kwargs, headers, most_of=_most)
        room = _most(option), option.rates, share
        exclusive = Claim(header.exclusive, id, token, services.ttl(option), *room)
    if header.unique and (joins or not header.duplicate_of):
        claim = Claim(header.unique[0], id, token, services.ttl(unique_option))
        queued_ttl = services.queued_ttl(unique_option)
        unique = UniqueClaim(claim, header.unique[1], queued_ttl, is_acquired)
    has_run = bool(header.redelivered or rejected or delivered.retries)
    acks_late = bool(task.acks_late) and can_be_parked
    guards = unique is not None and unique.until == FINISHED
    ends_window = header.offered is not None and header.unique == (header.offered, WINDOW)
    content, queue = delivered.content, noted.get("queue")
    if header.route and queue:  # it is published to its own queue alone, since others may have a copy
        content = (*content[:5], queue, "")
    _, exchange, routing_key = header.route or ("", content[6], content[5])
    return Received(
        id=id,
        token=token,
        exclusive=exclusive,
        unique=unique,
        duplicate_of=(header.unique[0], header.duplicate_of)
        if header.unique and header.duplicate_of
        else None,
        redelivered=delivered.redelivered,
        promoted=header.promoted,
        offered=header.offered,
        was_admitted=has_run or bool(header.promoted and not ends_window),
        may_have_begun=has_run or header.published_by == delivered.id,
        acks_late=acks_late,
        last_chance=_last_chance(services, header.deaths, exclusive or (unique.claim if unique else None)),
        recovers=acks_late
        and (exclusive is not None or guards)
        and services.recovers(option if exclusive else None, unique_option if guards else None),
        order=_order(services, option),
        grace=option.grace_s if option and exclusive else None,
        superseded_by=header.superseded_by,
        can_be_parked=can_be_parked,
        is_fanout=noted.get("is_fanout", False),
        published_by=header.published_by,
        follows=f"{delivered.id}/{header.follows}" if header.follows else None,
        keeps_lock=header.keeps_lock,
        is_awaited=is_member,
        has_next_step=has_next_step,
        joins=joins,
        called_by=request.get("parent_id"),
        header=header,
        content=content,
        is_delayed=noted.get("is_delayed", False),
        exclusive_option=option,
        unique_option=unique_option,
        expires=headers.get("expires"),
        deaths=header.deaths,
        queue=queue_of(exchange, routing_key),  # by the name that its publisher has given
    ).at_present()


def _most(option: Exclusive) -> int:
    """Return how many may run at once. If its function fails, the last limit counts, or 1: no task fails."""
    function: Any = option.limit
    try:
        most = option.most
    except OptionError as error:
        notices.trouble("a task's limit is not known, so the last one counts", error)
        return _last_limits.get(function, 1)
    if callable(function):
        _last_limits[function] = most
    return most


def _last_chance(services: Services, deaths: int, first: Claim | None) -> Claim | None:
    """Return the claim of a task that is given up if its worker dies again. `first`: of its other key."""
    if not (first and deaths) or deaths + 1 != services.settings.exclusive_max_deaths:
        return None
    return Claim(LAST_CHANCE, first.id, first.token, first.ttl)


def _order(services: Services, option: Exclusive | None) -> Order | None:
    """Return the order in which the tasks of the key start, if it is not the order of their arrival."""
    order = services.order(option) if option else "arrived"
    return None if order == "arrived" else order


def _add_keys(
    header: Header, exclusive: Exclusive | None, unique: UniqueOption | None, key: Callable[[Option], str]
) -> None:
    """Add the keys of options that the publisher did not know of."""
    if exclusive is None or exclusive.attribute in header.switched_off:
        header.exclusive = None
    elif header.exclusive is None:
        header.exclusive = key(exclusive)
    if header.unique or unique is None or unique.attribute in header.switched_off:
        return
    if unique.held_until != WINDOW:  # else the message has come, and can join no window
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
    by_sqs = (info.get("sqs_message", {}).get("Attributes") or {}).get("ApproximateReceiveCount")
    return int(by_sqs or info.get("pgmq_message", {}).get("read_ct") or 1) > 1


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
