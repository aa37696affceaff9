"""Republishes stored messages unchanged."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from kombu import pools
from kombu.exceptions import OperationalError

from celery_exclusive import notices
from celery_exclusive.brokers import broker_urls, family
from celery_exclusive.core.claim import task_id
from celery_exclusive.messages.delay import route_of
from celery_exclusive.messages.header import HEADER, Header
from celery_exclusive.messages.stored import StoredMessage
from celery_exclusive.options.amounts import seconds_until
from celery_exclusive.seams.kombu_message import capturing, push_to_head
from celery_exclusive.stores.base import Wake

_CONFIRM = 30
"""Seconds within which RabbitMQ has to confirm a message."""
_NO_ROUTE = 312
"""The reply code with which RabbitMQ returns a message that reaches no queue."""


class Republisher:
    """Publishes stored messages unchanged: in a child with producers of the app's pool.

    A thread has a connection of its own: a lock of the pool that it held at a fork would be held for ever.
    """

    def __init__(self, app: Any, *, own_connection: bool = False) -> None:
        self.app = app
        self._own_connection = own_connection
        self._producer: Any = None

    def publish_wakes(self, wakes: Iterable[Wake]) -> list[tuple[Wake, Header]]:
        """Republish messages whose turn has come; one that cannot be published is offered again later.

        Returns those whose queue was deleted when its worker ended, so that none can consume them.
        """
        lost: list[tuple[Wake, Header]] = []
        for wake in wakes:
            header: Header | None = None
            try:
                stored = StoredMessage.load(wake.message).promoted(wake)
                header = Header.of(stored.our_header)
                self.publish(stored, at_head=True)
            except Exception as error:  # noqa: BLE001 - whatever it is, the offer expires
                if header and header.auto_delete and getattr(error, "reply_code", 0) == _NO_ROUTE:
                    lost.append((wake, header))
                    continue
                what = f"the message of task {task_id(wake.id)} for lock {wake.key}"
                notices.trouble(f"{what} was not republished and will be offered again", error)
                if isinstance(error, (OperationalError, OSError)):  # the others would fail likewise
                    break
        return lost

    def publish(self, stored: StoredMessage, *, at_head: bool = False, delay: float = 0) -> None:
        """Publish a message; its broker has confirmed it then, if it can. `at_head`: of its priority's list.

        `delay`: the seconds for which its broker delays it, if it goes to its queue by no exchange.
        """
        services = self.app._celery_exclusive
        stored = stored.signed(services.signer)
        with self._acquire_producer() as producer:
            at_head = at_head and services.is_fast and _has_lists(producer, stored.exchange)
            send = producer.connection.ensure(producer, _send, **self.app.conf.task_publish_retry_policy)
            try:
                send(producer, stored, at_head, delay)
            except Exception as error:
                if producer.connection.transport.driver_type != "sqs" or not hasattr(error, "response"):
                    raise
                # Our header may have grown over the limit of SQS.
                send(producer, stored.compressed(), at_head, delay)

    def close(self) -> None:
        if self._producer:
            self._producer.connection.release()
            self._producer = None

    def _acquire_producer(self) -> AbstractContextManager[Any]:
        """Return a producer whose messages RabbitMQ confirms, also against the user's setting.

        An acknowledged message must not be only in the buffer of a socket.
        """
        if self._producer:
            return nullcontext(self._producer)
        is_amqp = family(broker_urls(self.app.conf)[0]) == "amqp"
        if is_amqp or self._own_connection:
            connection = self.app.connection_for_write()
            if is_amqp:
                connection.transport_options["confirm_publish"] = True
            if self._own_connection:
                self._producer = self.app.amqp.Producer(connection, auto_declare=False)
                return nullcontext(self._producer)
            pool = pools.producers[connection]
        else:
            pool = self.app.amqp.producer_pool
        pooled: AbstractContextManager[Any] = pool.acquire(block=True)
        return pooled


def _send(
    producer: Any,
    stored: StoredMessage,
    at_head: bool,  # noqa: FBT001 - kombu passes it on
    delay: float,
) -> None:
    returned: list[Exception] = []

    def note(error: Exception, *_: Any) -> None:
        returned.append(error)

    options: dict[str, Any] = {}
    if producer.connection.transport.driver_type == "amqp":
        producer.channel.events["basic_return"] = {note}
        options = {"mandatory": True, "timeout": _CONFIRM}
    exchange, routing_key = stored.exchange, stored.routing_key
    if delay and not exchange:  # else the key names no queue: its worker keeps it until its eta
        exchange, routing_key = route_of(routing_key, delay)
    if at_head:
        producer = capturing(producer, HEADER, push_to_head)
    producer.publish(
        stored.body,
        exchange=exchange,
        routing_key=routing_key,
        content_type=stored.content_type,
        content_encoding=stored.content_encoding,
        headers={name: value for name, value in stored.headers.items() if name != "compression"},
        compression=stored.headers.get("compression"),
        expiration=_time_left(stored),
        **{"priority": None, **stored.properties, **options},
    )
    if returned:  # an exchange without a queue: the message would have been dropped
        raise returned[0]


def _has_lists(producer: Any, exchange: str) -> bool:
    """Whether an exchange leads to queues that are lists on Redis."""
    if producer.connection.transport.driver_type != "redis":
        return False
    return not exchange or producer.channel.typeof(exchange).type != "fanout"


def _time_left(stored: StoredMessage) -> float | None:
    """Return the seconds until a message expires. None: it has, and a worker reports it as REVOKED.

    No broker may drop the copy of an offer: after its expiry a worker ends it.
    """
    expires = stored.headers.get("expires")
    if not expires or stored.our_header.get("promoted"):
        return None
    seconds = seconds_until(expires)
    return seconds if seconds > 0 else None
