"""What becomes of a task for which the store does not answer: it goes back, or runs without a lease."""

from __future__ import annotations

import pytest

from tests.proxy import Proxy
from tests.servers import RedisServer
from tests.worker.lab import Lab
from tests.worker.stage import Stage, on_stages
from tests.worker.trouble import ACQUIRE, MESSAGE, assert_nobody_ran_twice_and_nothing_is_left
from tests.worker.versions import leave_out_before
from tests.worker.watcher import SENDS_EVENTS, Watcher

DEADLINE = 90
ALWAYS = 1000
LOCK = "x=guard:k"
UNGUARDED = f"runs without lock {LOCK}, as on_store_error='allow' says, and another task may run"


def make_lab(stage: Stage, proxy: Proxy, **conf: object) -> Lab:
    url = f"redis://127.0.0.1:{proxy.port}/0?socket_timeout=0.5"
    return stage.make_lab(
        "tests.worker.shop_guard", exclusive_store=url, exclusive_ttl=600, exclusive_store_wait=1, **conf
    )


@pytest.mark.promise(
    "`on_store_error`: a task is requeued, or runs without a lease, loud in log and event",
    name="on_store_error",
    broke=(
        "a setting stronger than the option; the option ignored, by worker and `apply()`; no event; "
        "nothing released; asked to wait in line all the same"
    ),
)
@pytest.mark.proves("store outage loses nothing")
@on_stages("prefork", brokers=("redis",))
def test_a_task_whose_store_is_down_goes_back_to_the_broker_unless_option_or_setting_say_otherwise(
    stage: Stage, proxy: Proxy, store: RedisServer
) -> None:
    """The option of a task is stronger than the setting."""
    lab = make_lab(stage, proxy)
    for setting, name in (("raise", "unsaid"), ("allow", "refused")):
        worker = stage.start_worker(
            lab, f"w-{setting}", exclusive_on_store_error=setting, options=SENDS_EVENTS
        )
        with Watcher(lab, worker) as watcher:
            proxy.cut()
            result, *others = [lab.send(name, "k", tag=f"{name} {n}") for n in range(3)]
            (event, *_) = watcher.wait_for("lock-message-requeued", uuid=result.id)
        assert (event["name"], event["lock"]) == (lab.task(name).name, LOCK)
        assert event["reason"] == "store_down"
        assert "does not answer" in event["error"]
        assert "ERROR" in worker.wait_for_log(f"[{result.id}] goes back to the broker")
        assert not [tag for tag in lab.journal.tags() if tag.startswith(name)]
        proxy.restore()
        assert all(one.get(timeout=DEADLINE).startswith("fence ") for one in (result, *others))
        assert UNGUARDED not in worker.log
        assert worker.stop() == 0
    assert_nobody_ran_twice_and_nothing_is_left(stage, lab, store)


@pytest.mark.proves("on_store_error")
@on_stages("prefork", "threads", "gevent", "solo", brokers=("redis",), lates=(True,))
def test_a_task_whose_store_is_down_runs_without_a_lease_where_allowed_and_logs_it(
    stage: Stage, proxy: Proxy, store: RedisServer
) -> None:
    if stage.pool == "gevent":
        leave_out_before("5.5", "a warm shutdown of gevent that gives no finished task back")
    lab = make_lab(stage, proxy)
    cases = {"raise": ["allowed", "allowed_skip"], "allow": ["unsaid"]}
    for setting in cases if stage.pool == "prefork" else ("raise",):
        worker = stage.start_worker(
            lab, f"w-{setting}", exclusive_on_store_error=setting, options=SENDS_EVENTS
        )
        with Watcher(lab, worker) as watcher:
            proxy.cut()
            results = {name: lab.send(name, "k", tag=name) for name in cases[setting]}
            for name, result in results.items():
                assert "runs without a lease" in result.get(timeout=DEADLINE)
                (event,) = watcher.wait_for("lock-without-lease", uuid=result.id)
                assert (event["name"], event["lock"]) == (lab.task(name).name, LOCK)
                assert event["reason"] == "store_down"
                assert "does not answer" in event["error"]
                assert "ERROR" in worker.wait_for_log(f"[{result.id}] {UNGUARDED}")
            proxy.restore()
        after = lab.send(cases[setting][0], "k", tag=f"{setting} after")
        assert after.get(timeout=DEADLINE).startswith("fence ")
        assert "goes back" not in worker.log
        assert worker.stop() == 0
    assert_nobody_ran_twice_and_nothing_is_left(stage, lab, store)


@pytest.mark.proves("on_store_error")
@on_stages("prefork", brokers=("redis",))
def test_a_run_without_a_lease_gives_back_what_it_got_by_a_call_without_an_answer(
    stage: Stage, proxy: Proxy, store: RedisServer
) -> None:
    lab = make_lab(stage, proxy)
    worker = stage.start_worker(lab)
    proxy.lose(ACQUIRE, ALWAYS)
    first = lab.send("allowed", "k", tag="granted", hold=True)
    lab.journal.wait_for("start", tag="granted")
    proxy.restore()
    second = lab.send("allowed", "k", tag="parked", hold=True)
    worker.wait_for_log(
        f"[{second.id}] parked: number 1 in line for lock {LOCK} (key='k') held by {first.id}"
    )
    lab.open("granted")
    lab.journal.wait_for("start", tag="parked")
    proxy.lose(ACQUIRE, ALWAYS)
    third = lab.send("allowed", "k", tag="beside")
    assert "runs without a lease" in third.get(timeout=DEADLINE)
    proxy.restore()
    worker.wait_for_log(f"[{third.id}] succeeded")
    lab.open("parked")
    assert second.get(timeout=DEADLINE).startswith("fence ")
    assert lab.send("allowed", "k", tag="last").get(timeout=DEADLINE).startswith("fence ")
    assert_nobody_ran_twice_and_nothing_is_left(stage, lab, store)


@pytest.mark.promise(
    "A task that may be in line does not run without a lease",
    broke="a task that has asked to wait in line may; a promoted one may",
)
@on_stages("prefork", brokers=("redis",))
def test_a_task_that_may_be_in_line_does_not_run_without_a_lease(
    stage: Stage, proxy: Proxy, store: RedisServer
) -> None:
    """Its copy there would be the next one to run."""
    lab = make_lab(stage, proxy, exclusive_recover=False)
    worker = stage.start_worker(lab, slots=3)
    first = lab.send("allowed", "k", tag="first", hold=True)
    lab.journal.wait_for("start", tag="first")
    proxy.lose(MESSAGE, ALWAYS)
    second = lab.send("allowed", "k", tag="second", hold=True)
    worker.wait_for_log(f"[{second.id}] goes back to the broker")
    proxy.restore()
    lab.open("first")
    assert first.get(timeout=DEADLINE).startswith("fence ")
    lab.journal.wait_for("start", tag="second")
    third = lab.send("allowed", "k", tag="third")
    worker.wait_for_log(f"[{third.id}] parked: ")
    proxy.lose(ACQUIRE, ALWAYS)
    lab.open("second")
    assert second.get(timeout=DEADLINE).startswith("fence ")
    worker.wait_for_log(f"[{third.id}] goes back to the broker")
    proxy.restore()
    assert third.get(timeout=DEADLINE).startswith("fence ")
    assert UNGUARDED not in worker.log
    assert_nobody_ran_twice_and_nothing_is_left(stage, lab, store)
