"""Servers that cannot be a store: each says what it is, and what to do, in one line without secrets."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
import redis

from celery_exclusive.core.operations import Acquire
from celery_exclusive.core.records import SECOND
from celery_exclusive.errors import OptionError, StoreUnavailable
from celery_exclusive.stores.base import open_store
from tests.servers import RedisServer, wait_until
from tests.worker.journal import eventually

StartRedis = Callable[..., RedisServer]
CLUSTER = "it is a Redis Cluster: name it redis+cluster:// in exclusive_store, rediss+cluster:// with TLS"
SLOT = 13907
"""In which a Redis Cluster keeps all our keys."""


def refusal(url: str) -> str:
    """What a call of this store says: one line without password."""
    with closing(open_store(url)) as store, pytest.raises(StoreUnavailable) as refused:
        store.apply("secret key", Acquire("a", "token", 30 * SECOND))
    text = str(refused.value)
    assert text.isprintable()
    assert "hunter" not in "".join(traceback.format_exception(refused.value))
    assert text.startswith(f"store {store.url}")
    return text


def with_login(server: RedisServer, login: str) -> str:
    return server.url.replace("//", f"//{login}@")


@pytest.mark.promise(
    "A command that a server does not know, which it repeats with its password or keys, is left out of "
    "errors and tracebacks",
    name="repeated commands",
    broke="the server's text as it is",
)
def test_a_server_without_the_command_for_passwords_does_not_make_us_tell_ours(
    start_redis: StartRedis,
) -> None:
    server = start_redis(**{"rename-command AUTH": "LOGIN"})
    assert "unknown command 'AUTH'; " in refusal(with_login(server, ":hunter2"))


@pytest.mark.proves("repeated commands")
def test_a_server_without_scripts_does_not_make_us_tell_keys(start_redis: StartRedis) -> None:
    text = refusal(start_redis(**{"rename-command EVALSHA": "DO"}).url)
    assert "unknown command 'EVALSHA'; " in text
    assert "secret key" not in text


@pytest.mark.proves("store that cannot be one")
@pytest.mark.parametrize("login", [":hunter2", "me:hunter2"])
def test_a_wrong_password_is_to_be_corrected(redis_server: RedisServer, redis_url: str, login: str) -> None:
    assert refusal(with_login(redis_server, login)).endswith("; correct user and password in its URL")


@pytest.mark.proves("store that cannot be one")
def test_a_database_that_is_not_there_is_to_be_corrected(redis_url: str) -> None:
    text = refusal(redis_url.removesuffix("0") + "99")
    assert text.endswith(
        "DB index is out of range; name a database that the server has, 0 in a Redis Cluster"
    )


@pytest.mark.promise(
    "A Redis or memcached with too many clients says so, and which option allows more",
    name="too many clients",
    broke='red before: "check that it runs", and "must be memcached 1.6.10 or newer"',
)
def test_a_server_with_too_many_clients_is_to_allow_more(start_redis: StartRedis) -> None:
    server = start_redis()
    with server.client() as redis:
        redis.config_set("maxclients", 1)
        # The server closes the connection, perhaps before its words are read.
        wait_until(
            lambda: "reached; it serves as many as its maxclients" in refusal(server.url), "the hint", 30
        )
        redis.config_set("maxclients", 100)


@pytest.mark.promise(
    "A Redis that is busy with a script says how that is ended",
    broke='red before: "read its log"',
)
def test_a_server_that_is_busy_with_a_script_is_to_end_it(start_redis: StartRedis) -> None:
    server = start_redis(**{"lua-time-limit": "1"})
    with server.client() as runs, server.client() as ends, ThreadPoolExecutor(1) as pool:
        script = pool.submit(runs.eval, "while true do end", 0)
        try:
            wait_until(lambda: _is_busy(ends), "a busy server", 30)
            assert "NOSAVE; SCRIPT KILL ends a script that runs on and on" in refusal(server.url)
        finally:
            ends.script_kill()
        with pytest.raises(redis.ResponseError, match="SCRIPT KILL"):
            script.result()


@pytest.mark.proves("store that cannot be one")
def test_a_host_that_cannot_be_one_is_to_be_corrected() -> None:
    assert "check that it runs and that its URL is right" in refusal("redis://:hunter2@a..b/0")


@pytest.fixture
def cluster(start_redis: StartRedis) -> Iterator[tuple[RedisServer, RedisServer]]:
    """Two nodes; the second one has the slot of our keys."""
    nodes = tuple(start_redis(**{"cluster-enabled": "yes"}) for _ in range(2))
    first, second = (node.client() for node in nodes)
    with first, second:
        first.execute_command("CLUSTER", "ADDSLOTS", *range(SLOT))
        second.execute_command("CLUSTER", "ADDSLOTS", *range(SLOT, 16384))
        first.execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[1].port)
        eventually(lambda: all(map(_is_complete, (first, second))), "a complete cluster")
        yield nodes[0], nodes[1]


def _is_busy(client: redis.Redis) -> bool:
    try:
        client.ping()
    except redis.ResponseError as error:
        return "BUSY" in str(error)
    return False


def _is_complete(node: redis.Redis) -> bool:
    return b"cluster_state:ok" in node.execute_command("CLUSTER", "INFO")


@pytest.mark.proves("store that cannot be one")
def test_a_node_of_a_cluster_is_refused_at_the_start_and_by_each_call(
    cluster: tuple[RedisServer, RedisServer],
) -> None:
    for node in cluster:
        with closing(open_store(node.url)) as store, pytest.raises(OptionError) as refused:
            store.check()
        assert str(refused.value) == f"store {store.url}: {CLUSTER}"
    assert refusal(cluster[0].url).endswith(f"MOVED {SLOT} 127.0.0.1:{cluster[1].port}; {CLUSTER}")


@pytest.mark.proves("store that cannot be one")
def test_a_node_of_a_cluster_without_slots_is_refused(start_redis: StartRedis) -> None:
    assert refusal(start_redis(**{"cluster-enabled": "yes"}).url).endswith(
        f"CLUSTERDOWN Hash slot not served; {CLUSTER}"
    )
