"""A Redis Cluster, by this store and by redis-py: `make bench ROWS=cluster` prints a table."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from statistics import median
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.retry import Retry

from bench.clock import one_processor, timed
from bench.ours import pair, renewals
from celery_exclusive.core.operations import Acquire, Release, Renew
from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.stores.base import open_store
from celery_exclusive.stores.redis.apply import APPLY, words_of
from celery_exclusive.stores.redis.cluster import ClusterStore, bucket_of
from celery_exclusive.stores.redis.store import Run
from tests.cluster import RedisCluster, slot_of
from tests.servers import wait_until

HEAD = "| | this store | `redis.cluster.RedisCluster` |\n|---|---|---|\n"
LEASES = 300
TIMEOUT = 2
"""Seconds for which either client waits for an answer."""
TTL = 60_000_000
HANGS = 10
"""Seconds after which a child that waits counts as one that waits for ever."""
KEYS = [f"key {number}" for number in range(LEASES)]


def run() -> None:
    with one_processor(), RedisCluster() as cluster:
        note = f"(`make bench ROWS=cluster`; redis-py {redis.__version__}, all nodes on one busy processor.)"
        figures = HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows(cluster)) + f"\n{note}\n"
    print(figures)


def rows(cluster: RedisCluster) -> Iterator[tuple[str, ...]]:
    store, theirs = ours_of(cluster), client_of(cluster)
    for what, calls in (
        ("acquire + release", (partial(pair, store), partial(pair_by, theirs, store))),
        (f"{LEASES} leases renewed", (renewals(store, LEASES), partial(send, theirs, renewals_of(store)))),
    ):
        times = timed(dict(zip(("ours", "theirs"), calls, strict=True)), calls=80)
        yield what, *(f"{median(rounds) / 1000:.1f} ms" for rounds in times.values())
    yield "a held lock, while its slot moves, is", *granted_while_moving(cluster)
    yield "leases on other nodes that are renewed beside a silent one", *renewed_beside_silent(cluster)
    yield "a child that is forked while a thread asks for the slots", *forked(cluster)
    yield "the user needs, besides scripts", r"`+cluster\|slots`", r"`+cluster\|slots +command`"


def ours_of(cluster: RedisCluster) -> ClusterStore:
    store = open_store(f"{cluster.url}?socket_timeout={TIMEOUT}")
    assert isinstance(store, ClusterStore)
    return store


def client_of(cluster: RedisCluster) -> Any:
    """Return the client of redis-py. It would try ten times more otherwise."""
    return redis.RedisCluster(
        startup_nodes=[ClusterNode("127.0.0.1", node.port) for node in cluster.nodes[:2]],
        retry=Retry(NoBackoff(), 0),
        require_full_coverage=False,
        socket_timeout=TIMEOUT,
    )


def pair_by(client: Any, store: ClusterStore) -> None:
    apply_by(client, store, "bench", Acquire("task/1", "token", TTL))
    apply_by(client, store, "bench", Release("task/1", "token"))


def apply_by(client: Any, store: ClusterStore, key: str, operation: Any) -> Any:
    bucket = store.buckets[bucket_of(key)]
    words = (1, bucket._base, *words_of(key, operation, "", bucket._settings))
    try:
        return client.evalsha(APPLY.name, *words)
    except redis.exceptions.NoScriptError:
        return client.eval(APPLY.text, *words)


def renewals_of(store: ClusterStore, keys: list[str] = KEYS) -> list[Run]:
    """Return the scripts that renew these leases, for each bucket."""
    leases: dict[int, list[Any]] = {}
    for key in keys:
        leases.setdefault(bucket_of(key), []).append((key, Renew("a", "token", 2 * TTL)))
    return [run for number, its in leases.items() for run in store.buckets[number].renewals(its)]


def send(client: Any, scripts: list[Run]) -> None:
    pipeline = client.pipeline()
    for script, base, *arguments in scripts:
        pipeline.execute_command("EVALSHA", script.name, 1, base, *arguments)
    pipeline.execute(raise_on_error=False)


def granted_while_moving(cluster: RedisCluster) -> Iterator[str]:
    """Hold a lock, and ask for it when the first name of its slot has moved."""
    for is_ours in (True, False):
        cluster.refresh()
        store, client = ours_of(cluster), client_of(cluster)
        store.apply("key", Acquire("a", "token", TTL))
        thief = Acquire("b", "token of b", TTL, message=None)
        to = cluster.others(slot_of("key"))[0]
        moving = cluster.moving(slot_of("key"), to)
        next(moving)
        granted: Any = ()
        with suppress(StoreUnavailable):
            granted = store.apply("key", thief) if is_ours else apply_by(client, store, "key", thief)
        yield "granted to a second task" if granted else f"refused after {TIMEOUT} s"
        cluster.ask(to, "FLUSHALL")  # a second lease there would stop the move
        list(moving)


def renewed_beside_silent(cluster: RedisCluster) -> Iterator[str]:
    """Renew leases on all nodes, one of which is silent, with no connection open yet."""
    for is_ours in (True, False):
        cluster.refresh()
        store, client = ours_of(cluster), client_of(cluster)
        for key in KEYS:
            store.apply(key, Acquire("a", "token", TTL))
        silent = cluster.primaries()[0]
        others = [key for key in KEYS if cluster.owner(slot_of(key)) is not silent]
        scripts = renewals_of(store)
        leases = [(key, Renew("a", "token", 2 * TTL)) for key in KEYS]
        store.close()
        client.disconnect_connection_pools()
        silent.pause()
        began = time.monotonic()
        with suppress(StoreUnavailable, redis.RedisError):
            store.renew(leases) if is_ours else send(client, scripts)
        took = time.monotonic() - began
        silent.resume()
        wait_until(cluster.is_whole, "a whole cluster", 30)
        lasting = [seen.holders[0].remaining > TTL for seen in store.inspect_all(others)]
        yield f"{sum(lasting)} of {len(lasting)}, in {took:.1f} s"


def forked(cluster: RedisCluster) -> Iterator[str]:
    """Fork while a thread waits for the answer of a silent cluster, and ask in the child."""
    for ask in (ours_of(cluster)._nodes.primaries, client_of(cluster).nodes_manager.initialize):
        for node in cluster.nodes:
            node.pause()
        thread = threading.Thread(target=quietly, args=[ask])
        thread.start()
        time.sleep(TIMEOUT / 4)  # it waits until TIMEOUT
        child = os.fork()
        if not child:
            signal.alarm(HANGS)
            quietly(ask)
            os._exit(0)
        for node in cluster.nodes:
            node.resume()
        _, status = os.waitpid(child, 0)
        thread.join()
        yield "waits for ever" if os.WIFSIGNALED(status) else "goes on"


def quietly(ask: Callable[[], object]) -> None:
    with suppress(StoreUnavailable, redis.RedisError):
        ask()
