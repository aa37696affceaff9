"""How many Python calls an option adds to a `delay()`, where nobody holds the key.

Caches are cold between two calls of a publisher, so each has its price.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery

from celery_exclusive import Exclusive, Unique, install
from celery_exclusive.core.operations import Granted
from celery_exclusive.options.option import Option
from celery_exclusive.stores.base import Reply
from celery_exclusive.stores.memory import MemoryStore
from tests.unit.calls import calls


@pytest.mark.parametrize(
    ("options", "most"),
    [({}, 6), ({"exclusive": Exclusive("key")}, 27), ({"unique": Unique("key")}, 44)],
    ids=["none", "exclusive", "unique"],
)
@pytest.mark.parametrize(
    "how", [lambda task: task.delay("k"), lambda task: task.delay(key="k")], ids=["by place", "by name"]
)
def test_an_option_adds_few_calls_to_a_delay(
    make_app: Callable[..., Celery],
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Option],
    most: int,
    how: Callable[[Any], object],
) -> None:
    monkeypatch.setattr(MemoryStore, "apply", lambda *_: Reply(Granted(1)))
    counts = []
    for app, declared in ((install(make_app()), options), (make_app(), {})):

        @app.task(name="feeds.load", shared=False, ignore_result=True, **declared)
        def load(key: str, number: int = 0) -> None: ...

        app.finalize()
        task = app.tasks["feeds.load"]
        how(task)  # the first one fills caches
        counts.append(calls(lambda task=task: how(task)))
    ours, bare = counts
    assert ours - bare <= most
