"""What runs a body without a message takes no lock, `apply()` apart, as docs/reference/limits.md says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery

from celery_exclusive import Exclusive, install, lock

CALLS: dict[str, Callable[[Any], Any]] = {
    "a direct call": lambda task: [task(1), task(2)],
    "task_always_eager": lambda task: [task.delay(n).get() for n in (1, 2)],
    "apply under task_always_eager": lambda task: [task.apply((n,)).get() for n in (1, 2)],
    "map": lambda task: task.map([1, 2]).apply().get(),
    "starmap": lambda task: task.starmap([(1,), (2,)]).apply().get(),
    "chunks": lambda task: task.chunks([(1,), (2,)], 2).group().tasks[0].apply().get(),
}


@pytest.fixture
def app() -> Iterator[Celery]:
    app = install(Celery("unlocked", broker="memory://", set_as_current=False))
    app.conf.update(exclusive_store="memory://unlocked")
    yield app
    app.close()


@pytest.mark.proves("looks and direct calls")
@pytest.mark.parametrize("how", CALLS)
@pytest.mark.parametrize("on_conflict", ["wait", "skip"])
def test_a_direct_or_eager_call_runs_although_the_key_is_held(
    app: Celery, on_conflict: Any, how: str
) -> None:
    @app.task(name="double", shared=False, exclusive=Exclusive(key="k", on_conflict=on_conflict))
    def double(n: int) -> int:
        return 2 * n

    app.conf.task_always_eager = "eager" in how
    with lock("k", app=app):
        assert double.lock_state(1).is_running
        assert CALLS[how](double) == [2, 4]
        assert double.lock_state(1).waiting == 0
