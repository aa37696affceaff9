"""The stacks of the sweep: a broker with a store, and a way to acknowledge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.worker.crashes.lane import SHOP
from tests.worker.lab import Lab


@dataclass(frozen=True)
class Stack:
    """One of them: a Redis that is both, or RabbitMQ with PostgreSQL. Results and doors are on Redis."""

    broker: str
    is_late: bool

    def __str__(self) -> str:
        return f"{self.broker}-{'late' if self.is_late else 'early'}"

    def make_lab(self, request: pytest.FixtureRequest, prefix: str) -> Lab:
        """Make a lab with servers of its own, or with a name of its own on servers that others use, too."""
        server = request.getfixturevalue("start_redis")()
        make: Callable[..., Lab] = request.getfixturevalue("make_lab")
        return make(server.url, SHOP, **self._conf(request, prefix))

    def _conf(self, request: pytest.FixtureRequest, prefix: str) -> dict[str, Any]:
        conf = {
            "task_acks_late": self.is_late,
            "task_reject_on_worker_lost": self.is_late,
            "exclusive_ttl": 3,
            "exclusive_offer": 1,
            "exclusive_reap_period": 0.3,
            "exclusive_queued_ttl": 10,
            "exclusive_prefix": prefix,
            "broker_transport_options": {
                "visibility_timeout": 3600,
                "unacked_mutex_expire": 2,  # else nothing is redelivered for 300 s if a worker dies with it
                "unacked_restore_interval": 1,
                "unacked_restore_throttle": 1,
            },
        }
        if self.broker == "redis":
            return conf
        port, store = (request.getfixturevalue(name) for name in ("rabbit_port", "postgres_url"))
        return {
            **conf,
            # A process that stands still in a transaction keeps renewals of the key waiting for 3 s.
            "exclusive_ttl": 6,
            "broker_url": f"amqp://guest:guest@127.0.0.1:{port}//",
            "broker_transport_options": {},
            "exclusive_store": store,
        }


STACKS = {
    str(stack): stack
    for stack in (Stack(broker, is_late) for broker in ("redis", "rabbitmq") for is_late in (True, False))
}
"""All of them."""
