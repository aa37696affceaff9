"""kombu makes a client of redis-py for each thing that a channel asks; with us a channel keeps one."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery, _state
from kombu import Connection, Producer
from kombu.transport.redis import Channel
from redis.credentials import CredentialProvider

from celery_exclusive import Exclusive, Unique, install
from celery_exclusive.seams.kombu_message import keep_client
from celery_exclusive.worker.queues import note_queues
from tests.servers import RedisServer
from tests.worker.lab import disconnect

pytestmark = pytest.mark.promise(
    "A worker's channel to a Redis broker makes one client of redis-py, and a publisher one for all calls "
    "of our tasks that go straight to a queue, not one for each question; no longer than its connections, "
    "and each process its own. Calls of other tasks, batches, and a credential provider are as before",
    broke="each of four breaks on purpose",
    figure="counted: none per call and per message",
)


@pytest.fixture
def app(redis_url: str) -> Iterator[Celery]:
    finalizers = set(_state._on_app_finalizers)
    app = install(Celery("feeds", broker=redis_url, set_as_current=False))
    options: dict[str, dict[str, Any]] = {
        "exclusive": {"exclusive": Exclusive(order="arrived")},  # the others are sent with their places
        "apart": {"unique": Unique()},
        "plain": {},
    }
    for name, declared in options.items():
        app.task(name=name, shared=False, **declared)(work)
    app.finalize()
    yield app
    app._celery_exclusive.releaser.drain()  # type: ignore[attr-defined]
    disconnect(app)
    app.close()
    _state._on_app_finalizers &= finalizers


def work(number: int) -> None: ...


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Channel]:
    """The channel of each client that kombu has made."""
    seen: list[Channel] = []
    make = Channel._create_client

    def note(channel: Channel, *args: Any, **options: Any) -> Any:
        if not (args or options):
            seen.append(channel)
        return make(channel, *args, **options)

    monkeypatch.setattr(Channel, "_create_client", note)
    return seen


def counted(made: list[Channel], call: Callable[[int], object], calls: int = 5) -> int:
    """How many clients were made for so many calls, after a first one."""
    call(0)
    before = len(made)
    for number in range(1, calls + 1):
        call(number)
    return len(made) - before


@pytest.mark.parametrize("where", ["one Redis", "another Redis"])
def test_calls_of_locked_tasks_share_a_client_and_plain_calls_have_one_each(
    app: Celery, made: list[Channel], start_redis: Callable[..., RedisServer], where: str
) -> None:
    if where == "another Redis":
        app.conf.exclusive_store = start_redis().url
    assert counted(made, app.tasks["exclusive"].delay) == 0
    assert counted(made, app.tasks["apart"].delay) == 0
    assert counted(made, app.tasks["plain"].delay) == 5
    with app.connection_for_write() as connection:
        assert connection.default_channel.queue_purge("celery") == 18


def test_messages_that_are_sent_later_in_a_batch_go_through_the_channel_of_the_first(app: Celery) -> None:
    if not hasattr(Producer, "batch"):
        pytest.skip("no batches in this kombu")
    with app.producer_pool.acquire() as producer, producer.batch():
        for name in ("exclusive", "plain", "apart", "exclusive"):
            app.tasks[name].apply_async((1,), producer=producer)
    with app.connection_for_write() as connection:
        assert connection.default_channel.queue_purge("celery") == 4


class Proxy:
    """An object in front of a producer, as tracers and wrapt make them."""

    __slots__ = ("_producer",)

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)


@pytest.mark.promise(
    "A producer of the caller's that is not of kombu's own class is used as it is",
    broke="captured as one of that class: AttributeError",
)
@pytest.mark.parametrize("name", ["exclusive", "apart"])
def test_a_call_uses_a_proxy_of_a_producer_as_it_is(app: Celery, made: list[Channel], name: str) -> None:
    with app.producer_pool.acquire() as producer:
        proxy = Proxy(producer)
        assert counted(made, lambda number: app.tasks[name].apply_async((number,), producer=proxy)) == 5
    with app.connection_for_write() as connection:
        assert connection.default_channel.queue_purge("celery") == 6


class Passwords(CredentialProvider):
    def get_credentials(self) -> tuple[str, str]:
        return "me", "secret"


def test_a_provider_of_passwords_gets_to_know_each_client(
    start_redis: Callable[..., RedisServer], made: list[Channel]
) -> None:
    if not hasattr(Channel, "_process_credential_provider"):
        pytest.skip("no credential providers in this kombu")
    server = start_redis()
    with server.client() as admin:
        admin.acl_setuser("me", enabled=True, passwords=["+secret"], keys=["*"], commands=["+@all"])
    with Connection(f"{server.url}?credential_provider={__name__}.Passwords") as connection:
        channel: Any = connection.default_channel
        keep_client(channel)
        for number in range(1, 4):
            with channel.conn_or_acquire() as client:
                assert client.lpush("list", 1) == number
        assert made.count(channel) == 3


def test_a_worker_receives_and_acknowledges_with_one_client(app: Celery, made: list[Channel]) -> None:
    note_queues(app, keeps_client=True)
    received: list[int] = []

    def receive(body: Any, message: Any) -> None:
        received.append(body[0][0])
        message.ack()

    with app.connection_for_read() as connection:
        consumer = app.amqp.TaskConsumer(connection, callbacks=[receive])
        with consumer:
            for number in range(6):
                app.tasks["plain"].delay(number)
            connection.drain_events(timeout=30)
            before = [channel is consumer.channel for channel in made].count(True)
            while len(received) < 6:
                connection.drain_events(timeout=30)
            assert [channel is consumer.channel for channel in made].count(True) == before
        assert received == list(range(6))
        assert not connection.default_channel.client.exists("unacked")


def test_a_client_is_kept_no_longer_than_the_connections_of_its_channel(
    app: Celery, made: list[Channel]
) -> None:
    with app.connection_for_write() as connection:
        channel: Any = connection.default_channel
        keep_client(channel)
        keeping = channel._create_client
        keep_client(channel)  # once for each queue that is consumed from it
        assert channel._create_client is keeping
        with channel.conn_or_acquire() as one, channel.conn_or_acquire() as other:
            assert one is other
            assert one.lpush("list", 1) == 1
        channel._disconnect_pools()
        with channel.conn_or_acquire() as another:
            assert another is not one
            assert another.connection_pool is channel.pool
            assert another.lpush("list", 1) == 2
        assert len(made) == 2


def test_calls_go_on_when_the_broker_has_restarted(
    start_redis: Callable[..., RedisServer], app: Celery
) -> None:
    server = start_redis(appendonly=True, appendfsync="always")
    app.conf.update(broker_url=server.url, exclusive_store="memory://")
    app.tasks["exclusive"].delay(1)
    server.kill()
    server.restart(keep_data=True)
    app.tasks["exclusive"].delay(2)
    with app.connection_for_write() as connection:
        assert connection.default_channel.queue_purge("celery") == 2


def test_a_forked_child_has_connections_of_its_own(app: Celery) -> None:
    app.tasks["exclusive"].delay(1)
    reader, writer = socket.socketpair()
    with reader, writer:
        if not (pid := os.fork()):
            try:
                app.tasks["exclusive"].delay(2)
                writer.sendall(b"sent")
            finally:
                os._exit(0)
        reader.settimeout(60)
        assert reader.recv(4) == b"sent"
        os.waitpid(pid, 0)
    app.tasks["exclusive"].delay(3)
    with app.connection_for_write() as connection:
        assert connection.default_channel.queue_purge("celery") == 3


def test_a_channel_of_another_transport_is_left_alone() -> None:
    class Other:
        def _create_client(self) -> None: ...

    channel = Other()
    keep_client(channel)
    assert not vars(channel)
