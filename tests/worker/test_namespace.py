"""A namespace belongs to one broker: a reaper of another would publish waiting tasks into the wrong one."""

from __future__ import annotations

from collections.abc import Callable

from tests.servers import RedisServer
from tests.worker.lab import Lab, eventually


def test_a_worker_of_another_broker_does_not_start_in_the_same_namespace(
    make_lab: Callable[..., Lab], redis_server: RedisServer, start_redis: Callable[..., RedisServer]
) -> None:
    store = redis_server.url
    make_lab(exclusive_store=store).start_worker("w1", 1)
    other = make_lab(url=start_redis().url, exclusive_store=store)
    stranger = other.start_worker("w2", 1, ready=False)
    eventually(lambda: stranger.process.poll() is not None, "the end of the stranger")
    assert stranger.process.returncode != 0
    for words in ("exclusive_prefix='cx'", f"redis://localhost:{redis_server.port}/0", "exclusive_broker_id"):
        assert words in stranger.log
    neighbour = other.start_worker("w3", 1, exclusive_prefix="other")
    assert neighbour.process.poll() is None
    alias = other.start_worker("w4", 1, exclusive_broker_id=f"redis://localhost:{redis_server.port}/0")
    assert alias.process.poll() is None


def test_a_namespace_without_workers_is_free_again(redis_url: str, redis_server: RedisServer) -> None:
    from celery_exclusive.stores.base import open_store

    store = open_store(redis_url)
    assert store.keep_namespace("one", 60_000_000) == "one"
    assert store.keep_namespace("two", 60_000_000) == "one"
    assert store.keep_namespace("one", 1_000) == "one"
    eventually(lambda: store.keep_namespace("two", 60_000_000) == "two", "a free namespace")
    with redis_server.client() as client:
        assert client.pttl("cx2:{0}:broker") > 0
    store.close()
