"""What the caller gets, and what is left to do, when a store does not answer the request of a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery

from celery_exclusive import Exclusive, StoreUnavailable, Unique, install
from tests.proxy import Proxy
from tests.servers import RedisServer
from tests.worker.journal import eventually

pytestmark = pytest.mark.promise(
    'A call with `order="published"` whose place was taken without an answer says that it may have been '
    "sent, and one that reached no store leaves nothing to release",
    broke="red before: no `task_id`; a release for each call",
)

UNIQUE, ORDERED = {"unique": Unique("url")}, {"exclusive": Exclusive("url", order="published")}


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    redis_server.refresh()
    with Proxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture
def app(make_app: Callable[..., Celery], proxy: Proxy) -> Celery:
    return install(make_app(exclusive_store=f"redis://127.0.0.1:{proxy.port}/0?socket_timeout=0.5"))


def declare(app: Celery, **options: Any) -> Any:
    @app.task(name="load", shared=False, **options)
    def load(url: str) -> None: ...

    app.finalize()
    return app.tasks["load"]


@pytest.mark.parametrize(
    "options", [ORDERED, {**ORDERED, **UNIQUE}], ids=["in the order of publishing", "both options"]
)
def test_a_call_whose_place_was_taken_without_an_answer_says_that_it_may_have_been_sent(
    app: Celery, proxy: Proxy, options: dict[str, Any]
) -> None:
    """Another worker may publish it before this process has given its place up: to call again is two runs."""
    task = declare(app, **options)
    task.delay("a").forget()
    proxy.lose(b"\r\nenqueue\r\n", times=2)
    with pytest.raises(StoreUnavailable, match="may have been sent") as error:
        task.apply_async(("a",), task_id="lost", unique=None)
    assert error.value.task_id == "lost"
    pending = app._celery_exclusive.releaser._pending  # type: ignore[attr-defined]
    eventually(lambda: not pending, "the end of its place")


@pytest.mark.parametrize("options", [UNIQUE, ORDERED], ids=["unique", "in the order of publishing"])
def test_a_call_that_reached_no_store_leaves_nothing_to_release(
    app: Celery, proxy: Proxy, options: dict[str, Any]
) -> None:
    task = declare(app, **options)
    task.delay("a")
    proxy.cut()
    pending = app._celery_exclusive.releaser._pending  # type: ignore[attr-defined]
    with pytest.raises(StoreUnavailable):
        task.delay("on the old connection")  # which may have delivered it
    before = [*pending]
    for url in "bcd":
        with pytest.raises(StoreUnavailable) as error:
            task.delay(url)
        assert error.value.task_id is None
    assert [it for it in pending if it not in before] == []
    proxy.restore()
    eventually(lambda: not pending, "the release of the first one")
