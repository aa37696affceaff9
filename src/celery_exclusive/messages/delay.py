"""The delay of a message in RabbitMQ itself, as Celery has it where there are quorum queues.

A worker with a quorum queue cannot raise its prefetch count: messages with an eta would leave it no room.
Celery's delayed calls come to their own exchange again. Ours go back to one queue alone, so that queue is
bound to the end of the delays by a key of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import ceil
from typing import Any

from celery_exclusive import notices

_OURS = "celery-exclusive"
"""The word before the name of the queue in the routing keys of our messages."""
_DELAYED = re.compile(rf"(?:[01]\.)+{_OURS}\.(.*)", re.DOTALL)


def bind(app: Any, channel: Any, queue: str) -> bool:
    """Bind a queue to the end of the delays. False: RabbitMQ delays no messages for it.

    Its consumer does so each time it begins: without a binding, as of a new queue, messages are lost.
    """
    try:
        from celery.utils.quorum_queues import detect_quorum_queues
        from kombu.transport.native_delayed_delivery import CELERY_DELAYED_DELIVERY_EXCHANGE as END
    except ImportError:  # before Celery 5.5, whose workers start on no quorum queue
        return False
    connection = channel.connection.client
    if not detect_quorum_queues(app, connection.transport.driver_type)[0]:
        return False
    try:
        with connection.channel() as own:  # which an error closes
            own.queue_bind(queue, END, f"#.{_OURS}.{queue}")
    except connection.channel_errors as error:
        notices.trouble(f"RabbitMQ delays no messages for queue {queue}: the worker keeps them", error)
        return False
    return True


def route_of(queue: str, seconds: float) -> tuple[str, str]:
    """Return the exchange and the routing key by which a message comes to a queue after so many seconds."""
    from kombu.transport.native_delayed_delivery import MAX_LEVEL, calculate_routing_key, level_name

    # A queue whose name ends another one must not match.
    return level_name(MAX_LEVEL), calculate_routing_key(ceil(seconds), f"{_OURS}.{queue}")


def queue_of(delivery_info: Mapping[str, Any]) -> str | None:
    """Return the queue for which a delivery was delayed. None: it does not come from such a delay."""
    found = _DELAYED.fullmatch(str(delivery_info.get("routing_key")))
    return found[1] if found else None
