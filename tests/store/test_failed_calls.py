"""A script that ends as soon as its call has failed: it leaves no key held, and no message in line."""

from __future__ import annotations

import traceback
from contextlib import closing

import pytest

from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.stores.base import open_store
from tests.proxy import Proxy
from tests.servers import RedisServer
from tests.store.test_lock import Process

WHICH = pytest.mark.parametrize("which", ["one", "ordered"])


def assert_nothing_left(server: RedisServer) -> None:
    with closing(open_store(server.url)) as store:
        assert list(store.scan()) == []


@pytest.mark.promise(
    "A script that ends as soon as its call has failed leaves no unique key held and no message in line: "
    "it releases what too few replicas confirmed first, and what a lost reply had granted before it ends, "
    "if the store answers within 8 s",
    name="failed call leaves nothing",
    broke=(
        "red before: the key was held for a day, and later calls were skipped for a task that was never sent"
    ),
)
@WHICH
def test_a_lease_that_replicas_did_not_confirm_is_released(
    redis_server: RedisServer, redis_url: str, which: str
) -> None:
    with Process(f"{redis_url}?replicas=1&socket_timeout=4", "call", which) as script:
        assert script.hear() == "connected"
        script.go_on()
        assert "0 of 1 replicas confirmed it" in script.hear()
        script.end()
    assert_nothing_left(redis_server)


@pytest.mark.proves("failed call leaves nothing")
@WHICH
def test_a_lease_whose_reply_is_lost_is_released_when_the_store_answers_again(
    redis_server: RedisServer, redis_url: str, which: str
) -> None:
    with (
        Proxy(redis_server.port) as network,
        Process(f"redis://127.0.0.1:{network.port}/0?socket_timeout=2", "call", which) as script,
    ):
        assert script.hear() == "connected"
        network.lose(which.encode(), times=2)  # which the client asks for a second time
        network.withhold(which.encode())
        script.go_on()
        assert "does not answer" in script.hear()
        script.end()
        assert len(network.met) == 3
    assert_nothing_left(redis_server)


@pytest.mark.promise(
    "The traceback of a store that does not answer has no frames of its driver, whose error is the "
    "`__context__` of ours",
    broke="red before: four tracebacks of 90 lines",
)
@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:1/0",
        "redis+cluster://127.0.0.1:1",
        "memcached://127.0.0.1:1",
        "postgresql://tests@127.0.0.1:1/locks",
        "mysql://tests@127.0.0.1:1/locks",
    ],
)
def test_a_store_that_does_not_answer_prints_one_traceback(url: str) -> None:
    store = open_store(url)
    with pytest.raises(StoreUnavailable) as raised:
        store.inspect("key")
    printed = "".join(traceback.format_exception(raised.value))
    assert printed.count("Traceback") == 1
    assert "site-packages" not in printed
    assert raised.value.__context__ is not None
    store.close()
