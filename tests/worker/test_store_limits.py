"""A store that does not answer, and a time limit that runs meanwhile."""

from __future__ import annotations

import pytest

from tests.proxy import Proxy
from tests.servers import RedisServer
from tests.worker.lab import Lab
from tests.worker.stage import Stage, on_stages
from tests.worker.trouble import TROUBLES, assert_all_is_well, hold, make_lab

DEADLINE = 90
LIMIT = {"time_limit": 20}
HIT = "Hard time limit (20s) exceeded"


def make_patient_lab(stage: Stage, proxy: Proxy, **conf: object) -> Lab:
    """A call of the store by itself would wait for longer than any limit."""
    return make_lab(stage, proxy, timeout=60, exclusive_ttl=600, exclusive_store_wait=60, **conf)


@pytest.mark.promise(
    "A mute store does not let a hard limit end what has ended or what has not begun",
    name="mute store and hard limit",
    broke="calls as long as the store's timeout, at the end and at the start",
)
@on_stages("prefork", brokers=("redis",))
def test_a_hard_limit_does_not_end_what_has_ended_but_could_not_give_back_its_lease(
    stage: Stage, proxy: Proxy, store: RedisServer
) -> None:
    lab = make_patient_lab(stage, proxy, task_acks_on_failure_or_timeout=False)
    worker = stage.start_worker(lab)
    holder = hold(lab, "wait", options=LIMIT)
    waiting = lab.send("wait", "k", tag="next")
    lab.wait_for_line(1, "wait", "k")
    TROUBLES["mute"](proxy)
    lab.open("holder")
    assert holder.get(timeout=DEADLINE) == "holder"
    worker.wait_for_log(f"task {holder.id} could not release lock")
    proxy.restore()
    assert waiting.get(timeout=DEADLINE) == "next"
    assert HIT not in worker.log
    assert_all_is_well(stage, lab, store)


@pytest.mark.proves("mute store and hard limit")
@on_stages("prefork", brokers=("redis",))
def test_a_hard_limit_does_not_end_what_has_not_begun(stage: Stage, proxy: Proxy, store: RedisServer) -> None:
    lab = make_patient_lab(stage, proxy)
    worker = stage.start_worker(lab)
    TROUBLES["mute"](proxy)
    result = lab.send("wait", "k", tag="only", options=LIMIT)
    worker.wait_for_log(f"[{result.id}] goes back to the broker")
    proxy.restore()
    assert result.get(timeout=DEADLINE) == "only"
    assert HIT not in worker.log
    assert_all_is_well(stage, lab, store)
