"""Many keys whose holders died at once: one sweep after the other, until all who wait are woken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery.utils.functional import noop

from celery_exclusive import Exclusive
from celery_exclusive.core.operations import AcquireAlone
from celery_exclusive.core.records import SECOND
from celery_exclusive.stores.base import Reply, Store
from celery_exclusive.worker.reaper import Reaper
from tests.servers import RedisServer
from tests.worker.lab import Lab
from tests.worker.line import park_published

LIFE = 600 * SECOND
DEAD = ("dead/1", "token of the dead")


@pytest.fixture(params=["redis", "sqlite", "postgres", pytest.param("maria", marks=pytest.mark.large)])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    if request.param in ("postgres", "maria"):
        return {"exclusive_store": request.getfixturevalue(f"{request.param}_url")}
    return {"exclusive_store": f"sqlite:///{tmp_path}/locks.db"} if request.param == "sqlite" else {}


def let_holders_die(lab: Lab, count: int) -> list[str]:
    """One task waits at each of so many keys, whose holder is dead; return the tasks' tags."""
    tags = [f"{number}" for number in range(count)]
    for tag in tags:
        lab.send("wait", f"key {tag}", tag=tag, options={"exclusive": Exclusive("key", order="arrived")})

    def behind_who_dies(store: Store, key: str, park: Callable[[], None]) -> None:
        store.apply(key, AcquireAlone(*DEAD, LIFE))
        park()
        store.apply(key, AcquireAlone(*DEAD, 1))

    park_published(lab, behind_who_dies)
    return tags


@contextmanager
def watched(lab: Lab) -> Iterator[list[tuple[int, Reply]]]:
    """The sweeps, each with how many messages were in the queue when it began."""
    store = lab.app._celery_exclusive.store._store  # type: ignore[attr-defined]
    sweeps: list[tuple[int, Reply]] = []
    reap = store.reap

    def watch(*args: Any, **kwargs: Any) -> Reply:
        in_queue = int(lab.doors.llen("lab"))
        reply: Reply = reap(*args, **kwargs)
        sweeps.append((in_queue, reply))
        return reply

    store.reap = watch
    yield sweeps
    del store.reap


@pytest.mark.promise(
    "However many keys wait for the reaper, one worker sweeps them at once: a full sweep is followed by "
    "the next when its messages are published. A broker that blocks does not stop the sweeps. In a "
    "database each key is a transaction of its own",
    name="sweeps",
    broke=(
        "one sweep per period (100 keys a second); the next before its messages are published; a wait of "
        "40 s; `more` is held to what was due by the differential test"
    ),
)
@pytest.mark.proves("workers on other stores")
def test_three_hundred_dead_holders_are_dealt_with_in_one_turn_of_the_reaper(
    make_lab: Callable[..., Lab], settings: dict[str, Any]
) -> None:
    lab = make_lab(task_acks_late=True, exclusive_offer=60, **settings)
    tags = let_holders_die(lab, 300)
    with watched(lab) as sweeps:
        Reaper(lab.app._celery_exclusive, noop).sweep()  # type: ignore[attr-defined]
    # Each full one is followed by the next, when what it has woken is published.
    assert [in_queue for in_queue, _ in sweeps] == list(range(0, 300, 100))
    assert [reply.more for _, reply in sweeps] == [True] * 2 + [False]
    lab.start_worker(concurrency=4)
    lab.journal.wait_for("end", len(tags), timeout=200)
    assert sorted(lab.journal.tags()) == sorted(tags)


@pytest.mark.proves("sweeps")
def test_of_two_workers_one_sweeps_while_the_other_leaves_it_to_it(
    make_lab: Callable[..., Lab], settings: dict[str, Any]
) -> None:
    lab = make_lab(exclusive_reap_period=1000, exclusive_offer=60, **settings)
    let_holders_die(lab, 150)
    services: Any = lab.app._celery_exclusive  # type: ignore[attr-defined]
    one, other = Reaper(services, noop), Reaper(services, noop)
    with watched(lab) as sweeps:
        one.sweep()
        other.sweep()
    assert [len(reply.wake) for _, reply in sweeps] == [100, 50, 0]
    services.courier.close()
    assert int(lab.doors.llen("lab")) == 150


@pytest.mark.proves("sweeps")
def test_a_broker_that_blocks_does_not_stop_the_sweeps(
    make_lab: Callable[..., Lab], start_redis: Callable[..., RedisServer], tmp_path: Path
) -> None:
    server = start_redis()
    lab = make_lab(server.url, exclusive_store=f"sqlite:///{tmp_path}/locks.db", exclusive_offer=0.2)
    let_holders_die(lab, 250)
    services: Any = lab.app._celery_exclusive  # type: ignore[attr-defined]
    server.pause()
    try:
        Reaper(services, noop).sweep()
    finally:
        server.resume()
    assert all(not services.store.inspect(key).holders for key in services.store.scan())
    services.courier.close()
