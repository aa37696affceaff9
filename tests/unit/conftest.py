from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

import pytest
from celery import Celery, _state
from celery.signals import after_task_publish, before_task_publish
from kombu.exceptions import OperationalError

from celery_exclusive import Unique, install
from celery_exclusive.core.claim import Claim
from celery_exclusive.core.records import SECOND
from celery_exclusive.stores.memory import MemoryStore
from tests.unit.stepping import Key


@pytest.fixture
def make_app(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Celery]]:
    known: WeakKeyDictionary[object, Any] = WeakKeyDictionary()  # without those of other tests
    for module in (
        "options.option",
        "installer",
    ):
        monkeypatch.setattr(sys.modules[f"celery_exclusive.{module}"], "apps_with_locks", known)
    apps, finalizers = [], set(_state._on_app_finalizers)
    store = f"memory://{uuid4()}"  # for the apps of this test alone

    def make(**conf: Any) -> Celery:
        app = Celery("feeds", broker="memory://", set_as_current=False)
        app.conf.update({"exclusive_store": store, "result_backend": "cache+memory://", **conf})
        apps.append(app)
        return app

    yield make
    for app in apps:
        app.close()
    _state._on_app_finalizers &= finalizers


@pytest.fixture
def app(make_app: Callable[..., Celery]) -> Celery:
    return install(make_app())


@pytest.fixture
def published() -> Iterator[list[dict[str, Any]]]:
    """The headers of every message that is published."""
    seen: list[dict[str, Any]] = []

    def see(headers: dict[str, Any], **_: Any) -> None:
        seen.append(headers)

    before_task_publish.connect(see, weak=False)
    yield seen
    before_task_publish.disconnect(see)


@pytest.fixture
def make_task(app: Celery) -> Iterator[Callable[..., Any]]:
    """Declares `feeds.load` with these options of Unique."""

    def make(*args: Any, name: str = "feeds.load", **options: Any) -> Any:
        @app.task(name=name, shared=False, unique=Unique(*args, **options))
        def load(url: str, n: int = 0) -> str:
            return url

        app.finalize()
        return app.tasks[name]

    yield make
    app._celery_exclusive.store.clear()  # type: ignore[attr-defined]


@pytest.fixture
def store(app: Celery) -> MemoryStore:
    store: MemoryStore = app._celery_exclusive.store  # type: ignore[attr-defined]
    return store


@pytest.fixture
def sent(published: list[dict[str, Any]]) -> Callable[[], list[dict[str, Any]]]:
    """Our headers of all messages."""
    return lambda: [message["exclusive"] for message in published]


@pytest.fixture
def without_broker(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], AbstractContextManager[None]]:
    """A context in which no message can be sent."""

    def refuse(*_: Any, **__: Any) -> None:
        raise OperationalError("no broker")

    @contextmanager
    def be_without() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(app.amqp, "send_task_message", refuse)
            yield

    return be_without


@pytest.fixture
def begun(store: MemoryStore) -> Iterator[list[str]]:
    """What is published begins at once, as these claims; its publisher is interrupted then."""
    begun: list[str] = []

    def begin(headers: dict[str, Any], **_: Any) -> None:
        key, id = headers["exclusive"]["unique"][0], f"{headers['id']}/{headers['exclusive']['id']}"
        store.apply(key, Claim(key, id, "of its delivery", 30 * SECOND).acquire_alone(30 * SECOND, "running"))
        begun.append(id)
        raise KeyboardInterrupt

    after_task_publish.connect(begin, weak=False)
    yield begun
    after_task_publish.disconnect(begin)


@pytest.fixture
def key() -> Key:
    return Key()


@pytest.fixture
def busy() -> Key:
    """A holds it; B, C and D wait in this order."""
    key = Key()
    for id in "abcd":
        key.acquire(id)
    return key
