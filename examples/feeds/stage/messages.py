"""The messages that are left at the broker."""

from __future__ import annotations

import json
from typing import Any


class Messages:
    """The messages in the queue, and those that no worker has acknowledged."""

    def __init__(self, app: Any) -> None:
        self._connection = app.connection_for_read()
        self._channel = self._connection.default_channel
        self._queue: str = app.conf.task_default_queue

    def __str__(self) -> str:
        queued, unacknowledged = self._counts()
        return f"the broker has {queued} queued, {unacknowledged} unacknowledged"

    @property
    def is_none(self) -> bool:
        """Whether nothing is left that could still be delivered."""
        return self._counts() == (0, 0)

    def queued_ids(self) -> set[str]:
        """Return the ids of the tasks in the queue."""
        return {json.loads(raw)["headers"]["id"] for raw in self._channel.client.lrange(self._queue, 0, -1)}

    def unacknowledged_ids(self) -> set[str]:
        """Return the ids of the tasks whose messages workers have, and have not acknowledged."""
        kept = self._channel.client.hvals(self._channel.unacked_key)
        return {json.loads(raw)[0]["headers"]["id"] for raw in kept}

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def _counts(self) -> tuple[int, int]:
        return self._channel._size(self._queue), self._channel.client.hlen(self._channel.unacked_key)
