"""What a worker says when it starts and goes on all the same."""

from __future__ import annotations

from collections.abc import Callable

from tests.servers import RedisServer
from tests.worker.lab import Lab


def test_a_worker_warns_of_a_store_that_would_forget_its_lines(
    make_lab: Callable[..., Lab], start_redis: Callable[..., RedisServer]
) -> None:
    store = start_redis()
    line = make_lab(exclusive_store=store.url).start_worker("w1", 1).wait_for_log("set appendonly to yes")
    assert ": WARNING/" in line
    assert store.url in line


def test_a_worker_does_not_warn_of_a_store_that_keeps_its_lines(
    make_lab: Callable[..., Lab], start_redis: Callable[..., RedisServer]
) -> None:
    worker = make_lab(exclusive_store=start_redis(appendonly=True).url).start_worker("w1", 1)
    assert "appendonly" not in worker.log
