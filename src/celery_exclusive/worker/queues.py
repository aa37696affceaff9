"""The queue that a message was consumed from, which no message names.

One publish reaches several queues by a fanout, topic or direct exchange. Its copies have the same task id and
the same headers: each is a task of its own only by its queue.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from celery_exclusive.messages.header import Header

SOURCE = "exclusive_source"
"""The key in the delivery info of a message under which its queue stands."""


def note_queues(app: Any) -> None:
    """Let the worker of this app note on each task message the queue that it was consumed from."""
    base = app.amqp.Consumer
    if not hasattr(base, "_note_source"):
        app.amqp.Consumer = type(base.__name__, (_NotingConsumer, base), {"__module__": __name__})


def source(message: Any) -> dict[str, Any]:
    """Return what the worker has noted; nothing if a consumer of the user's own received the message."""
    noted = message.delivery_info.get(SOURCE)
    return noted if isinstance(noted, dict) else {}


def routed(header: Header, message: Any) -> Header:
    """The header that names the queue of this copy, if its publish may have reached others too.

    The copy of an offer has the id under which its message is in line.
    """
    info, queue = message.delivery_info, source(message).get("queue")
    came = (info.get("exchange") or "", info.get("routing_key") or "")
    if header.route or header.promoted is not None or not queue or came == ("", queue):
        return header
    return replace(header, route=(queue, *came), auto_delete=source(message)["auto_delete"])


class _NotingConsumer:
    """Stands before kombu's consumer."""

    def _basic_consume(self: Any, queue: Any, *args: Any, **kwargs: Any) -> Any:
        """Consume from a queue by a callback of its own: kombu looks its method up when it begins."""
        receive = self._receive_callback

        def note_and_receive(message: Any) -> Any:
            self._note_source(queue, message)
            return receive(message)

        self._receive_callback = note_and_receive
        try:
            return super()._basic_consume(queue, *args, **kwargs)  # type: ignore[misc]
        finally:
            del self._receive_callback

    def _note_source(self: Any, queue: Any, message: Any) -> None:
        exchange = message.delivery_info.get("exchange")
        exchanges = [queue.exchange, *(binding.exchange for binding in queue.bindings or ())]
        message.delivery_info[SOURCE] = {
            "queue": queue.name,
            "auto_delete": bool(queue.auto_delete or queue.exclusive or queue.expires),
            "is_fanout": "fanout" in [known.type for known in exchanges if known and known.name == exchange],
            # Redis has no list for a queue of a fanout exchange: what is published now is all that it gets.
            "can_be_parked": queue.name not in getattr(self.channel, "active_fanout_queues", ()),
        }
