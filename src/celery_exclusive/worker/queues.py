"""The queue that a message was consumed from, which no message names.

One publish reaches several queues by a fanout, topic or direct exchange. Its copies have the same task id and
the same headers: each is a task of its own only by its queue.
"""

from __future__ import annotations

from typing import Any

from celery_exclusive.messages.kept_client import keep_client

SOURCE = "exclusive_source"
"""The key in the delivery info of a message under which its queue stands."""


def note_queues(app: Any) -> None:
    """Let the worker of this app note on each task message the queue that it was consumed from."""
    base = app.amqp.Consumer
    if not issubclass(base, _NotingConsumer):
        names = {"__module__": __name__, "keeps_client": "kept client" in app._celery_exclusive.fast}
        app.amqp.Consumer = type(base.__name__, (_NotingConsumer, base), names)


def source(message: Any) -> dict[str, Any]:
    """Return what the worker has noted; nothing if a consumer of the user's own received the message."""
    noted = message.delivery_info.get(SOURCE)
    return noted if isinstance(noted, dict) else {}


class _NotingConsumer:
    """Stands before kombu's consumer."""

    def _basic_consume(self: Any, queue: Any, *args: Any, **kwargs: Any) -> Any:
        """Consume from a queue by a callback of its own: kombu looks its method up when it begins."""
        receive, channel = self._receive_callback, self.channel
        if self.keeps_client:
            keep_client(channel)
        exchanges = [queue.exchange, *(binding.exchange for binding in queue.bindings or ())]
        fanouts = {known.name for known in exchanges if known and known.type == "fanout"}
        noted = {
            "queue": queue.name,
            "auto_delete": bool(queue.auto_delete or queue.exclusive or queue.expires),
        }

        def note_and_receive(message: Any) -> Any:
            info = message.delivery_info
            info[SOURCE] = {
                **noted,
                "is_fanout": info.get("exchange") in fanouts,
                # Redis has no list for a queue of a fanout exchange: it gets what is published now, no more.
                "can_be_parked": queue.name not in getattr(channel, "active_fanout_queues", ()),
            }
            return receive(message)

        self._receive_callback = note_and_receive
        try:
            return super()._basic_consume(queue, *args, **kwargs)  # type: ignore[misc]
        finally:
            del self._receive_callback
