"""Keep a message, and publish it again as it was."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from kombu import pools
from kombu.exceptions import OperationalError
from kombu.utils.json import dumps, loads

from celery_exclusive import notices
from celery_exclusive.amounts import seconds_until
from celery_exclusive.brokers import broker_urls, family
from celery_exclusive.header import HEADER, Header
from celery_exclusive.signing import Signer
from celery_exclusive.stores.base import Wake

VERSION = 1
_PROPERTIES = ("correlation_id", "reply_to", "priority", "delivery_mode", "message_id", "type", "app_id")
_NOT_KEPT = ("redelivered", "x-delivery-count")
"""Headers with which brokers tell the past of one delivery."""
TOP = 255
"""A priority above all others: RabbitMQ takes it for a queue's highest, or ignores it where there is none."""
_CONFIRM = 30
"""Seconds within which RabbitMQ has to confirm a message."""
_NO_ROUTE = 312
"""The reply code with which RabbitMQ returns a message that reaches no queue."""


@dataclass(frozen=True, slots=True)
class Letter:
    """Everything that makes a message: body, headers, properties, and where it goes."""

    body: bytes = field(repr=False)
    content_type: str
    content_encoding: str
    headers: dict[str, Any]
    properties: dict[str, Any]
    exchange: str
    routing_key: str

    @classmethod
    def of(cls, message: Any, header: Header, queue: str | None = None) -> Letter:
        """Take it from a delivered kombu message, whose body is decompressed already.

        It gets this header of ours, so that all its copies are for one key and one id. With a `queue` it goes
        to that queue alone, and else the way that it came.
        """
        came = message.delivery_info
        body = message.body.encode() if isinstance(message.body, str) else bytes(message.body)
        headers = {name: value for name, value in message.headers.items() if name not in _NOT_KEPT}
        properties = {name: message.properties.get(name) for name in _PROPERTIES}
        return cls(
            body,
            message.content_type,
            message.content_encoding,
            {**headers, HEADER: header.write()},
            {name: value for name, value in properties.items() if value is not None},
            "" if queue else came.get("exchange") or "",
            queue or came.get("routing_key") or "",
        )

    def dump(self) -> bytes:
        """Write it as versioned JSON, the form in which it waits in a store."""
        try:
            body, coding = self.body.decode(), "text"
        except UnicodeDecodeError:
            body, coding = b64encode(self.body).decode(), "base64"
        return dumps({"v": VERSION, **asdict(self), "body": body, "coding": coding}).encode()

    @classmethod
    def load(cls, kept: bytes) -> Letter:
        fields = loads(kept)
        version = fields.pop("v")
        if version != VERSION:
            raise ValueError(f"a parked message has version {version}, this release reads {VERSION}")
        body = fields.pop("body")
        body = body.encode() if fields.pop("coding") == "text" else b64decode(body)
        return cls(body=body, **fields)

    def promoted(self, wake: Wake) -> Letter:
        """The copy that answers an offer."""
        header = {**self.headers[HEADER], "promoted": wake.epoch, "offered": wake.key}
        return replace(self, headers={**self.headers, HEADER: header})

    def on_top(self) -> Letter:
        """The copy that RabbitMQ delivers before others. Its own priority is in our header."""
        header = {**self.headers[HEADER], "prio": self.properties.get("priority")}
        return replace(
            self, headers={**self.headers, HEADER: header}, properties={**self.properties, "priority": TOP}
        )

    def signed(self, signer: Signer) -> Letter:
        """The copy that is sent. In the store, and until then, its header has no signature of its own."""
        task_id = self.headers.get("id") or self.properties.get("correlation_id")
        return replace(
            self, headers={**self.headers, HEADER: signer.sign_header(self.headers[HEADER], str(task_id))}
        )

    def headers_to_send(self) -> dict[str, Any]:
        return {name: value for name, value in self.headers.items() if name != "compression"}

    def delayed(self, seconds: float, **changes: Any) -> Letter:
        """The copy that comes again later, with these changes of our header.

        It has no valid epoch, so it counts as redelivered.
        """
        eta = datetime.now(timezone.utc) + timedelta(seconds=seconds)
        header = {**self.headers[HEADER], "promoted": "", **changes}
        return replace(self, headers={**self.headers, HEADER: header, "eta": eta.isoformat()})


class Post:
    """Publishes messages again as they were.

    A child takes producers from the app's pool. A thread has a connection of its own: a lock of the pool that
    it held while a child is forked would be held in that child for ever.
    """

    def __init__(self, app: Any, *, own_connection: bool = False) -> None:
        self.app = app
        self._own_connection = own_connection
        self._producer: Any = None

    def publish_wakes(self, wakes: Iterable[Wake]) -> list[tuple[Wake, Header]]:
        """Publish messages whose turn has come. Those that cannot be are offered again later.

        Returns those whose queue was deleted when its worker ended: nobody can take them any more.
        """
        lost: list[tuple[Wake, Header]] = []
        for wake in wakes:
            header: Header | None = None
            try:
                letter = Letter.load(wake.message).promoted(wake)
                header = Header.of(letter.headers[HEADER])
                self.publish(letter, at_head=True)
            except Exception as error:  # noqa: BLE001 - whatever it is, the offer runs out
                if header and header.auto_delete and getattr(error, "reply_code", 0) == _NO_ROUTE:
                    lost.append((wake, header))
                    continue
                what = f"the message of task {notices.task_id(wake.id)}, next at lock {wake.key}"
                notices.trouble(f"{what}, could not be published and will be again", error)
                if isinstance(error, (OperationalError, OSError)):  # the others would find the same
                    break
        return lost

    @property
    def counts_deliveries(self) -> bool:
        """Whether the broker drops what it gets back too often, as RabbitMQ's quorum queues do."""
        return self._is_amqp

    def publish(self, letter: Letter, *, at_head: bool = False) -> None:
        """Send a message unchanged; `at_head` to where it is consumed next, if the broker can do that.

        When this returns, the broker has the message, as far as it can tell.
        """
        with self._take_producer() as producer:
            send = _send
            if at_head and self._is_amqp:
                letter = letter.on_top()
            elif at_head and _has_lists(producer, letter.exchange):
                send = _push_to_head
            letter = letter.signed(self.app._celery_exclusive.signer)
            policy = self.app.conf.task_publish_retry_policy
            producer.connection.ensure(producer, send, **policy)(producer, letter)

    def close(self) -> None:
        if self._producer:
            self._producer.connection.release()
            self._producer = None

    def _take_producer(self) -> AbstractContextManager[Any]:
        if not self._own_connection:
            pool = pools.producers[self._connection()] if self._is_amqp else self.app.amqp.producer_pool
            pooled: AbstractContextManager[Any] = pool.acquire(block=True)
            return pooled
        if self._producer is None:
            self._producer = self.app.amqp.Producer(self._connection(), auto_declare=False)
        return nullcontext(self._producer)

    def _connection(self) -> Any:
        """One on which RabbitMQ confirms what it has got, whether or not the user asks for it.

        A message that was acknowledged must not be in a socket's buffer only.
        """
        connection = self.app.connection_for_write()
        if self._is_amqp:
            connection.transport_options["confirm_publish"] = True
        return connection

    @property
    def _is_amqp(self) -> bool:
        return family(broker_urls(self.app.conf)[0]) == "amqp"


def _send(producer: Any, letter: Letter) -> None:
    returned: list[Exception] = []

    def note(error: Exception, *_: Any) -> None:
        returned.append(error)

    options: dict[str, Any] = {}
    if producer.connection.transport.driver_type == "amqp":
        producer.channel.events["basic_return"] = {note}
        options = {"mandatory": True, "timeout": _CONFIRM}
    producer.publish(
        letter.body,
        exchange=letter.exchange,
        routing_key=letter.routing_key,
        content_type=letter.content_type,
        content_encoding=letter.content_encoding,
        headers=letter.headers_to_send(),
        compression=letter.headers.get("compression"),
        expiration=_time_left(letter.headers.get("expires")),
        **{"priority": None, **letter.properties, **options},
    )
    if returned:  # an exchange that leads to no queue: it would have been dropped
        raise returned[0]


def _has_lists(producer: Any, exchange: str) -> bool:
    """Whether an exchange leads to queues that are lists on Redis."""
    if producer.connection.transport.driver_type != "redis":
        return False
    return not exchange or producer.channel.typeof(exchange).type != "fanout"


def _push_to_head(producer: Any, letter: Letter) -> None:
    """kombu consumes a Redis list from its right end, and publishes to its left one."""
    channel, headers = producer.channel, letter.headers_to_send()
    body, content_type, content_encoding = producer._prepare(
        letter.body,
        None,
        letter.content_type,
        letter.content_encoding,
        letter.headers.get("compression"),
        headers,
    )
    properties = dict(letter.properties)
    message = channel.prepare_message(
        body, properties.get("priority"), content_type, content_encoding, headers, properties
    )
    channel._inplace_augment_message(message, letter.exchange, letter.routing_key)
    with channel.conn_or_acquire() as client:
        for queue in channel._lookup(letter.exchange, letter.routing_key):
            client.rpush(channel._q_for_pri(queue, 0), dumps(message))


def _time_left(expires: str | None) -> float | None:
    """Seconds until a message expires; none for one that is past, so that a worker can say REVOKED."""
    if not expires:
        return None
    seconds = seconds_until(expires)
    return seconds if seconds > 0 else None
