"""The connection of a Redis store: round trips, lost connections and servers, threads, forks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread
from typing import Any

import pytest
from redis import exceptions

from celery_exclusive.core.operations import (
    Acquire,
    AcquireAlone,
    Applied,
    Granted,
    Held,
    Parked,
    Release,
    Remove,
    Renew,
    Requeue,
)
from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.stores.base import Store, open_store
from celery_exclusive.stores.redis.client import Client
from celery_exclusive.stores.redis.store import RedisStore
from celery_exclusive.system.deadline import deadline
from tests.proxy import Proxy
from tests.servers import RedisServer
from tests.store.forks import fork_while_threads_call, in_a_fork
from tests.store.operations import LIFE, give, take
from tests.store.threads import threads_hold_a_key_one_at_a_time

StartRedis = Callable[..., RedisServer]


@pytest.fixture
def store(redis_url: str) -> Iterator[RedisStore]:
    opened = open_store(redis_url)
    assert isinstance(opened, RedisStore)
    yield opened
    opened.close()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """All round trips of all clients."""
    commands: list[tuple[object, ...]] = []
    original = Client._try

    def count(self: Client, connection: Any, command: tuple[object, ...], *more: Any) -> object:
        commands.append(command)
        return original(self, connection, command, *more)

    monkeypatch.setattr(Client, "_try", count)
    return commands


def lose_the_next_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server does what it was asked, but nobody hears its answer."""
    original = Client._try
    is_lost: list[bool] = []

    def lose(self: Client, connection: Any, *request: Any) -> object:
        answer = original(self, connection, *request)
        if not is_lost:
            is_lost.append(True)
            raise exceptions.ConnectionError("Connection closed by server.")
        return answer

    monkeypatch.setattr(Client, "_try", lose)


@pytest.mark.promise(
    "Acquire-or-park is one round trip to Redis, release is one",
    figure="counted: 1 each, also for renewing 500 leases",
)
def test_every_verb_is_one_round_trip(store: RedisStore, sent: list[tuple[object, ...]]) -> None:
    def trips(ask: Callable[[], object]) -> int:
        sent.clear()
        ask()
        return len(sent)

    store.apply("warm up", take("a"))
    store.renew([("warm up", Renew("a", "t", LIFE))])
    store.inspect("warm up")
    assert trips(lambda: store.apply("key", take("a"))) == 1
    assert trips(lambda: store.apply("key", take("b"))) == 1  # parked
    assert trips(lambda: store.apply("key", take("c", message=None))) == 1  # held
    assert trips(lambda: store.renew([("key", Renew("a", "token of a", LIFE))] * 500)) == 1
    assert trips(lambda: store.inspect("key")) == 1
    assert trips(lambda: store.apply("key", give("a"))) == 1  # wakes b
    assert trips(lambda: store.apply("key", Remove("b"))) == 1
    assert trips(store.reap) == 1
    late = replace(take("late"), acks_late=True, recovers=True)
    assert trips(lambda: store.apply("recovers", late)) == 1
    assert trips(lambda: store.apply("recovers", give("late"))) == 1


@pytest.mark.promise(
    "The Redis store goes on after NOSCRIPT and dropped connections, in forks and threads",
    name="scripts, connections, forks",
)
def test_a_server_that_forgot_the_scripts_gets_them_again(
    store: RedisStore, redis_server: RedisServer
) -> None:
    with redis_server.client() as redis:
        for id in ("a", "b"):
            redis.script_flush()
            store.apply("key", take(id))
        redis.script_flush()
        assert store.renew([("key", Renew("a", "token of a", LIFE))]) == [True]
        redis.script_flush()
        assert store.inspect("key").waiting == 1
        redis.script_flush()
        assert [wake.id for wake in store.apply("key", give("a")).wake] == ["b"]


def test_a_connection_that_was_dropped_while_idle_is_made_anew(
    store: RedisStore, redis_server: RedisServer
) -> None:
    first = store.apply("key", take("a")).answer
    with redis_server.client() as redis:
        redis.client_kill_filter(_type="normal", skipme=True)
    assert store.apply("key", take("a")).answer == first


@pytest.mark.proves("scripts, connections, forks")
def test_a_connection_that_drops_in_the_middle_is_made_anew(
    store: RedisStore, redis_server: RedisServer
) -> None:
    store.apply("warm up", take("a"))
    me = store._client.ask("CLIENT", "ID")
    with redis_server.client() as redis, ThreadPoolExecutor(1) as pool:
        redis.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
        try:
            answer = pool.submit(store.apply, "key", take("a"))
            wait_until(lambda: redis.info("clients")["blocked_clients"] == 1)
            redis.client_kill_filter(_id=str(me))
            wait_until(lambda: redis.info("clients")["blocked_clients"] == 1)
        finally:
            redis.execute_command("CLIENT", "UNPAUSE")
        assert isinstance(answer.result().answer, Granted)
        assert store._client.ask("CLIENT", "ID") != me


@pytest.mark.promise(
    "A Redis that has become a replica, and whose name leads to the new primary, is left at once, though "
    "it keeps connections open",
    broke="without it each call of the process failed with READONLY for ever",
)
def test_after_a_failover_the_store_is_where_its_name_leads_to(start_redis: StartRedis) -> None:
    primary, promoted = start_redis(), start_redis()
    with Proxy(primary.port) as name, primary.client() as redis:
        store = open_store(f"redis://127.0.0.1:{name.port}/0")
        store.apply("before", take("a"))
        name.lead_to(promoted.port)
        redis.replicaof("127.0.0.1", promoted.port)  # it closes no connection
        assert isinstance(store.apply("key", take("a")).answer, Granted)
        store.close()
    with promoted.client() as redis:
        assert redis.exists("cx2:{0}:l:key")


@pytest.mark.proves("repeated operations")
def test_a_grant_whose_reply_was_lost_is_the_same_grant(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_the_next_reply(monkeypatch)
    granted = store.apply("key", take("a")).answer
    assert granted == store.apply("key", take("a")).answer


@pytest.mark.proves("repeated operations")
def test_a_park_whose_reply_was_lost_is_one_entry(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.apply("key", take("a"))
    lose_the_next_reply(monkeypatch)
    parked = store.apply("key", take("b")).answer
    assert isinstance(parked, Parked)
    assert parked.position == store.inspect("key").waiting == 1


def test_a_promoted_copy_is_not_lost_if_its_lease_ended_before_the_lost_reply_was_asked_for_again(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.apply("key", take("a"))
    store.apply("key", take("b"))
    (wake,) = store.apply("key", give("a")).wake
    short = Acquire("b", "token of b", ttl=1, promoted=wake.epoch)
    lose_the_next_reply(monkeypatch)
    assert isinstance(store.apply("key", short).answer, Granted)


@pytest.mark.proves("repeated operations")
def test_a_release_whose_reply_was_lost_is_no_alarm(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.apply("key", take("a"))
    lose_the_next_reply(monkeypatch)
    assert store.apply("key", give("a")).answer == Applied(True)
    assert store.apply("key", give("a")).answer == Applied(False)


@pytest.mark.proves("refused release with a lost answer")
def test_a_release_that_was_refused_for_a_copy_is_refused_though_its_reply_was_lost(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.apply("key", take("a"))
    copy = Acquire("a", "token of its copy", LIFE, redelivered=True, message=b"message")
    assert isinstance(store.apply("key", copy).answer, Parked)
    lose_the_next_reply(monkeypatch)
    assert store.apply("key", Release("a", "token of a", "if_no_copy")).answer == Applied(False)
    assert store.inspect("key").holders


def test_a_requeue_that_let_a_copy_run_and_whose_reply_was_lost_is_no_alarm(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.apply("key", take("a"))
    copy = Acquire("a", "token of its copy", LIFE, redelivered=True, message=b"message")
    assert isinstance(store.apply("key", copy).answer, Parked)
    lose_the_next_reply(monkeypatch)
    requeue = Requeue("a", "token of a", LIFE)
    assert store.apply("key", requeue).answer == Applied(True)
    assert store.apply("key", requeue).answer == Applied(False)
    assert not store.inspect("key").holders


def test_a_server_that_does_not_run_is_reported_at_once() -> None:
    store = open_store("redis://user:secret@127.0.0.1:1/7")
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match=r"redis://user:\*\*@127\.0\.0\.1:1/7 .* its URL"):
        store.apply("key", take("a"))
    assert time.monotonic() - began < 2


@pytest.mark.proves("Redis drills")
def test_a_server_that_does_not_answer_is_given_up_in_time(start_redis: StartRedis) -> None:
    server = start_redis()
    store = open_store(f"{server.url}?socket_timeout=1")
    store.apply("key", take("a"))
    server.pause()
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match=r"ime(out|d out)"):
        store.apply("key", take("b"))
    with pytest.raises(StoreUnavailable, match=r"ime(out|d out)"):
        store.check()
    assert time.monotonic() - began < 30
    server.resume()
    assert isinstance(store.apply("key", take("a")).answer, Granted)
    store.close()


def test_a_restart_with_data_keeps_leases_line_and_epoch(start_redis: StartRedis) -> None:
    server = start_redis(appendonly=True, appendfsync="always")
    store = open_store(server.url)
    granted = store.apply("key", take("a")).answer
    for id in ("b", "c"):
        store.apply("key", take(id))
    epoch = offered_epoch(store)
    server.kill()
    with pytest.raises(StoreUnavailable):
        store.apply("key", take("a"))
    server.restart(keep_data=True)
    assert store.apply("key", take("a")).answer == granted
    (wake,) = store.apply("key", give("a")).wake
    assert (wake.id, wake.epoch) == ("b", epoch)
    store.close()


@pytest.mark.proves("fence grows")
def test_a_restart_without_data_is_another_epoch_and_fences_still_grow(start_redis: StartRedis) -> None:
    server = start_redis()
    store = open_store(server.url)
    before = store.apply("key", take("a")).answer
    epoch = offered_epoch(store)
    server.restart(keep_data=False)
    after = store.apply("key", take("b")).answer
    assert isinstance(before, Granted)
    assert isinstance(after, Granted)
    assert after.fence > before.fence
    assert offered_epoch(store) != epoch
    promoted = Acquire("c", "t", LIFE, promoted=epoch)
    assert isinstance(store.apply("key", promoted).answer, Held), "not an offer of this store"
    store.close()


@pytest.mark.proves("scripts, connections, forks")
def test_threads_share_a_store(store: RedisStore, redis_server: RedisServer) -> None:
    with redis_server.client() as redis:  # the server may not have noticed yet who is gone
        before = {client["id"] for client in redis.client_list()}
    threads_hold_a_key_one_at_a_time(store, 100)
    with redis_server.client() as redis:
        came = [client for client in redis.client_list() if client["id"] not in before]
    mine = [client for client in came if client["cmd"] == "evalsha"]
    assert 1 <= len(mine) <= 4


@pytest.mark.proves("scripts, connections, forks")
def test_a_forked_child_has_a_connection_of_its_own(store: RedisStore) -> None:
    granted = store.apply("key", take("a"))
    parent = store._client.ask("CLIENT", "ID")

    def child() -> bool:
        return store.apply("key", take("a")) == granted and store._client.ask("CLIENT", "ID") != parent

    assert in_a_fork(child)
    assert store._client.ask("CLIENT", "ID") == parent
    assert store.apply("key", give("a")).answer == Applied(True)


@pytest.mark.proves("scripts, connections, forks")
def test_a_child_may_be_forked_while_other_threads_call(store: RedisStore) -> None:
    fork_while_threads_call(store)


def alone(id: str) -> AcquireAlone:
    return AcquireAlone(id, f"token of {id}", LIFE)


@pytest.mark.promise(
    "A request that was begun has a connection of its own, which a forked child does not read, and is "
    "repeated like any other",
    name="request that was begun",
    broke="two readers of one answer",
)
def test_a_request_that_was_begun_has_a_connection_of_its_own_until_it_is_finished(store: RedisStore) -> None:
    store.apply("key", alone("a"))
    with ThreadPoolExecutor(1) as thread:
        thread.submit(store._client.ask, "PING").result()
        begun = store.begin("key", alone("b"))
        assert begun
        other = thread.submit(store.apply, "other", alone("b")).result()
    assert isinstance(other.answer, Granted)
    assert isinstance(store.finish("key", alone("b"), begun).answer, Held)
    assert {begun} < set(store._client._idle)


@pytest.mark.proves("request that was begun")
def test_a_forked_child_does_not_read_the_answer_to_its_parent(store: RedisStore) -> None:
    granted = store.apply("key", alone("a")).answer
    (connection,) = store._client._idle
    begun = store.begin("key", alone("a"))
    assert begun is connection
    assert in_a_fork(lambda: store.finish("key", alone("a"), begun).answer == granted)
    assert store.finish("key", alone("a"), begun).answer == granted
    assert list(store._client._idle) == [connection]


@pytest.mark.proves("request that was begun")
def test_a_request_that_was_begun_is_repeated_like_any_other(
    store: RedisStore, redis_server: RedisServer
) -> None:
    assert store.begin("key", alone("a")) is None, "no connection"
    granted = store.apply("key", alone("a")).answer
    store._client.ask("SCRIPT", "FLUSH")
    begun = store.begin("key", alone("a"))
    assert begun
    assert store.finish("key", alone("a"), begun).answer == granted
    with redis_server.client() as redis:
        redis.client_kill_filter(_type="normal", skipme=True)
    lost = store.begin("key", alone("a"))
    assert store.apply("key", alone("a")).answer == granted
    if lost:  # the system noticed nothing yet
        assert store.finish("key", alone("a"), lost).answer == granted


@pytest.mark.proves("request that was begun")
@pytest.mark.parametrize("store", ["socket"], indirect=True)
def test_a_deadline_holds_for_the_request_that_was_begun_and_for_no_later_one(store: RedisStore) -> None:
    store.apply("key", alone("a"))
    with deadline(0.3):
        begun = store.begin("key", alone("b"))
        assert begun
        assert begun._sock.gettimeout() == pytest.approx(0.3, abs=0.3)
        store.finish("key", alone("b"), begun)
    assert begun._sock.gettimeout() == store._client.timeout > 1


def test_a_store_that_stands_still_is_asked_no_longer_than_the_deadline(
    redis_url: str, redis_server: RedisServer
) -> None:
    store: Any = open_store(f"{redis_url}?socket_timeout=900")
    granted = store.apply("key", alone("a")).answer
    redis_server.pause()
    try:
        with deadline(0.2), pytest.raises(StoreUnavailable):
            store.apply("key", alone("b"))
    finally:
        redis_server.resume()
    assert store.apply("key", alone("a")).answer == granted
    store.close()


def test_a_closed_store_connects_again_when_used(store: RedisStore, redis_server: RedisServer) -> None:
    store.apply("key", take("a"))
    with redis_server.client() as redis:
        before = len(redis.client_list())
        store.close()
        wait_until(lambda: len(redis.client_list()) == before - 1)
    assert store.inspect("key").holders


def test_an_interrupted_call_leaves_no_answer_for_the_next(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.apply("key", take("a"))
    (connection,) = store._client._idle

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(connection, "read_response", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.apply("key", take("b"))
    assert store.inspect("key").waiting == 1
    assert connection not in store._client._idle


@pytest.mark.promise(
    "A server that still loads its data grants nothing on a connection whose witness was not heard",
    broke="red before: granted on the connection that had said LOADING to the witness",
)
def test_a_server_that_is_loading_at_the_greeting_is_asked_for_nothing() -> None:
    asked = list[bytes]()

    class Loading(StreamRequestHandler):
        """Has loaded its data right after the greeting."""

        def handle(self) -> None:
            while head := self.rfile.readline():
                words = [
                    self.rfile.read(int(self.rfile.readline()[1:]) + 2)[:-2] for _ in range(int(head[1:]))
                ]
                asked.append(words[0])
                said = {b"EVAL": b"-LOADING Redis is loading the dataset in memory", b"EVALSHA": b":7"}
                self.wfile.write(said.get(words[0], b"+OK") + b"\r\n")

    with ThreadingTCPServer(("127.0.0.1", 0), Loading) as server:
        serving = Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        try:
            with closing(open_store(f"redis://127.0.0.1:{server.server_address[1]}/0")) as store:
                assert isinstance(store, RedisStore)
                with pytest.raises(StoreUnavailable, match="LOADING"):
                    store.apply("key", Acquire("a", "token", LIFE))
        finally:
            server.shutdown()
            serving.join()
    assert asked.count(b"EVAL") == 1
    assert b"EVALSHA" not in asked


@pytest.mark.promise("`redis+socket://` and `valkey://` are stores", name="sockets and valkey")
def test_a_socket_file_will_do(start_redis: StartRedis, socket_file: str) -> None:
    server = start_redis(unixsocket=socket_file)
    store = open_store(f"redis+socket://{socket_file}?virtual_host=3")
    store.apply("key", take("a"))
    with server.client() as redis:
        assert set(redis.info("keyspace")) == {"db3"}
    store.close()


@pytest.mark.proves("sockets and valkey")
def test_a_valkey_url_will_do(store: RedisStore, redis_url: str) -> None:
    other = open_store(redis_url.replace("redis://", "valkey://"))
    store.apply("key", take("a"))
    assert isinstance(other.apply("key", take("b")).answer, Parked)
    other.close()


def offered_epoch(store: Store) -> str:
    store.apply("another key", take("a"))
    store.apply("another key", take("b"))
    (wake,) = store.apply("another key", give("a")).wake
    return wake.epoch


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 15
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)
