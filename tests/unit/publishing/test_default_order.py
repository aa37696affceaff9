"""The order of calls if their option gives none: by the settings, in publishers and workers alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import pytest
from celery import Celery
from kombu import Exchange, Queue
from kombu.exceptions import OperationalError

from celery_exclusive import Exclusive, install
from tests.servers import RedisServer
from tests.worker.lab import disconnect

pytestmark = pytest.mark.promise(
    "By default calls take their places when they are published where broker and store are one Redis "
    "database, but for a `key=`, `max_waiting`, a time that comes later, another exchange or producer; "
    "with any other store they arrive. Such a call ends as a plain one if the broker does not answer",
    name="default order",
    broke='"published" for each; for none; `StoreUnavailable` of a call with an order',
)

HERE = "{url}"
ELSEWHERE = "redis://127.0.0.1:{port}/3"


@pytest.fixture
def declare(make_app: Callable[..., Celery], redis_server: RedisServer) -> Iterator[Callable[..., Any]]:
    redis_server.refresh()
    apps = []

    def declare(option: Exclusive, store: str = HERE, **conf: Any) -> Any:
        url = redis_server.url
        conf["exclusive_store"] = store.format(url=url, port=redis_server.port)
        app = install(make_app(**{"broker_url": url, "task_ignore_result": True, **conf}))
        apps.append(app)

        @app.task(name="load", shared=False, exclusive=option)
        def load(url: str) -> None: ...

        app.finalize()
        return app.tasks["load"]

    yield declare
    for app in apps:
        disconnect(app)


def in_queue(server: RedisServer) -> int:
    with server.client() as client:
        return int(client.llen("celery"))


@pytest.mark.parametrize(
    "option",
    [Exclusive(), Exclusive("url"), Exclusive("url", limit=1, on_full="skip"), Exclusive(order="published")],
)
def test_the_second_call_of_a_key_waits_in_the_store(
    declare: Callable[..., Any], redis_server: RedisServer, option: Exclusive
) -> None:
    task = declare(option)
    for _ in range(2):
        task.delay("a")
    assert (in_queue(redis_server), task.lock_state("a").waiting) == (1, 2)
    assert task.app._celery_exclusive.order(option) == "published"


@pytest.mark.parametrize(
    ("option", "conf"),
    [
        (Exclusive(order="arrived"), {}),
        (Exclusive(order="any"), {}),
        (Exclusive(key="{url}"), {}),
        (Exclusive(max_waiting=5), {}),
        (Exclusive(on_conflict="skip"), {}),
        (Exclusive(on_conflict="reschedule"), {}),
        (Exclusive(), {"exclusive_max_waiting": 5}),
        (Exclusive(), {"store": ELSEWHERE}),
        (Exclusive(), {"store": HERE + "?replicas=1"}),
    ],
    ids=str,
)
def test_all_calls_go_to_the_queue(
    declare: Callable[..., Any], redis_server: RedisServer, option: Exclusive, conf: dict[str, Any]
) -> None:
    task = declare(option, **conf)
    for _ in range(2):
        task.delay("a")
    assert in_queue(redis_server) == 2
    assert task.app._celery_exclusive.order(option) == (option.order or "arrived")


@pytest.mark.parametrize("option", [Exclusive("url"), Exclusive(key="{url}")], ids=str)
def test_calls_that_supersede_join_the_line_as_they_are_made_in_any_store(
    declare: Callable[..., Any], option: Exclusive
) -> None:
    """The newest call must not be superseded by an older one that comes late, and must be known at once."""
    task = declare(option.replace(on_conflict="supersede"), store=ELSEWHERE)
    assert task.app._celery_exclusive.order(task.exclusive) == "published"


def test_a_call_that_is_due_later_goes_to_the_queue(
    declare: Callable[..., Any], redis_server: RedisServer
) -> None:
    task = declare(Exclusive())
    for _ in range(2):
        task.apply_async(("a",), countdown=60)
    assert (in_queue(redis_server), task.lock_state("a").waiting) == (2, 0)


def test_a_call_to_an_exchange_of_several_queues_goes_to_each(
    declare: Callable[..., Any], redis_server: RedisServer
) -> None:
    task = declare(Exclusive())
    exchange = Exchange("news", type="topic")
    task.app.conf.task_queues = [Queue(name, exchange, "key") for name in ("one", "two")]
    with task.app.connection_for_write() as connection:
        for queue in task.app.conf.task_queues:
            queue(connection.default_channel).declare()
    for _ in range(2):
        task.apply_async(("a",), exchange="news", routing_key="key", exchange_type="topic")
    with redis_server.client() as client:
        assert [client.llen(name) for name in ("one", "two")] == [2, 2]
    assert task.lock_state("a").waiting == 0


def test_without_its_broker_the_call_raises_the_error_of_a_plain_call(
    declare: Callable[..., Any], start_redis: Callable[..., RedisServer]
) -> None:
    server = start_redis()
    task = declare(Exclusive(), store=server.url, broker_url=server.url)
    task.delay("a")
    server.kill()
    with pytest.raises(OperationalError):
        task.delay("a")


def test_a_call_to_a_server_that_stands_still_is_sent_once_when_it_goes_on(
    declare: Callable[..., Any], redis_server: RedisServer
) -> None:
    task = declare(Exclusive("url"), store=f"{HERE}?socket_timeout=0.2")
    task.delay("a")
    redis_server.pause()
    with futures.ThreadPoolExecutor() as pool:
        call = pool.submit(task.delay, "b")
        with pytest.raises(futures.TimeoutError):
            call.result(1)
        redis_server.resume()
        assert call.result(60).id
    assert (in_queue(redis_server), task.lock_state("b").waiting) == (2, 1)


def test_a_producer_that_is_none_of_kombus_gets_the_call(
    declare: Callable[..., Any], redis_server: RedisServer
) -> None:
    class Traced:
        def __init__(self, producer: Any) -> None:
            self.producer = producer

        def __getattr__(self, name: str) -> Any:
            return getattr(self.producer, name)

    task = declare(Exclusive())
    with task.app.producer_pool.acquire() as producer:
        for _ in range(2):
            task.apply_async(("a",), producer=Traced(producer))
    assert in_queue(redis_server) == 2
