"""Callers of what a store refuses for good: they are told, and what has nobody to tell goes on without."""

from __future__ import annotations

from collections.abc import Iterator
from random import randbytes
from uuid import uuid4

import pytest
from celery import Celery

from celery_exclusive import Exclusive, StoreRefused, Unique, install, lock
from tests.servers import RedisServer


@pytest.fixture
def app(request: pytest.FixtureRequest) -> Iterator[Celery]:
    app = Celery("feeds", broker="memory://", set_as_current=False)
    app.conf.exclusive_store = request.getfixturevalue(request.param)
    app.conf.task_default_queue = f"{uuid4()}"  # all apps of this process share the broker
    yield install(app)
    app.close()


def sent(app: Celery) -> int:
    """How many messages are in its queue."""
    with app.connection() as connection:
        queue = connection.default_channel.queue_declare(app.conf.task_default_queue, passive=True)
        return int(queue.message_count)


@pytest.mark.proves("refused for good")
@pytest.mark.parametrize("app", ["postgres_url", "maria_url"], indirect=True)
def test_a_call_whose_id_the_store_cannot_keep_raises(app: Celery) -> None:
    @app.task(shared=False, exclusive=Exclusive(order="published"))
    def work() -> None: ...

    work.apply_async()
    with pytest.raises(StoreRefused, match="shorten the task's id"):
        work.apply_async(task_id=randbytes(5_000).hex())
    assert sent(app) == 1


@pytest.mark.proves("refused for good")
@pytest.mark.parametrize("app", ["redis_url"], indirect=True)
def test_a_damaged_key_is_no_store_that_is_away(app: Celery, redis_server: RedisServer) -> None:
    @app.task(shared=False, unique=Unique(key="strict"))
    def strict() -> None: ...

    @app.task(shared=False, unique=Unique(key="lenient", on_store_error="allow"))
    def lenient() -> None: ...

    with redis_server.client() as redis:
        for name in ("strict", "lenient", "plain"):
            redis.set(f"cx2:{{0}}:l:u={name}", "x")
            redis.set(f"cx2:{{0}}:l:x={name}", "x")
    with pytest.raises(StoreRefused, match="are damaged"):
        strict.delay()
    with pytest.raises(StoreRefused, match="are damaged"):
        lock("plain", app=app).acquire()
    lenient.delay()
    assert sent(app) == 1
