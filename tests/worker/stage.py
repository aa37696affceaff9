"""The stages on which endings are tried: a pool, a broker, a way to acknowledge; the leases are on Redis."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import redis

from tests.rabbit import RabbitServer
from tests.worker import timetable
from tests.worker.lab import Lab, Worker, eventually

POOLS_OF_ONE_PROCESS = ("threads", "gevent", "solo")
RABBITS = tuple(pytest.mark.xdist_group(f"rabbitmq-{number}") for number in (1, 2))
"""The tests with RabbitMQ run in two processes, each with a server of its own."""
LEFT = ("l:", "q:", "a:", "b:", "o:", "m:")
"""How the names of all begin that the store may keep of a key while somebody holds it or waits."""


@dataclass(frozen=True)
class Stage:
    """One of them.

    lab = stage.make_lab(exclusive_ttl=60)
    stage.start_worker(lab)
    ...
    stage.note("child-killed", killed_at, next_start["at"])
    stage.assert_nothing_is_left(lab)
    """

    pool: str
    broker: str
    late: bool
    _request: pytest.FixtureRequest

    def make_lab(self, module: str = "tests.worker.shop_endings", **conf: Any) -> Lab:
        """Make a lab on this stage's broker; `queue_arguments` are those of RabbitMQ's queues."""
        acks = {"task_acks_late": self.late, "task_reject_on_worker_lost": self.late}
        arguments = conf.pop("queue_arguments", {})
        if self.broker == "redis":
            make: Callable[..., Lab] = self._request.getfixturevalue("make_lab")
            return make(module=module, **{**acks, **conf})
        make = self._request.getfixturevalue("make_rabbit_lab")
        return make(arguments, module=module, **{**acks, **conf})

    def start_worker(self, lab: Lab, name: str = "w1", slots: int = 2, **more: Any) -> Worker:
        """Start a worker with this stage's pool; a solo one has one slot."""
        return lab.start_worker(name, 1 if self.pool == "solo" else slots, pool=self.pool, **more)

    def note(self, row: str, since: int, until: int) -> None:
        """Put into the time table how long a key was not usable: two instants of the journal's clock."""
        timetable.note(row, self.pool, self.broker, self.late, (until - since) / 1e9)

    def messages_at_the_broker(self, lab: Lab, queue: str = "lab") -> int:
        """Those in the queue, and those delivered and not yet acknowledged."""
        if self.broker == "redis":
            return int(lab.doors.llen(queue)) + int(lab.doors.hlen("unacked"))
        server: RabbitServer = self._request.getfixturevalue("rabbit_server")
        return server.messages(lab.conf["broker_url"], queue)

    def assert_nothing_is_left(self, lab: Lab, store: redis.Redis | None = None) -> None:
        """No message at the broker; no holder and no line in the store, maybe one of the test's own."""
        kept = store or lab.doors
        eventually(lambda: self.messages_at_the_broker(lab) == 0, "an empty broker")

        def left() -> list[bytes]:
            names = [f"cx2:{{0}}:{kind}*" for kind in LEFT] + ["cx2:{0}:due"]
            return [key for name in names for key in kept.scan_iter(name)]

        with suppress(AssertionError):
            eventually(lambda: not left(), "a store without holders and lines")
        assert left() == []


def _params(
    pools: tuple[str, ...],
    brokers: tuple[str, ...],
    lates: tuple[bool, ...],
    late_only: tuple[str, ...],
    early_is_large: bool,
) -> list[Any]:
    return [
        pytest.param(
            (pool, broker, late),
            id=f"{pool}-{broker}-{'late' if late else 'early'}",
            marks=[RABBITS[late]] * (broker == "rabbitmq")
            + [pytest.mark.large] * (early_is_large and not late),
        )
        for pool, broker, late in product(pools, brokers, lates)
        if late or broker not in late_only
    ]


def on_stages(
    *pools: str,
    brokers: tuple[str, ...] = ("redis", "rabbitmq"),
    lates: tuple[bool, ...] = (True, False),
    late_only: tuple[str, ...] = (),
    early_is_large: bool = False,
) -> pytest.MarkDecorator:
    """Try a test on these stages: `@on_stages("prefork")`, `@on_stages("threads", "gevent", lates=(True,))`.

    The test's argument is `stage`. With brokers of `late_only` it is not tried with early acknowledgement,
    and if `early_is_large`, `make test` leaves that to `make test-all`.
    """
    params = _params(pools, brokers, lates, late_only, early_is_large)
    return pytest.mark.parametrize("stage", params, indirect=True)
