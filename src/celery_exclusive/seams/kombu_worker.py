"""The objects of kombu in a worker: its consumer, the channel, and the semaphore of free processes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from operator import attrgetter
from typing import Any, Final

Receive = Callable[[Any], Any]
priority_of_message: Final = attrgetter("_get_message_priority")
"""Return the method by which a channel of a virtual transport finds the priority of a message."""


class ConsumerMixin:
    """Stands before kombu's consumer, whose queues get callbacks of their own from a subclass."""

    receiver_of: Callable[[Any, Receive], Receive]
    """Return the callback for each message of a queue, which calls kombu's own `receive`."""

    def _basic_consume(self: Any, queue: Any, *args: Any, **kwargs: Any) -> Any:
        # kombu looks its method up when it begins to consume from the queue.
        self._receive_callback = self.receiver_of(queue, self._receive_callback)
        try:
            return super()._basic_consume(queue, *args, **kwargs)  # type: ignore[misc]
        finally:
            del self._receive_callback


def fanout_queues(channel: Any) -> Collection[str]:
    """Return the names of the queues without a list on Redis, as the channel adds and removes them."""
    names: Collection[str] = getattr(channel, "active_fanout_queues", ())
    return names


def priority_steps(channel: Any) -> Any:
    """Return the priorities that have lists of their own on Redis, the highest first; else None."""
    return getattr(channel, "priority_steps", None)


def replace_queue(semaphore: Any, queue: Any) -> None:
    """Let requests wait in another queue, which has `append`, `popleft` and `clear`. None may wait now."""
    semaphore._waiting = queue
    semaphore._add_waiter, semaphore._pop_waiter = queue.append, queue.popleft
