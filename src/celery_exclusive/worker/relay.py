"""The relay: hands messages whose turn has come on within a worker, without the broker."""

from __future__ import annotations

import pickle
import select
from collections.abc import Callable
from dataclasses import astuple, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from celery.bootsteps import RUN  # type: ignore[attr-defined]
from kombu.message import Message

from celery_exclusive import notices
from celery_exclusive.brokers import broker_urls, family
from celery_exclusive.core.operations import Applied
from celery_exclusive.messages.stored import StoredMessage
from celery_exclusive.seams.billiard_pool import listen_to_children, write_to_parent
from celery_exclusive.seams.celery_request import strategies_of
from celery_exclusive.seams.kombu_worker import priority_of_message, priority_steps, replace_queue
from celery_exclusive.stores.base import Reply, Wake
from celery_exclusive.worker.queues import SOURCE
from celery_exclusive.worker.slots import Slots

if TYPE_CHECKING:
    from celery_exclusive.services import Services

_STATE = "celery-exclusive"
"""The first field of a message to hand on, as a child writes it. Celery's own first fields are numbers."""
_HEADER = 4
"""The bytes that billiard writes before a message."""
_MOST = getattr(select, "PIPE_BUF", 512)
"""The most bytes that are written into a pipe at once, also if a signal comes meanwhile."""
_HIGHEST_PRIORITY = 255
"""The highest priority that a queue of RabbitMQ can have."""


class Relay:
    """Passes a message from the child that releases its key to the main process, which runs it next.

    The message goes through the pipe of the child's results, before the result of the run that has ended:
    when the result frees the slot, the message waits for a slot already. A message that the main process
    cannot run now is published. A message that is lost on the way is offered again by the store.
    """

    def __init__(self, services: Services, worker: Any) -> None:
        self.services, self.worker = services, worker
        self._taken: dict[str, Wake] = {}
        self._may_dead_letter = family(broker_urls(worker.app.conf, reading=True)[0]) == "amqp"

    def hand_on(self, reply: Reply) -> Reply:
        """Send the first message of a reply to the main process; return the others, to be published.

        One slot becomes free here; further messages are for any worker. Only the end of a run may call this,
        in the thread of the run, since no other code may write into the pipe.
        """
        if reply.wake and _send(reply.wake[0]):
            return replace(reply, wake=reply.wake[1:])
        return reply

    def listen(self, pool: Any) -> None:
        """Let the event loop of the main process receive messages of children, each time that it begins."""
        self._taken.clear()  # Celery has forgotten what had no slot yet
        replace_queue(self.worker.semaphore, Slots(line_of))
        listen_to_children(pool, _STATE, self.receive)

    def receive(self, *fields: Any) -> None:
        """Run the message that a child has sent, or publish it."""
        wake = Wake(*fields)
        try:
            is_delivered = self._deliver(wake)
        except Exception as error:  # noqa: BLE001 - whatever it is, the event loop goes on
            notices.trouble(f"the message of {wake.id} was not handed on, and is published", error)
            is_delivered = False
        if not is_delivered:
            self._publish(wake)

    def close(self) -> None:
        """Publish the handed-on messages that were not begun, or not ended. All bodies have ended."""
        self._publish(*map(self._redelivered, self._taken.values()))

    def _end(self, wake: Wake, *, requeue: bool = False) -> None:
        self._taken.pop(wake.id, None)
        if requeue:  # its run has left it in line
            self._publish(self._redelivered(wake))

    def _redelivered(self, wake: Wake) -> Wake:
        """Return the message as redelivered, with the marks that a broker's redelivery has."""
        signer = self.services.signer
        content = signer.open_parked(wake.message, wake.key, wake.id)
        assert content is not None  # noqa: S101 - it was genuine when it came
        again = StoredMessage.load(content).begun().dump()
        return replace(wake, message=signer.sign_parked(again, wake.key, wake.id))

    def _publish(self, *wakes: Wake) -> None:
        self.services.courier.follow_up(Reply(Applied(True), wakes), wait=0)

    def _deliver(self, wake: Wake) -> bool:
        """Deliver a message as if it came from its queue."""
        signer = self.services.signer
        content = signer.open_parked(wake.message, wake.key, wake.id)
        if content is None:  # it is forged
            return False
        stored = StoredMessage.load(content).promoted(wake).signed(signer)
        if not self._can_run(stored):
            return False
        tasks = self.worker.consumer.task_consumer
        self._taken[wake.id] = wake
        tasks.on_message(handed_on(stored, tasks.accept, wake.waiting, partial(self._end, wake)))
        return True

    def _can_run(self, stored: StoredMessage) -> bool:
        """Whether this worker consumes the queue of this message, knows its task, and does not stop.

        RabbitMQ must have a message to dead-letter it if it is rejected. A broker with messages of a higher
        priority must have it, too, since only the broker knows the next one.
        """
        consumer = self.worker.consumer
        if consumer.blueprint.state != RUN or not consumer.connection or stored.exchange:
            return False
        name, tasks = stored.headers.get("task"), consumer.task_consumer  # protocol 1 has it in the body
        if name not in strategies_of(consumer) or not tasks.consuming_from(stored.routing_key):
            return False
        if not has_highest_priority(stored, tasks):
            return False
        return not (self._may_dead_letter and self.worker.app.tasks[name].acks_late)


def _send(wake: Wake) -> bool:
    """Write a message into the pipe of this child's results. False: it is too long for one write."""
    words = pickle.dumps((_STATE, astuple(wake)))
    if len(words) + _HEADER > _MOST:
        return False
    write_to_parent(words)
    return True


def handed_on(stored: StoredMessage, accept: Any, line: int, at_end: Callable[..., object]) -> Message:
    """Make the message that Celery gets in place of a delivery, with the accepted types of its consumer.

    `line`: how many wait for its key. `at_end` is called for an acknowledgement, with `requeue` for a
    rejection.
    """
    queue = stored.routing_key
    source = {
        "queue": queue,
        "auto_delete": False,
        "is_delayed": False,
        "is_fanout": False,
        "can_be_parked": True,
    }
    fields: dict[str, Any] = {
        "body": stored.body,
        "content_type": stored.content_type,
        "content_encoding": stored.content_encoding,
        "delivery_info": {"exchange": "", "routing_key": queue, SOURCE: source},
        "properties": dict(stored.properties),
        "accept": accept,
        "channel": NoChannel(line, at_end),
    }
    message = Message(**fields)
    message.headers = dict(stored.headers)  # after that: they may say that the body is compressed, as it was
    return message


def line_of(message: Message) -> int | None:
    """Return the length of the line when the message was handed on. None: a broker has delivered it."""
    return message.channel.line if isinstance(message.channel, NoChannel) else None


class NoChannel:
    """The channel of a message that was handed on: there is nothing to acknowledge.

    The store has it until its run begins, or with late acknowledgement is done, and offers it again.
    """

    no_ack_consumers = None

    def __init__(self, line: int, at_end: Callable[..., object]) -> None:
        self.line = line
        self._at_end = at_end

    def basic_ack(self, *_: object, **__: object) -> None:
        self._at_end()

    def basic_reject(self, *_: object, requeue: bool) -> None:
        self._at_end(requeue=requeue)


def has_highest_priority(stored: StoredMessage, consumer: Any) -> bool:
    """Whether no message of the broker can go before this one because of its priority.

    On Redis kombu has a list for each step of priorities, and consumes the lists of the first step first, in
    all queues. RabbitMQ compares the messages of one queue, if that was declared with priorities.
    """
    channel = consumer.channel
    if steps := priority_steps(channel):
        priority = priority_of_message(channel)({"properties": stored.properties})
        return bool(channel.priority(priority) == steps[0])
    queue = next(queue for queue in consumer.queues if queue.name == stored.routing_key)
    declared = queue.max_priority or (queue.queue_arguments or {}).get("x-max-priority", 0)
    highest = _HIGHEST_PRIORITY if queue.no_declare else declared
    return bool(stored.properties.get("priority", 0) >= highest)
