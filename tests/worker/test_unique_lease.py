"""`self.lease` of a task with `unique=` alone: the lease of its unique key, while its body runs."""

from __future__ import annotations

import pytest

from tests.proxy import Proxy
from tests.servers import RedisServer
from tests.worker.lab import eventually
from tests.worker.stage import Stage, on_stages
from tests.worker.trouble import RELEASE

pytestmark = pytest.mark.proves("lease of a unique task")

SHOP = "tests.worker.shop_fenced"
DEADLINE = 60
EVERYWHERE = on_stages("prefork", "threads", "gevent", "solo", brokers=("redis",), lates=(True,))
ONCE = on_stages("prefork", brokers=("redis",), lates=(True,))


@EVERYWHERE
def test_a_unique_task_can_check_its_lease_and_its_fence_grows_from_run_to_run(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab)
    for number in range(2):
        assert lab.send("save_once", "k", tag=str(number), check=True).get(timeout=DEADLINE) == str(number)
    fences = [event["fence"] for event in lab.journal.events("start")]
    assert fences == sorted(set(fences))
    assert lab.journal.tags("written") == ["0", "1"]


@ONCE
def test_a_retry_inherits_the_fence_with_the_unique_lease_which_counts_as_no_loss(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    worker = stage.start_worker(lab)
    assert lab.send("save_twice", "k", tag="t", check=True).get(timeout=DEADLINE) == "t"
    first, second = lab.journal.events("start")
    assert first["fence"] == second["fence"]
    assert lab.journal.tags("written") == ["t", "t"]
    stage.assert_nothing_is_left(lab)
    assert "lost its lease" not in worker.log


@ONCE
def test_the_lease_of_a_run_with_both_options_is_the_lease_of_its_lock(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab)
    lab.send("save_both", "k", tag="t").get(timeout=DEADLINE)
    (seen,) = lab.journal.events("lease")
    assert seen["key"].startswith("x:")


@ONCE
@pytest.mark.parametrize("name", ["started", "seldom"])
def test_a_unique_task_whose_key_is_not_held_until_it_has_finished_has_no_lease(
    stage: Stage, name: str
) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab)
    lab.send(name, "k", tag="t").get(timeout=DEADLINE)
    (told,) = lab.journal.events("no lease")
    assert f"shop_fenced.{name} holds no lease" in told["error"]
    assert "unique=Unique(...) until 'finished'" in told["error"]


@ONCE
def test_when_the_body_has_ended_the_lease_of_a_unique_task_is_over(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    worker = stage.start_worker(lab)
    lab.send("late", "k", tag="t").get(timeout=DEADLINE)
    (told,) = lab.journal.wait_for("over")
    assert "is over: it was lost before, or released when its body ended" in told["error"]
    stage.assert_nothing_is_left(lab)
    assert "lost its lease" not in worker.log


@ONCE
def test_a_unique_release_whose_reply_is_lost_is_no_lost_lease(
    stage: Stage, proxy: Proxy, store: RedisServer
) -> None:
    """Lost once, it is repeated by the connection; lost twice, at the end of the run."""
    lab = stage.make_lab(SHOP, exclusive_store=f"redis://127.0.0.1:{proxy.port}/0?socket_timeout=1")
    worker = stage.start_worker(lab)
    for times in (1, 2):
        tag = str(times)
        result = lab.send("save_once", "k", tag=tag, hold=True)
        lab.journal.wait_for("start", tag=tag)
        proxy.lose(RELEASE, times)
        lab.open(tag)
        assert result.get(timeout=DEADLINE) == tag
        eventually(lambda: lab.task("save_once").lock_state("k").unique_holder is None, "a free key")
    assert lab.send("save_once", "k", tag="last").get(timeout=DEADLINE) == "last"
    with store.client() as client:
        stage.assert_nothing_is_left(lab, client)
    assert proxy.met == [RELEASE] * 3
    assert "lost its lease" not in worker.log
