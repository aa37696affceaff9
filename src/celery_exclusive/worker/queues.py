"""The queue that a message was consumed from, which the message itself does not name.

One publish reaches several queues by a fanout, topic or direct exchange. Its copies have the same task id and
the same headers: each is a task of its own only by its queue.
"""

from __future__ import annotations

from typing import Any

from celery_exclusive.messages import delay
from celery_exclusive.seams.kombu_message import keep_client
from celery_exclusive.seams.kombu_worker import ConsumerMixin, Receive, fanout_queues

SOURCE = "exclusive_source"
"""The key in the delivery info of a message under which its queue stands."""


def note_queues(app: Any, *, keeps_client: bool) -> None:
    """Let the worker note on each message the queue it was consumed from. `keeps_client`: of its channel."""
    base = app.amqp.Consumer
    if not issubclass(base, _NotingConsumer):
        names = {"__module__": __name__, "app": app, "keeps_client": keeps_client}
        app.amqp.Consumer = type(base.__name__, (_NotingConsumer, base), names)


def source(message: Any) -> dict[str, Any]:
    """Return the worker's note of a message; empty if a consumer of the user received it."""
    noted = message.delivery_info.get(SOURCE)
    return noted if isinstance(noted, dict) else {}


class _NotingConsumer(ConsumerMixin):
    """Stands before kombu's consumer."""

    app: Any
    keeps_client = True

    def receiver_of(self: Any, queue: Any, receive: Receive) -> Receive:
        channel = self.channel
        if self.keeps_client:
            keep_client(channel)
        exchanges = [queue.exchange, *(binding.exchange for binding in queue.bindings or ())]
        fanouts = {known.name for known in exchanges if known and known.type == "fanout"}
        noted = {
            "queue": queue.name,
            "auto_delete": bool(queue.auto_delete or queue.exclusive or queue.expires),
        }
        noted["is_delayed"] = delay.bind(self.app, channel, queue.name)
        without_list = fanout_queues(channel)

        def note_and_receive(message: Any) -> Any:
            info = message.delivery_info
            if (delayed_for := delay.queue_of(info)) is not None:
                if delayed_for != queue.name:  # a queue that is bound by "#" gets what is delayed for others
                    channel.basic_ack(info["delivery_tag"])
                    return None
                info.update(exchange="", routing_key=queue.name)
            info[SOURCE] = {
                **noted,
                "is_fanout": info.get("exchange") in fanouts,
                # Redis has no list for a queue of a fanout exchange: it gets what is published now, no more.
                "can_be_parked": queue.name not in without_list,
            }
            return receive(message)

        return note_and_receive
