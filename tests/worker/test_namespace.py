"""A namespace belongs to one broker: workers of another would publish waiting tasks into the wrong one."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from celery_exclusive import OptionError
from celery_exclusive.core.operations import Acquire, Release
from celery_exclusive.core.records import SECOND
from celery_exclusive.messages.namespace import keep_namespace, own_broker
from celery_exclusive.stores.base import Store, open_store
from celery_exclusive.worker.neighbours import described
from celery_exclusive.worker.steps import own_record
from tests.servers import RedisServer
from tests.worker.lab import Lab, Worker, command, eventually

LONG, A_MOMENT = 60 * SECOND, 1_000


@pytest.mark.proves("unfit store refused")
def test_a_worker_of_another_broker_does_not_start_in_the_same_namespace(
    make_lab: Callable[..., Lab], redis_server: RedisServer, start_redis: Callable[..., RedisServer]
) -> None:
    store = redis_server.url
    make_lab(exclusive_store=store).start_worker("w1", 1)
    other = make_lab(url=start_redis().url, exclusive_store=store)
    stranger = refused(other, "w2")
    for words in ("exclusive_prefix='cx'", f"redis://localhost:{redis_server.port}/0", "exclusive_broker_id"):
        assert words in stranger.log
    for drop in ([], ["--drop"]):
        done = command(other, "locks", "adopt", "--yes", *drop)
        assert (done.returncode, "which run: stop them" in done.stderr) == (1, True), done
    neighbour = other.start_worker("w3", 1, exclusive_prefix="other")
    assert neighbour.process.poll() is None
    alias = other.start_worker("w4", 1, exclusive_broker_id=f"redis://localhost:{redis_server.port}/0")
    assert alias.process.poll() is None


@pytest.fixture(params=["redis", "redis_cluster", "sqlite", "postgres", "maria"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Store]]:
    """Two namespaces in one store, so with one clock."""
    kind, file = request.param, f"sqlite:///{tmp_path / 'locks.db'}"
    url = file if kind == "sqlite" else request.getfixturevalue(f"{kind}_url")
    opened = [open_store(url, prefix=uuid4().hex) for _ in range(2)]
    yield opened
    for store in opened:
        store.close()


@pytest.mark.proves("copy of another system")
def test_a_namespace_without_workers_and_messages_is_free_again(stores: list[Store]) -> None:
    store, _ = stores
    assert store.namespace_owner() == ""
    assert store.keep_namespace("one", LONG) == "one"
    assert store.keep_namespace("two", LONG) == "one"
    assert (store.namespace_owner(), store.namespace_owner(adopts=True)) == ("one", "one")
    assert store.keep_namespace("one", A_MOMENT) == "one"
    eventually(lambda: store.namespace_owner() == "", "no owner")
    eventually(lambda: store.keep_namespace("two", LONG) == "two", "a free namespace")


@pytest.mark.proves("copy of another system")
def test_a_namespace_with_messages_waits_for_its_broker_or_is_adopted(stores: list[Store]) -> None:
    store, empty = stores
    store.apply("x=k", Acquire("a/1", "t", LONG))
    store.apply("x=k", Acquire("b/1", "t", LONG, message=b"message"))
    assert store.keep_namespace("one", LONG) == "one"
    assert store.keep_namespace("two", LONG, adopts=True) == "one"
    for each in stores:
        assert each.keep_namespace("one", A_MOMENT) == "one"
    eventually(lambda: empty.keep_namespace("two", A_MOMENT) == "two", "the moment to be over")
    assert store.keep_namespace("two", LONG) == "one"
    assert (store.namespace_owner(), store.namespace_owner(adopts=True)) == ("one", "")
    assert store.keep_namespace("two", A_MOMENT, adopts=True) == "two"
    store.apply("x=k", Release("a/1", "t"))
    store.apply("x=k", Acquire("b/1", "t", LONG, redelivered=True, message=b"message"))
    eventually(lambda: store.keep_namespace("one", LONG) == "one", "a namespace without messages")


@pytest.mark.promise(
    "A Redis that is broker and store, and has moved or has another name, is no copy: a worker starts "
    "there by itself",
    broke="red before: refused",
)
def test_a_redis_that_has_moved_with_its_queues_belongs_to_the_workers_there(
    make_lab: Callable[..., Lab], redis_server: RedisServer
) -> None:
    lab = make_lab(url=redis_server.url)
    store: Any = lab.app._celery_exclusive.store  # type: ignore[attr-defined]
    store.apply("x=k", Acquire("a/1", "t", LONG))
    store.apply("x=k", Acquire("b/1", "t", LONG, message=b"message"))
    assert store.keep_namespace("redis://older-name/0", A_MOMENT) == "redis://older-name/0"
    with redis_server.client() as client:
        eventually(lambda: not client.exists("cx2:{0}:kept"), "a moment to be over")
    assert lab.start_worker("w1", 1).process.poll() is None
    other_name = f"redis://0.0.0.0:{redis_server.port}/0"
    assert lab.start_worker("w2", 1, broker_url=other_name).stop() == 0


@pytest.mark.proves("unfit store refused")
def test_a_broker_is_known_by_another_name_only_if_all_workers_there_say_so(
    make_lab: Callable[..., Lab], redis_server: RedisServer
) -> None:
    lab = make_lab(url=redis_server.url, exclusive_store=redis_server.url.replace("/0", "/1"))
    services: Any = lab.app._celery_exclusive  # type: ignore[attr-defined]
    keep, broker = services.store.keep_namespace, own_broker(services)
    of_ours = described(services, own_record("ours@web1"))
    assert keep("redis://older-name/0", LONG, of_ours) == keep_namespace(services, broker)
    assert keep("redis://older-name/0", A_MOMENT) == "redis://older-name/0"
    of_another = replace(of_ours, nodename="another@web1", broker="")
    eventually(lambda: keep("redis://elsewhere/0", LONG, of_another) != "redis://older-name/0", "a moment")
    with pytest.raises(OptionError, match="belongs to the workers of broker redis://elsewhere/0"):
        keep_namespace(services, broker)


@pytest.mark.proves("other projects")
@pytest.mark.parametrize("store", ["redis", "postgres"])
def test_a_worker_of_another_project_is_refused_until_it_has_a_prefix_of_its_own(
    request: pytest.FixtureRequest, make_lab: Callable[..., Lab], store: str
) -> None:
    url = request.getfixturevalue(f"{store}_url")
    lab = make_lab(module="tests.worker.shop_project", exclusive_store=url, project="shop")
    lab.start_worker("w1", 1)
    log = refused(lab, "w2", project="billing", task_default_queue="billing").log
    for words in ("worker w1@lab pid", "of app 'shop'", "tasks.digest", "exclusive_prefix = 'billing'"):
        assert words in log
    assert "Traceback" not in log
    other = {"project": "billing", "task_default_queue": "billing", "exclusive_prefix": "billing"}
    lab.start_worker("w3", 1, **other).stop()


@pytest.fixture
def copy(make_lab: Callable[..., Lab], start_redis: Callable[..., RedisServer], tmp_path: Path) -> Lab:
    """Another system with a copy of the database of one whose task runs, and whose next one waits."""
    settings: dict[str, Any] = {"task_acks_late": True, "exclusive_reap_period": 0.2, "exclusive_offer": 0.5}
    original = make_lab(exclusive_store=f"sqlite:///{tmp_path / 'one.db'}", **settings)
    original.start_worker("one", 2)
    original.send("wait", "k", tag="runs", hold=True)
    original.journal.wait_for("start", tag="runs")
    original.send("wait", "k", tag="waits")
    original.wait_for_line(1, "wait", "k")
    with closing(sqlite3.connect(tmp_path / "one.db")) as database:
        database.execute("VACUUM INTO ?", (str(tmp_path / "two.db"),))
    with closing(sqlite3.connect(tmp_path / "two.db")) as database, database:  # a minute later
        database.execute("UPDATE exclusive2_namespace SET broker_until = 1")
    settings["exclusive_store"] = f"sqlite:///{tmp_path / 'two.db'}"
    return make_lab(url=start_redis().url, **settings)


@pytest.mark.promise(
    "A worker does not run the tasks in a copy of another system's database. Where messages are, it "
    "refuses to start at another broker than theirs, however long ago their workers beat, and names "
    "`exclusive_broker_id` and `locks adopt`, which lets it run them, or drops them, but not while their "
    "workers live",
    name="copy of another system",
    broke=(
        "red before on all five stores: the worker started, and the namespace was taken over after a minute"
    ),
)
def test_a_worker_does_not_start_at_a_copy_of_another_systems_tasks_and_says_the_ways_out(copy: Lab) -> None:
    log = refused(copy, "two").log
    for words in ("belongs to the workers of broker redis://", "exclusive_broker_id=", "locks adopt --drop"):
        assert words in log
    assert copy.journal.tags("start") == ["runs"]


@pytest.mark.proves("copy of another system")
def test_a_copy_whose_tasks_were_dropped_runs_its_own(copy: Lab) -> None:
    done = command(copy, "locks", "adopt", "--drop", "--yes")
    assert (done.returncode, "1 of its tasks wait here" in done.stdout) == (0, True), done
    assert command(copy, "locks", "ls").stdout == ""
    copy.start_worker("two", 1)
    assert copy.send("wait", "k", tag="own").get(timeout=60) == "own"
    assert copy.journal.tags("start") == ["runs", "own"]


@pytest.mark.proves("copy of another system")
def test_a_copy_that_was_adopted_runs_the_tasks_that_wait_in_it(copy: Lab) -> None:
    assert command(copy, "locks", "adopt").returncode == 1  # it asks, and nobody answers
    done = command(copy, "locks", "adopt", "--yes")
    assert (done.returncode, "belongs to redis://" in done.stdout) == (0, True), done
    again = command(copy, "locks", "adopt", "--yes")
    assert (again.returncode, "nothing to adopt" in again.stdout) == (0, True), again
    key = copy.task("wait").lock_state("k").key
    command(copy, "locks", "release", "--force", "--reason", "a test", key)
    copy.start_worker("two", 1)
    copy.journal.wait_for("start", tag="waits")


def refused(lab: Lab, name: str, **conf: Any) -> Worker:
    worker = lab.start_worker(name, 1, ready=False, **conf)
    eventually(lambda: worker.process.poll() is not None, "the end of the stranger")
    assert worker.process.returncode != 0
    return worker
