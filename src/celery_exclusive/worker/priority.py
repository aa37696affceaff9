"""The priority of a message at the broker that a worker consumes from."""

from __future__ import annotations

from typing import Any

from celery_exclusive.messages.stored import StoredMessage
from celery_exclusive.seams.kombu_worker import priority_of_message, priority_steps

_HIGHEST = 255
"""The highest priority that a queue of RabbitMQ can have."""


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
    highest = _HIGHEST if queue.no_declare else declared
    return bool(stored.properties.get("priority", 0) >= highest)
