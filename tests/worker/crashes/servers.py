"""The broker and the store of a lane, as the test sees them: what is in them, what is redelivered."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tests.servers import wait_until
from tests.worker.crashes.seam import ids_in
from tests.worker.lab import Lab

Lease = tuple[str, str, int]
"""A lease: its key, the id of its claim, and its fence."""
_LONGEST = 60


class Servers:
    """Both of them, which may be one Redis. Results are on a Redis in any case."""

    def __init__(self, lab: Lab) -> None:
        self._app, self._redis = lab.app, lab.doors
        self._connection = lab.app.connection_for_read()
        self.are_one = str(lab.conf["broker_url"]).startswith("redis")

    @property
    def _store(self) -> Any:
        return self._app._celery_exclusive.store  # type: ignore[attr-defined]

    # The store

    def in_line(self) -> set[str]:
        """Return the ids of all tasks that wait."""
        return {id.partition("/")[0] for _, id in self._store.places()}

    def leases(self, keys: Iterable[str] | None = None) -> Iterator[tuple[Lease, int]]:
        """Yield the leases of these keys, or of all, and what remains of them, in microseconds."""
        for key in self._store.scan() if keys is None else keys:
            for owner in self._store.inspect(key).holders:
                yield (key, owner.id, owner.fence), owner.remaining

    # The broker

    def ids_of(self, queues: Sequence[str]) -> set[str]:
        """Return the ids of the tasks whose messages a dead consumer of these queues has left."""
        if not self.are_one:
            return {id for queue in queues for id in self._ids_in(queue)}
        waiting = [message for queue in queues for message in self._redis.lrange(queue, 0, -1)]
        return {id for it in (*waiting, *self.unacknowledged(queues).values()) for id in ids_in(it)}

    def _ids_in(self, queue: str) -> list[str]:
        """Return the ids in a queue of RabbitMQ, once it knows that its consumer is gone."""
        with self._connection.channel() as channel:  # which gives all messages back when it closes
            consumers = lambda: channel.queue_declare(queue, passive=True).consumer_count  # noqa: E731
            wait_until(lambda: not consumers(), "the end of a consumer", _LONGEST)
            return [message.headers["id"] for message in iter(lambda: channel.basic_get(queue), None)]

    def unacknowledged(self, queues: Sequence[str]) -> dict[bytes, bytes]:
        """Return the messages of a Redis broker that were fetched from these queues, by their tags."""
        fetched = self._redis.hgetall("unacked").items()
        return {tag: message for tag, message in fetched if set(queues) & set(json.loads(message)[1:])}

    def redeliver(self, tags: Iterable[bytes]) -> None:
        """Let the visibility timeout of these messages be over."""
        for tag in tags:
            self._redis.zadd("unacked_index", {tag: 1}, xx=True)

    # Both

    def left(self, queues: Iterable[str]) -> list[str]:
        """Return what is left at the broker, and which keys are held or waited for in the store."""
        counts = {"unacknowledged": int(self._redis.hlen("unacked"))}
        counts |= {f"in {queue}": self._ready(queue) for queue in queues}
        states = {key: self._store.inspect(key) for key in self._store.scan()}
        return [
            *(f"{count} {where}" for where, count in counts.items() if count),
            *(f"{key} is {state.state}" for key, state in states.items() if state.is_busy),
        ]

    def _ready(self, queue: str) -> int:
        """Return the number of messages that wait in a queue."""
        if self.are_one:
            return int(self._redis.llen(queue))
        return int(self._connection.default_channel.queue_declare(queue, passive=True).message_count)

    def close(self) -> None:
        self._connection.release()
