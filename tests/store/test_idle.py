"""Connections that were idle for so long that what stands between may have forgotten them."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from secrets import token_hex
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from celery_exclusive.core.operations import AcquireAlone, Applied, Granted
from celery_exclusive.stores import idle
from celery_exclusive.stores.base import open_store
from celery_exclusive.stores.redis.cluster import ClusterStore
from tests.proxy import Proxy
from tests.store.operations import LIFE, give

pytestmark = pytest.mark.promise(
    "A connection that was idle for longer than 30 s is replaced, on all servers, since a NAT or a load "
    "balancer may have forgotten it without a word; the system keeps idle ones alive",
    broke="red before: the call waited for 5 s and raised; 7,200 s",
)


@pytest.fixture(params=["redis", "memcached", "postgres", "maria"])
def url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    with Proxy(urlsplit(url).port or 0) as between:
        yield between


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let the connections of this process be idle for some more seconds."""
    passed = 0.0
    monkeypatch.setattr(idle, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + passed))

    def add(seconds: float) -> None:
        nonlocal passed
        passed += seconds

    return add


def open_behind(proxy: Proxy, url: str) -> Any:
    return open_store(url.replace(str(urlsplit(url).port), str(proxy.port)))


def test_a_call_after_a_pause_uses_no_connection_that_a_nat_may_have_forgotten(
    url: str, proxy: Proxy, pass_time: Callable[[float], None]
) -> None:
    with closing(open_behind(proxy, url)) as store:
        take = AcquireAlone("a", "token of a", LIFE)
        assert isinstance(store.apply("key", take).answer, Granted)
        pass_time(29)
        accepted = proxy.accepted
        assert store.apply("key", give("a")).answer == Applied(True)
        assert proxy.accepted == accepted
        proxy.forget()
        pass_time(31)
        assert isinstance(store.apply("key", take).answer, Granted)
        assert proxy.accepted == accepted + 1


@pytest.fixture(params=["sentinel", "cluster"])
def several(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A store on one of several servers, and its idle connections."""
    if request.param == "cluster":
        url, options = request.getfixturevalue("redis_cluster_url"), {"prefix": f"i{token_hex(4)}"}
    else:
        primary = request.getfixturevalue("start_redis")()
        sentinel = request.getfixturevalue("start_sentinel")(primary)
        url, options = f"{sentinel.url}?master_name=main", {}
    with closing(open_store(url, **options)) as store:
        clients = store._nodes._nodes if isinstance(store, ClusterStore) else {"": store._client}
        yield store, lambda: {one for client in clients.values() for one in client._idle}


def test_a_server_that_sentinels_or_nodes_name_is_asked_on_a_new_connection_after_a_pause(
    several: tuple[Any, Callable[[], set[Any]]], pass_time: Callable[[float], None]
) -> None:
    store, connections = several
    take = AcquireAlone("a", "token of a", LIFE)
    store.apply("key", take)
    before = connections()
    pass_time(29)
    store.apply("key", take)
    assert connections() == before
    pass_time(31)
    store.apply("key", take)
    new = connections() - before
    assert len(new) == 1
    for one in new:
        assert one._sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert one._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 30


def test_connections_idle_for_even_longer_are_closed_with_the_newest(
    pass_time: Callable[[float], None],
) -> None:
    closed = list[str]()
    connections = idle.Idle[str](closed.append)
    connections.append("old")
    pass_time(20)
    connections.append("new")
    pass_time(29)
    assert connections.pop() == "new"
    connections.append("new")
    pass_time(31)
    assert connections.pop() is None
    assert closed == ["new", "old"]


def test_the_system_keeps_idle_connections_alive(url: str) -> None:
    others = {name for name, _ in connections_to(urlsplit(url).port)}
    with closing(open_store(url)) as store:
        store.apply("key", AcquireAlone("a", "token of a", LIFE))
        pauses = [
            one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            and one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
            for name, one in connections_to(urlsplit(url).port)
            if name not in others
        ]
    assert pauses
    assert all(0 < pause <= 30 for pause in pauses)


def connections_to(port: int | None) -> Iterator[tuple[str, socket.socket]]:
    """Those that this process has to a port of this machine, with a name of each."""
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if not (name := f"{descriptor.readlink()}").startswith("socket:"):
                continue
            with socket.fromfd(int(descriptor.name), socket.AF_INET, socket.SOCK_STREAM) as one:
                if one.getpeername()[1:2] == (port,):
                    yield name, one
