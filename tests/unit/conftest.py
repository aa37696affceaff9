from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from celery import Celery, _state
from celery.signals import before_task_publish

from celery_exclusive import install


@pytest.fixture
def make_app(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Celery]]:
    known: WeakKeyDictionary[object, Any] = WeakKeyDictionary()  # without those of other tests
    for module in ("declaration", "install"):  # the package shows `install` the function, not the module
        monkeypatch.setattr(sys.modules[f"celery_exclusive.{module}"], "apps_with_locks", known)
    apps, finalizers = [], set(_state._on_app_finalizers)

    def make(**conf: Any) -> Celery:
        app = Celery("feeds", broker="memory://", set_as_current=False)
        app.conf.update({"exclusive_store": "memory://", "result_backend": "cache+memory://", **conf})
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
