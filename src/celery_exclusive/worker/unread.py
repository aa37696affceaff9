"""A delivery as it came: whoever needs its facts reads them, the child that runs it before all others."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from os import urandom
from typing import TYPE_CHECKING, Any

from celery.utils.serialization import get_pickleable_exception

from celery_exclusive import notices
from celery_exclusive.core.claim import FINISHED, Claim, UniqueClaim
from celery_exclusive.messages.header import HEADER, Header, has_all, read_header, rejections
from celery_exclusive.messages.stored import Content, content_of
from celery_exclusive.options.keys import key_of
from celery_exclusive.options.values import declared_options
from celery_exclusive.worker.queues import source
from celery_exclusive.worker.received import Received

if TYPE_CHECKING:
    from celery_exclusive.options.declared import Exclusive, Unique
    from celery_exclusive.options.option import Option
    from celery_exclusive.services import Services


@dataclass(slots=True, eq=False)
class Unread:
    """A delivery of a message whose header this process has not read yet.

    The main process of a worker makes it of each Celery request, and gives it to the child that runs the
    task. A plain one it reads itself only when it has to: to end it, or to renew its leases.

    * `id`: that of the task. `token`: a new one for every delivery, so that two copies of one message are
      never taken for each other.
    * `noted`: what the worker has noted of its queue, see `queues`. `redelivered`: what the broker says;
      `retries`: what the request said when it came, before Celery adds to it what the body says.
    * `events_from`: the name of its worker, if somebody listens to its events when a child gets the delivery.
    * `keys`: those that its first reader has made, by their options, or the `error` that prevented it: a
      function of the user's may make other ones the next time. `is_new`: nobody has read it.
    """

    id: str
    token: str
    content: Content
    noted: dict[str, Any]
    retries: int
    redelivered: bool
    events_from: str | None = None
    keys: dict[str, str] = field(default_factory=dict)
    error: Exception | None = None
    is_new: bool = True
    _read: list[Received | None] = field(init=False, default_factory=list)

    def __reduce__(self) -> tuple[Any, ...]:
        came = (self.id, self.token, self.content, self.noted, self.retries, self.redelivered)
        return Unread, (*came, self.events_from, self.keys, self.error, self.is_new)

    @classmethod
    def of(cls, request: Any) -> Unread:
        """Make it of a Celery request. Whatever is wrong with it, the gate raises: the consumer goes on."""
        message, token = request.message, urandom(8).hex()
        retries = request.request_dict.get("retries") or 0
        try:
            content, redelivered = content_of(message), is_redelivered(message)
        except Exception as error:  # noqa: BLE001 - as above
            content, redelivered = (b"", "", "", message.headers, {}, "", ""), False
            return cls(request.id, token, content, {}, retries, redelivered, error=_for_child(error))
        return cls(request.id, token, content, source(message), retries, redelivered)

    @property
    def our_header(self) -> dict[str, Any]:
        """The fields of our header as they came; anybody may have written them."""
        fields = self.content[3].get(HEADER)
        return fields if isinstance(fields, dict) else {}

    def is_plain(self, task: Any) -> bool:
        """Whether it is a first delivery that brings its keys, so that all who read it read the same."""
        exclusive, unique = declared_options(task)
        return (
            has_all(self.our_header, exclusive=exclusive is not None, unique=unique is not None)
            and not self.redelivered
            and "x-death" not in self.content[3]
            and not task.app._celery_exclusive.signer.is_on
        )

    def read(self, task: Any, request: dict[str, Any], args: Any, kwargs: Any) -> Received | None:
        """Return the facts of this delivery; None if its task has no options.

        `request` is Celery's request as a dict; from then on it shows what the publisher has sent.

        Raises OptionError or TypeError if no key can be made from its arguments. Then its unique key is
        released.
        """
        if not self._read:
            services: Services = task.app._celery_exclusive
            try:
                if self.error:
                    raise self.error
                self._read.append(self._facts(services, task, request, args, kwargs))
            except Exception as error:
                self.error = _for_child(error)
                if self.is_new:
                    release_unique_key_of(services, self.id, self.content[3], redelivered=self.redelivered)
                raise
            finally:
                self.is_new = False
        return self._read[0]

    def try_to_read(self, *of: Any) -> Received | None:
        """Return the facts of this delivery; None also if no key can be made: the gate raises the error."""
        with suppress(Exception):
            return self.read(*of)
        return None

    def _facts(
        self, services: Services, task: Any, request: dict[str, Any], args: Any, kwargs: Any
    ) -> Received | None:
        headers = self.content[3]
        header = read_header(services, headers, self.id, task.name)
        is_acquired = header is not None and header.unique is not None
        if header is None:
            if self.is_new:
                _log_if_unsigned(services, headers)
            header = Header(self._publish_id(), masked=True)
        option = services.exclusive(task, header.values)
        unique_option = services.unique(task, header.values)
        rejected = rejections(headers) if "x-death" in headers else None
        if rejected and rejected != header.rejections:
            header = header.as_new_publish(rejected)
        if self.redelivered:
            header.redelivered = True
        self._add_keys(header, option, unique_option, task, args, kwargs)
        self.note_route(header)
        if header.exclusive is None and header.unique is None:
            return None
        if header.route:
            restore_route(request, header)
        if header.redelivered:  # worker_deduplicate_successful_tasks asks, and bodies may
            request["delivery_info"]["redelivered"] = True
        id, token = header.claim_id(self.id), self.token
        can_be_parked = self.noted.get("can_be_parked", True)
        duplicate_of = (
            (header.unique[0], header.duplicate_of) if header.unique and header.duplicate_of else None
        )
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
            redelivered=self.redelivered,
            promoted=header.promoted,
            offered=header.offered,
            was_admitted=bool(header.redelivered or header.promoted or rejected or self.retries),
            acks_late=acks_late,
            recovers=acks_late and _recovers(services, option if exclusive else None, unique, unique_option),
            order=None if option is None or option.order == "arrived" else option.order,
            can_be_parked=can_be_parked,
            is_fanout=self.noted.get("is_fanout", False),
            published_by=header.published_by,
            follows=f"{self.id}/{header.follows}" if header.follows else None,
            header=header,
            content=self._of_its_queue() if header.route else self.content,
            events_from=self.events_from,
            exclusive_option=option,
            unique_option=unique_option,
            longest_queued_ttl=unique.queued_ttl if unique else 0,
            expires=headers.get("expires"),
            deaths=header.deaths,
        )

    def _add_keys(
        self,
        header: Header,
        exclusive: Exclusive | None,
        unique: Unique | None,
        task: Any,
        args: Any,
        kwargs: Any,
    ) -> None:
        """Add the keys of options that the publisher did not know of."""
        if exclusive is None or exclusive.attribute in header.switched_off:
            header.exclusive = None
        elif header.exclusive is None:
            header.exclusive = self._key(exclusive, task, args, kwargs)
        if unique and header.unique is None and unique.attribute not in header.switched_off:
            header.unique = (self._key(unique, task, args, kwargs), unique.held_until)

    def _key(self, option: Option, task: Any, args: Any, kwargs: Any) -> str:
        """Make a key once, whoever else reads this delivery."""
        key = self.keys.get(option.attribute)
        if key is None:
            of_message = self.content[3], task.app._celery_exclusive.key_headers
            key = key_of(task.name, task.run, option, args, kwargs, *of_message)
            self.keys[option.attribute] = key
        return key

    def note_route(self, header: Header) -> None:
        """Let the header name the queue of this copy, if its publish may have reached others too.

        The copy of an offer has the id under which its message is in line.
        """
        queue, (routing_key, exchange) = self.noted.get("queue"), self.content[5:]
        if not (header.route or header.promoted is not None or not queue or (queue, "") == self.content[5:]):
            header.route, header.auto_delete = (queue, exchange, routing_key), self.noted["auto_delete"]

    def _of_its_queue(self) -> Content:
        """What is published if it has to wait: to its own queue alone, since others may have a copy."""
        queue = self.noted.get("queue")
        return (*self.content[:5], queue, "") if queue else self.content

    def _publish_id(self) -> str:
        """Return the publish id of a message from a publisher without this library: its copies share it."""
        return str(self.content[4].get("delivery_tag") or self.retries)


def _for_child(error: Exception) -> Exception:
    can_be_pickled: Exception = get_pickleable_exception(error)
    return can_be_pickled


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


def restore_route(request: dict[str, Any], header: Header) -> None:
    """Show the body the exchange and routing key of the publisher, not those of an offer."""
    if header.route:
        info = request["delivery_info"]
        _, info["exchange"], info["routing_key"] = header.route


def _log_if_unsigned(services: Services, headers: Mapping[str, Any]) -> None:
    """Log it once per process."""
    signer = services.signer
    if signer.is_on and HEADER in headers and not signer.has_warned_unsigned:
        signer.has_warned_unsigned = True
        notices.unsigned(str(headers.get("task")), str(headers.get("origin") or "unknown"))


def _recovers(
    services: Services, exclusive: Exclusive | None, unique: UniqueClaim | None, option: Unique | None
) -> bool:
    """Whether the store keeps the message behind its run: it needs a key that is held until the end."""
    guards = unique is not None and unique.until == FINISHED
    return (exclusive is not None or guards) and services.recovers(exclusive, option if guards else None)


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
