"""What a message says of its publisher's store: read only by a call that asks that store anyway."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from celery import Celery
from celery.utils import uuid

from celery_exclusive import Exclusive, OptionError, StoreUnavailable, Unique, install, lock
from celery_exclusive.messages.header import Header
from celery_exclusive.publishing import publisher as module
from celery_exclusive.publishing.publisher import PUBLISHER, Publisher
from celery_exclusive.stores.memory import MemoryStore
from tests.proxy import Proxy
from tests.servers import RedisServer
from tests.worker.journal import eventually

UNIQUE, ORDERED = {"unique": Unique("url")}, {"exclusive": Exclusive("url", order="published")}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1_000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def declare(app: Celery, **options: Any) -> Any:
    @app.task(name="load", shared=False, **options)
    def load(url: str) -> None: ...

    app.finalize()
    return app.tasks["load"]


def sent_last(app: Celery) -> dict[str, Any]:
    """Our header of the message that was sent last, as it is in the queue."""
    with app.connection_for_read() as connection:
        get = partial(connection.default_channel.basic_get, "celery", no_ack=True)
        *_, last = iter(get, None)
    header: dict[str, Any] = last.headers["exclusive"]
    return header


@pytest.mark.parametrize(
    ("options", "is_told"),
    [(UNIQUE, True), (ORDERED, True), ({"exclusive": Exclusive("url")}, False)],
    ids=["unique", "in the order of publishing", "exclusive alone"],
)
def test_a_message_carries_the_epoch_if_its_call_asks_the_store(
    app: Celery, store: MemoryStore, options: dict[str, Any], is_told: bool
) -> None:
    declare(app, **options).delay("a")
    assert sent_last(app).get("store") == (store.epoch() if is_told else None)


def test_a_call_that_asks_the_store_in_an_event_loop_is_warned_of_once(
    app: Celery, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    async def call(task: Any, *urls: str) -> None:
        for url in urls:
            task.delay(url)

    task = declare(app, **UNIQUE)
    task.delay("a")
    assert "event loop" not in caplog.text
    publisher: Publisher = getattr(app, PUBLISHER)
    for url in "bc":
        publisher._epoch_expires = 0
        asyncio.run(call(task, url))
    assert caplog.text.count("write await asyncio.to_thread(task.delay, ...)") == 1


def test_the_offer_of_a_message_in_the_order_of_publishing_is_marked_with_the_epoch(
    app: Celery, store: MemoryStore
) -> None:
    declare(app, **ORDERED).delay("a")
    assert sent_last(app)["promoted"] == store.epoch()


def test_a_message_that_has_no_place_in_line_is_no_offer(
    app: Celery, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = declare(app, exclusive=Exclusive("url", order="published", on_store_error="allow"))

    def fail(*_: Any) -> None:
        raise StoreUnavailable("no store")

    task.delay("a")
    assert sent_last(app)["promoted"]
    monkeypatch.setattr(store, "apply", fail)
    task.delay("b")
    assert not sent_last(app).get("promoted")


@pytest.mark.proves("calls and a silent store")
def test_the_epoch_is_read_once_a_minute(app: Celery, store: MemoryStore, clock: list[float]) -> None:
    publisher: Publisher = getattr(app, PUBLISHER)
    first = publisher.epoch(store)
    store.clear()
    clock[0] += 59
    assert publisher.epoch(store) == first != store.epoch()
    clock[0] += 2
    assert publisher.epoch(store) == store.epoch()


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    redis_server.refresh()
    with Proxy(redis_server.port) as proxy:
        yield proxy


def away(proxy: Proxy) -> str:
    return f"redis://127.0.0.1:{proxy.port}/0?socket_timeout=0.2"


@pytest.mark.promise(
    "A call with `exclusive=` alone asks no store; one that asks a silent store waits for it once",
    name="calls and a silent store",
    broke="red before: a connection for each; the epoch read, and then the key asked for",
)
def test_a_call_of_a_task_that_is_exclusive_alone_asks_no_store(
    make_app: Callable[..., Celery], sent: Any, proxy: Proxy
) -> None:
    app = install(make_app(exclusive_store=away(proxy)))
    proxy.drop(requests=True, replies=True)
    task = declare(app, exclusive=Exclusive("url"))
    task.delay("a")
    task.apply_async(("a",), countdown=5)
    task.apply_async(("a",), retries=1)
    assert len(sent()) == 3
    assert proxy.accepted == 0


@pytest.mark.proves("calls and a silent store")
@pytest.mark.parametrize("options", [UNIQUE, ORDERED], ids=["unique", "in the order of publishing"])
def test_a_call_that_asks_a_silent_store_waits_for_it_once(
    make_app: Callable[..., Celery], proxy: Proxy, options: dict[str, Any]
) -> None:
    app = install(make_app(exclusive_store=away(proxy)))
    proxy.drop(requests=True, replies=True)
    task = declare(app, **options)
    with pytest.raises(StoreUnavailable):
        task.delay("a")
    assert proxy.accepted == 1
    proxy.restore()

    def is_published() -> bool:
        with suppress(StoreUnavailable):  # a busy machine may answer too late
            return bool(task.delay("a"))
        return False

    eventually(is_published, "an answer")
    assert sent_last(app)["store"] == app._celery_exclusive.store.epoch()  # type: ignore[attr-defined]


@pytest.mark.proves("calls and a silent store")
def test_a_member_of_a_canvas_continues_without_its_key_after_one_wait_for_a_silent_store(
    make_app: Callable[..., Celery], sent: Any, proxy: Proxy
) -> None:
    app = install(make_app(exclusive_store=away(proxy)))
    proxy.drop(requests=True, replies=True)
    declare(app, **UNIQUE).apply_async(("a",), group_id="group")
    (header,) = sent()
    assert "unique" not in header
    assert proxy.accepted == 1


@pytest.mark.promise(
    "A broker that keeps no locks, and no other store, is an error of the call; a store found elsewhere is "
    "a warning at the start if publishers ask it; a publisher logs its store once",
    name="no store found",
    broke="always a warning; logged by each call",
)
def test_a_unique_call_with_a_broker_that_keeps_no_locks_and_no_other_store_is_an_error(
    make_app: Callable[..., Celery], sent: Any
) -> None:
    app = install(make_app(exclusive_store=None, broker_url="amqp://mq.invalid", result_backend="rpc://"))
    task = declare(app, unique=Unique())
    expected = (
        r"nothing that can keep locks \(broker amqp, result backend rpc\); add one line: app\.conf\.excl"
    )
    with pytest.raises(OptionError, match=expected):
        task.delay("a")
    assert not sent()


@pytest.mark.proves("no store found")
@pytest.mark.parametrize("how", ["unique", "lock()"])
def test_a_process_logs_once_where_it_looks_for_locks(
    make_app: Callable[..., Celery], caplog: pytest.LogCaptureFixture, how: str
) -> None:
    caplog.set_level(logging.INFO, "celery_exclusive")
    app = install(make_app(exclusive_store=None))
    task = declare(app, unique=Unique("url"), exclusive=Exclusive("url"))

    def logged() -> list[str]:
        return [it.getMessage() for it in caplog.records if it.name == "celery_exclusive"]

    task.apply_async(("a",), unique=None)
    assert not logged()
    for text in (uuid(), uuid()):  # one store serves all tests of this process
        if how == "unique":
            task.delay(text)
        else:
            with lock(text, app=app):
                pass
    assert logged() == ["locks are in memory:// (broker), exclusive_prefix cx"]


@pytest.mark.parametrize(
    ("more", "store"), [({}, None), ({"store": 7}, None), ({"store": "m"}, "m"), ({"later": {"a": 1}}, None)]
)
def test_a_header_of_another_version_of_this_library_can_be_read(more: dict[str, Any], store: Any) -> None:
    header = Header.of({"v": 1, "id": "i", "exclusive": "k", **more})
    assert header == Header("i", "k", store=store)
