"""Publishes a message of a task whose runs start in the order of publishing: it takes its place first.

Celery makes the message and kombu encodes it. Then it is put into the line of its lock, and sent only if it
is its turn; else the store publishes it when it is.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any

from kombu import Producer
from kombu.compression import decompress

from celery_exclusive import notices
from celery_exclusive.core.operations import Applied, Enqueue, Remove
from celery_exclusive.errors import NotDone, StoreError, StoreRefused, StoreUnavailable, is_away
from celery_exclusive.leases.insist import insist
from celery_exclusive.messages.header import HEADER, Header
from celery_exclusive.messages.stored import StoredMessage
from celery_exclusive.options.amounts import microseconds_until
from celery_exclusive.publishing.impatient_store import store_or_impatient
from celery_exclusive.publishing.store_epoch import store_epoch
from celery_exclusive.publishing.unanswered import may_be_sent

if TYPE_CHECKING:
    from celery_exclusive.options.declared import Exclusive
    from celery_exclusive.services import Services
    from celery_exclusive.stores.base import Reply


class OrderedPublish:
    """A message that is about to be published in order.

    call = OrderedPublish(services, task, option, header, task_id, goes_without=False)
    result = call.send(publish, options.get("producer"))

    `goes_without`: it is sent without its place if the store does not answer.
    """

    def __init__(
        self,
        services: Services,
        task: str,
        option: Exclusive,
        header: Header,
        task_id: str,
        *,
        goes_without: bool,
    ) -> None:
        assert header.exclusive  # noqa: S101 - else it has no line
        self.services, self.task, self.option = services, task, option
        self.header, self.task_id = header, task_id
        self.key, self.id = header.exclusive, header.claim_id(task_id)
        self.goes_without = goes_without or services.allows_without(option)
        self.store = store_or_impatient(services) if self.goes_without else services.store
        self.may_be_in_line = False

    def send(self, publish: Callable[[Any], Any], producer: Any = None) -> Any:
        """Let Celery publish the message through a producer, and kombu send it only if it is its turn.

        Raises:
            StoreUnavailable: the store does not answer, and the message does not go without its place. If it
                has a `task_id`, the message may be in line, and be sent from there.
        """
        with self.services.app.producer_or_acquire(producer) as used:
            own = _own(used)
            own._publish = self._hooked(own, own._publish)  # type: ignore[method-assign]
            try:
                return publish(own)
            except BaseException as error:
                if self.may_be_in_line:  # its caller gets an error: nobody publishes it later
                    self._give_up(is_store_away=is_away(error))
                    if isinstance(error, StoreUnavailable):
                        raise may_be_sent(self.task, self.task_id, error) from error
                raise
            finally:  # it may have connected anew
                vars(used).update({name: vars(own)[name] for name in ("_channel", "exchange")})

    def _hooked(self, producer: Any, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap what kombu repeats if a connection is lost."""

        @wraps(original)
        def publish(*args: Any, **options: Any) -> Any:
            sent = signature(original).bind(*args, **options).arguments
            if not _leads_to_a_queue(sent):
                return original(**sent)
            is_its_turn = self._enqueue(sent)
            if is_its_turn is None:
                return original(**_marked(sent, self._mark("")))
            if is_its_turn:
                return original(**_marked(sent, self._mark(self.header.store or "")))
            for entity in sent["declare"] or ():
                producer.maybe_declare(entity)
            return None

        return publish

    def _enqueue(self, sent: dict[str, Any]) -> bool | None:
        """Return whether the message has to be sent now; None: the store does not answer, and may have it."""
        was_in_line = self.may_be_in_line
        try:
            self.header.store = store_epoch(self.services, self.store)
            stored = _stored(sent, self.header)
            expires_in = microseconds_until(stored.headers.get("expires"))
            enqueue = Enqueue(self.id, stored.dump(), self.option.limit, expires_in)
            self.may_be_in_line = True
            reply: Reply = self.store.apply(self.key, enqueue)
        except StoreError as error:
            if isinstance(error, (NotDone, StoreRefused)):
                self.may_be_in_line = was_in_line
            if not self.goes_without:
                raise
            notices.continues_without_place(self.task, self.task_id, self.key, error)
            return None
        return reply.answer == Applied(True)

    def _give_up(self, *, is_store_away: bool) -> None:
        """Give its place up, in the background while the store does not answer."""
        remove = Remove(self.id, "superseded")
        if not is_store_away:
            with suppress(Exception):  # the caller gets the first error
                insist(lambda: self.store.apply(self.key, remove))
                return
        self.services.releaser.add((self.key, remove))

    def _mark(self, epoch: str) -> dict[str, Any]:
        """Return our header with the mark of an offer; without an epoch it counts as redelivered."""
        fields = {**self.header.write(), "promoted": epoch, "offered": self.key}
        return self.services.signer.sign_header(fields, self.task_id, self.task)


def _own(producer: Producer) -> Producer:
    """Return a producer of this call alone, in place of one that other threads may use at the same time."""
    own = producer.__class__.__new__(producer.__class__)
    vars(own).update(vars(producer))
    return own


def _leads_to_a_queue(sent: dict[str, Any]) -> bool:
    """Whether a worker may get this message back from where it goes: not from a fanout exchange."""
    exchange = sent["exchange"]
    named = [getattr(entity, "exchange", None) for entity in sent["declare"] or ()]
    return not exchange or exchange in [it.name for it in named if it and it.type != "fanout"]


def _marked(sent: dict[str, Any], header: dict[str, Any]) -> dict[str, Any]:
    return {**sent, "headers": {**sent["headers"], HEADER: header}}


def _stored(sent: dict[str, Any], header: Header) -> StoredMessage:
    """Make what a worker would make of this message when it is delivered."""
    body, headers = sent["body"], {**sent["headers"], HEADER: header.write()}
    if compression := headers.get("compression"):
        body = decompress(body, compression)
    properties = {**sent["properties"], "priority": sent["priority"]}
    return StoredMessage.made(
        body,
        sent["content_type"],
        sent["content_encoding"],
        headers,
        properties,
        sent["routing_key"],
        sent["exchange"] or "",
    )
