"""The option `replicas` of a store URL: so many replicas must have a lease before it counts as granted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from celery_exclusive.stores.redis.client import Connection, round_trip
from celery_exclusive.stores.redis.packer import Command
from celery_exclusive.system.deadline import at_most

from redis import exceptions  # isort: skip - `client` has said what is missing

CONFIRMED: Final = frozenset(("acquire", "acquire_alone", "enqueue", "restore"))
"""The verbs after which a body begins or continues, or a message is acknowledged."""


class Unconfirmed(exceptions.RedisError):
    """The server has executed the request, but too few replicas have confirmed it."""


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Does a round trip, and raises unless enough `replicas` confirm its writes in half of the `timeout`."""

    replicas: int
    timeout: float

    def __call__(self, connection: Connection, command: Command) -> Any:
        answer = round_trip(connection, command)
        limit = max(round(at_most(self.timeout) / 2 * 1000), 1)
        confirmed = round_trip(connection, ("WAIT", self.replicas, limit))
        if confirmed < self.replicas:
            raise Unconfirmed(f"{confirmed} of {self.replicas} replicas confirmed it within {limit} ms")
        return answer
