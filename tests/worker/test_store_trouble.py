"""The network to the store is cut, slow, or silent one way: tasks wait, run once, and keep their results."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.proxy import Proxy
from tests.servers import RedisServer
from tests.worker.journal import eventually
from tests.worker.lab import Lab
from tests.worker.message import stop_consuming
from tests.worker.stage import Stage, on_stages
from tests.worker.trouble import (
    HEARTBEAT,
    REAPER,
    TROUBLES,
    assert_all_is_well,
    assert_nobody_ran_twice_and_nothing_is_left,
    begun,
    hold,
    lapse,
    make_lab,
    over,
)

pytestmark = pytest.mark.proves("Redis drills")

DEADLINE = 90


@pytest.mark.promise(
    "A worker does not start while the store does not answer, and says why",
    broke="it starts all the same; no timeout for answers",
)
@pytest.mark.parametrize("trouble", ["cut", "half open"])
def test_a_worker_does_not_start_while_the_store_does_not_answer_and_says_why(
    make_lab: Callable[..., Lab], proxy: Proxy, trouble: str
) -> None:
    url = f"redis://127.0.0.1:{proxy.port}/0"
    lab = make_lab(exclusive_store=f"{url}?socket_timeout=1")
    TROUBLES[trouble](proxy)
    worker = lab.start_worker(ready=False)
    assert worker.process.wait(DEADLINE) != 0
    assert f"the worker does not start: store {url} does not answer" in worker.log
    assert "check that it runs and that its URL is right" in worker.log


@pytest.mark.promise(
    "A store that is down, or restarted, loses nothing that it kept",
    name="store outage loses nothing",
    broke="a message that is rejected without requeue when the store stays down",
)
@pytest.mark.promise(
    "While the network to the store is cut, deaf, mute or half open, tasks wait and run once; the outage "
    "is reported once when it begins and once when it ends",
    broke="no patience; reported at every failure",
)
@on_stages("prefork", brokers=("redis",))
def test_tasks_wait_for_the_store_and_run_once_after_each_trouble_of_the_network(
    stage: Stage, proxy: Proxy, store: RedisServer
) -> None:
    lab = make_lab(stage, proxy, exclusive_ttl=6)
    worker = stage.start_worker(lab)
    for number, (name, trouble) in enumerate(TROUBLES.items(), 1):
        trouble(proxy)
        results = [lab.send("wait", "k", tag=f"{name} {n}") for n in range(3)]
        worker.wait_for_log(f"[{results[0].id}] waits for its lock's store")
        eventually(lambda n=number: begun(worker, HEARTBEAT) == begun(worker, REAPER) == n, "both to notice")
        if name != "cut":
            before = proxy.accepted
            eventually(lambda n=before: proxy.accepted > n + 5, "more attempts")
        assert not [tag for tag in lab.journal.tags() if tag.startswith(name)]
        proxy.restore()
        assert [result.get(timeout=DEADLINE) for result in results] == [f"{name} {n}" for n in range(3)]
        eventually(lambda n=number: over(worker, HEARTBEAT) == over(worker, REAPER) == n, "both to go on")
    assert begun(worker, HEARTBEAT) == begun(worker, REAPER) == len(TROUBLES)  # once each, not every second
    assert_all_is_well(stage, lab, store)


@pytest.mark.promise(
    "A slow store only makes things slower",
    broke="0.3 s for an answer, whatever the URL says",
)
@on_stages("prefork", "gevent", brokers=("redis",), lates=(True,))
def test_a_slow_store_only_makes_things_slower(stage: Stage, proxy: Proxy, store: RedisServer) -> None:
    lab = make_lab(stage, proxy, timeout=10)
    worker = stage.start_worker(lab)
    proxy.delay(0.2)
    holder = hold(lab, "wait")
    first = lab.send("wait", "k", tag="first")
    worker.wait_for_log(f"[{first.id}] parked: number 1 in line")
    second = lab.send("wait", "k", tag="second")
    worker.wait_for_log(f"[{second.id}] parked: number 2 in line")
    lab.open("holder")
    assert [result.get(timeout=DEADLINE) for result in (holder, first, second)] == [
        "holder",
        "first",
        "second",
    ]
    proxy.restore()
    assert lab.journal.tags() == ["holder", "first", "second"]
    for trouble in ("cannot", "could not", "failed; retrying"):
        assert trouble not in worker.log
    assert_all_is_well(stage, lab, store)


@pytest.mark.promise(
    "A body outlives a store that is unreachable for less than `ttl`, and gets `LeaseLost` after more",
    name="unreachable during a body",
    broke=(
        "a heartbeat that ends with its first error; a `check()` that never raises; a loss that is not "
        "reported"
    ),
)
@on_stages("prefork", brokers=("redis",))
def test_a_body_outlives_a_store_that_is_down_for_less_than_its_ttl(
    stage: Stage, proxy: Proxy, store: RedisServer
) -> None:
    lab = make_lab(stage, proxy, exclusive_ttl=2)
    worker = stage.start_worker(lab)
    holder = hold(lab, "patient", check=True)
    waiting = lab.send("patient", "k", tag="next")
    lab.wait_for_line(1, "patient", "k")
    for number, trouble in enumerate(("cut", "deaf", "mute"), 1):
        TROUBLES[trouble](proxy)
        eventually(lambda n=number: begun(worker, HEARTBEAT) >= n, "the heartbeat to notice")
        proxy.restore()
        eventually(lambda: over(worker, HEARTBEAT) == begun(worker, HEARTBEAT), "the heartbeat to go on")
    lab.open("holder")
    assert [result.get(timeout=DEADLINE) for result in (holder, waiting)] == ["holder", "next"]
    assert "lost its lease" not in worker.log
    assert_all_is_well(stage, lab, store)


@pytest.mark.promise(
    "A store that restarts with its data has forgotten neither holder nor line",
    broke="each restart taken for a loss of data",
)
@on_stages("prefork", "threads", "gevent", brokers=("redis",), lates=(True,))
def test_a_store_that_restarts_with_its_data_has_forgotten_neither_holder_nor_line(
    stage: Stage, store: RedisServer
) -> None:
    lab = stage.make_lab("tests.worker.shop_trouble", exclusive_store=store.url, exclusive_ttl=2)
    worker = stage.start_worker(lab)
    holder = hold(lab, "patient", check=True)
    waiting = lab.send("patient", "k", tag="next")
    lab.wait_for_line(1, "patient", "k")
    store.kill()
    worker.wait_for_log(f"] {HEARTBEAT} failed; retrying: ")
    store.restart()
    worker.wait_for_log(f"] {HEARTBEAT} recovered after")
    assert lab.waiting("patient", "k") == 1
    lab.open("holder")
    assert [result.get(timeout=DEADLINE) for result in (holder, waiting)] == ["holder", "next"]
    assert "has lost its data" not in worker.log
    assert_all_is_well(stage, lab, store)
    (end,), (start,) = lab.journal.events("end", tag="holder"), lab.journal.events("start", tag="next")
    stage.note("store-restarted", end["at"], start["at"])


@pytest.mark.proves("unreachable during a body")
@on_stages("prefork", "threads", "gevent", brokers=("redis",), lates=(True,))
def test_a_body_that_outlasts_its_lease_gets_lease_lost_before_another_one_starts(
    stage: Stage, proxy: Proxy, store: RedisServer
) -> None:
    """One worker loses its way to the store, and another one does not."""
    lab = make_lab(stage, proxy, exclusive_ttl=9)
    away = stage.start_worker(lab, "away")
    holder = lab.send("watch", "k", tag="holder", until_lost=True)
    (first,) = lab.journal.wait_for("start", tag="holder")
    waiting = lab.send("watch", "k", tag="next", hold=True)
    lab.wait_for_line(1, "watch", "k")
    key = lab.task("watch").lock_state("k").key
    stop_consuming(lab, away, "lab")
    stage.start_worker(lab, "near", exclusive_store=store.url)
    proxy.cut()
    lapses = lapse(store, key)
    (lost,) = lab.journal.wait_for("lost", tag="holder")
    assert "cannot be confirmed" in lost["why"]
    (second,) = lab.journal.wait_for("start", tag="next")
    assert second["at"] >= lapses
    assert second["fence"] > first["fence"]
    proxy.restore()
    lab.open("holder")
    (told,) = lab.journal.wait_for("lost again", tag="holder")
    assert "is lost: not renewed for 9 s" in told["why"]
    assert holder.get(timeout=DEADLINE) == "holder"
    away.wait_for_log(f"[{holder.id}] lost its lease on lock")
    assert [owner.task_id for owner in lab.task("watch").lock_state("k").holders] == [waiting.id]
    lab.open("next")
    assert waiting.get(timeout=DEADLINE) == "next"
    assert_nobody_ran_twice_and_nothing_is_left(stage, lab, store)


def stop_while_the_store_is_away(stage: Stage, proxy: Proxy, **conf: object) -> tuple[Lab, list[Any]]:
    """Stop a worker whose tasks wait for the store for as long as any test lasts; return these tasks.

    The store may have granted leases without an answer: these end by their ttl.
    """
    lab = make_lab(stage, proxy, exclusive_store_wait=600, exclusive_ttl=15, **conf)
    worker = stage.start_worker(lab, "goes")
    proxy.drop(replies=True)
    results = [lab.send("wait", f"k{n}", tag=f"{n}") for n in range(5)]
    worker.wait_for_log("waits for its lock's store")
    assert worker.stop(DEADLINE) == 0
    assert lab.journal.tags() == []
    return lab, results


def assert_they_run_elsewhere(
    stage: Stage, proxy: Proxy, store: RedisServer, lab: Lab, results: list[Any]
) -> None:
    proxy.restore()
    stage.start_worker(lab, "other")
    assert [result.get(timeout=DEADLINE) for result in results] == list("01234")
    assert_nobody_ran_twice_and_nothing_is_left(stage, lab, store)


@pytest.mark.promise(
    "A worker that stops requeues the tasks that wait for the store, in every pool, with both ways to "
    "acknowledge; each runs once elsewhere, and never without its lease",
    name="stopping worker without its store",
    broke=(
        "red before: it waited for all of `exclusive_store_wait` (66 to 71 s until the worker had ended); "
        "`allow` ran the body. Celery's flag read as a truth value (0 is its exit code)"
    ),
)
@on_stages("prefork", "threads", "gevent", "solo", late_only=("rabbitmq",))
def test_a_worker_that_stops_gives_back_what_waits_for_the_store_and_it_runs_once_elsewhere(
    stage: Stage, proxy: Proxy, store: RedisServer
) -> None:
    lab, results = stop_while_the_store_is_away(stage, proxy)
    assert_they_run_elsewhere(stage, proxy, store, lab, results)


@pytest.mark.proves("stopping worker without its store")
@on_stages("prefork", brokers=("redis",))
def test_a_worker_that_stops_begins_no_task_without_its_lease(
    stage: Stage, proxy: Proxy, store: RedisServer
) -> None:
    lab, results = stop_while_the_store_is_away(stage, proxy, exclusive_on_store_error="allow")
    assert_they_run_elsewhere(stage, proxy, store, lab, results)


@pytest.mark.promise("`release` never raises after successful work", broke="a release that fails raises")
@pytest.mark.promise(
    "A store that is unreachable at a release changes no result. What could not be released is released "
    "when the store answers: the next task starts, and the finished one does not run again",
    name="unreachable at a release",
    broke="not owed; owed for one more try; owed as not done; a failed release stays first",
)
@on_stages("prefork", late_only=("rabbitmq",))
def test_a_store_that_is_down_at_the_release_leaves_results_alone_and_the_next_starts_when_it_is_back(
    stage: Stage, proxy: Proxy, store: RedisServer
) -> None:
    lab = make_lab(stage, proxy, exclusive_ttl=600)
    worker = stage.start_worker(lab)
    holder = hold(lab, "wait")
    waiting = [lab.send("wait", "k", tag=tag) for tag in ("next", "last")]
    lab.wait_for_line(2, "wait", "k")
    key = lab.task("wait").lock_state("k").key
    proxy.cut()
    lab.open("holder")
    assert holder.get(timeout=DEADLINE) == "holder"
    worker.wait_for_log(f"task {holder.id} could not release lock {key}; the release is retried")
    restored = time.monotonic_ns()
    proxy.restore()
    assert {result.get(timeout=DEADLINE) for result in waiting} == {"next", "last"}
    start = lab.journal.events("start")[1]
    assert holder.state == "SUCCESS"
    assert "raised" not in worker.log
    assert_all_is_well(stage, lab, store)
    stage.note("store-away-at-release", restored, start["at"])
