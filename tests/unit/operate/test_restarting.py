"""`task.restart()` without workers: what it refuses, and what it does before any body is involved."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, Task

from celery_exclusive import (
    Debounce,
    Exclusive,
    ExclusiveError,
    OptionError,
    Restart,
    StoreUnavailable,
    Unique,
)
from celery_exclusive.core.operations import Acquire
from celery_exclusive.core.records import SECOND
from celery_exclusive.stores.memory import MemoryStore


def declare(app: Celery, **options: Any) -> Any:
    @app.task(name="feeds.load", shared=False, bind=True, **options)
    def load(self: Any, url: str, n: int = 0) -> Any:
        return self.restart(url) if n else url

    app.finalize()
    return app.tasks["feeds.load"]


@pytest.mark.promise(
    "A restart is refused where other calls could be revoked with the one that is meant, or run beside the "
    "new one, and inside a task that it would revoke",
    broke="each condition left out",
)
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"unique": Unique("url", period=60)}, "it needs unique=Unique"),
        ({"unique": Debounce("url", wait=5, max_wait=60)}, "it needs unique=Unique"),
        ({"unique": Unique("url", until="started")}, "it needs unique=Unique"),
        ({"unique": Unique("url", period=60), "exclusive": Exclusive("url")}, "it needs unique=Unique"),
        ({"unique": Unique(key="feed:{url}")}, "tasks may share a key="),
        ({"exclusive": Exclusive(key="feed:{url}")}, "tasks may share a key="),
        ({"exclusive": Exclusive("url", limit=2)}, "limit= and per= let several calls"),
        ({"exclusive": Exclusive(limit=1, per="url")}, "limit= and per= let several calls"),
    ],
    ids=str,
)
def test_a_task_whose_run_no_key_of_its_own_names_cannot_be_restarted(
    app: Celery, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(OptionError, match=rf"task feeds\.load cannot be restarted: .*{why}"):
        declare(app, **options).restart("a")


def test_a_unique_task_is_found_whatever_its_lock_allows(app: Celery, published: list[Any]) -> None:
    load = declare(app, unique=Unique("url"), exclusive=Exclusive(key="all", limit=9))
    assert str(load.restart("a", n=1)) == f"{published[0]['id']} was published; revoked: none"


def test_a_body_does_not_restart_its_own_task(app: Celery, published: list[Any]) -> None:
    load = declare(app, unique=Unique("url"))
    result = load.apply(("a", 1))
    assert isinstance(result.result, ExclusiveError)
    assert "task feeds.load cannot restart itself" in str(result.result)
    assert not published


def test_a_queued_task_that_no_worker_has_heard_of_stays_and_nothing_is_published(
    app: Celery, published: list[Any]
) -> None:
    load = declare(app, unique=Unique("url"))
    queued = load.delay("a")
    told = load.restart("a", 0)
    assert told == Restart(None, (), (queued.id,), "no worker has answered")
    assert str(told).startswith(f"nothing was published; revoked: none; not ended: {queued.id} (")
    assert load.lock_state("a").unique_holder.task_id == queued.id
    assert len(published) == 1


def test_without_a_store_nothing_is_published(app: Celery, published: list[Any]) -> None:
    app.conf.exclusive_store = "redis://127.0.0.1:1"
    with pytest.raises(StoreUnavailable):
        declare(app, unique=Unique("url")).restart("a")
    assert not published


@pytest.mark.parametrize("on_conflict", ["wait", "skip"])
def test_a_call_that_does_not_wait_is_not_published_beside_a_run(
    app: Celery, store: MemoryStore, on_conflict: Any
) -> None:
    load = declare(app, exclusive=Exclusive("url", on_conflict=on_conflict))
    store.apply(load.lock_state("a").key, Acquire("old/p", "", 60 * SECOND))
    told = load.restart("a", wait=0)
    assert told.not_ended == ("old",)
    assert bool(told.result) is (on_conflict == "wait")


def test_a_plain_call_is_all_under_always_eager(app: Celery) -> None:
    load = declare(app, unique=Unique("url"))
    app.conf.task_always_eager = True
    assert load.restart("a").result.result == "a"


def test_headers_that_make_the_key_are_headers_of_the_new_call(app: Celery, published: list[Any]) -> None:
    app.conf.exclusive_key_headers = ["tenant"]
    load = declare(app, unique=Unique("url"))
    with pytest.raises(OptionError, match=r"restart\(\.\.\., headers="):
        load.restart("a")
    load.restart("a", headers={"tenant": "acme"})
    assert published[0]["tenant"] == "acme"


def test_a_parameter_that_is_called_wait_is_given_by_position(app: Celery) -> None:
    @app.task(name="feeds.poll", shared=False, unique=Unique())
    def poll(wait: int) -> None: ...

    with pytest.raises(TypeError, match=r"feeds\.poll has a parameter wait: give it by position"):
        app.tasks["feeds.poll"].restart(wait=3)
    assert app.tasks["feeds.poll"].restart(3).result


def test_a_task_that_has_its_own_restart_keeps_it(app: Celery) -> None:
    class Own(Task):
        abstract = True

        def restart(self, service: str) -> str:
            return service

    assert declare(app, base=Own, exclusive=Exclusive("url")).restart("web") == "web"
