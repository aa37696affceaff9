"""The store's primary dies, and its sentinels promote a replica: bodies keep their leases, who waits runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import or_leave_out
from tests.failover import Watched
from tests.worker.stage import Stage, on_stages
from tests.worker.trouble import hold

DEADLINE = 90


@pytest.fixture
def watched() -> Iterator[Watched]:
    """Its primary is not called down for a moment because the machine is busy."""
    with or_leave_out(lambda: Watched(down_after=3)) as servers:
        yield servers


@pytest.mark.proves("lagging replica")
@on_stages("prefork", brokers=("redis",), lates=(True,))
def test_after_a_failover_bodies_have_their_leases_and_tasks_that_wait_run(
    stage: Stage, watched: Watched
) -> None:
    lab = stage.make_lab("tests.worker.shop_trouble", exclusive_store=watched.url, exclusive_ttl=9)
    worker = stage.start_worker(lab, slots=6)
    holder = hold(lab, "patient", check=True)
    waiting = [lab.send("patient", "k", tag=f"waiting {number}") for number in range(2)]
    lab.wait_for_line(2, "patient", "k")
    watched.catch_up()
    watched.primary.server.stop_replication()
    lost = lab.send("patient", "l", tag="lost", hold=True, check=True)
    lab.journal.wait_for("start", tag="lost")
    primary = watched.fail_over()
    worker.wait_for_log("2 of this worker's leases were restored")
    behind = lab.send("patient", "l", tag="behind")
    lab.wait_for_line(1, "patient", "l")
    lab.open("holder", "lost")
    results = [holder, *waiting, lost, behind]
    assert [result.get(timeout=DEADLINE) for result in results] == [
        "holder",
        "waiting 0",
        "waiting 1",
        "lost",
        "behind",
    ]
    assert sorted(lab.journal.tags()) == ["behind", "holder", "lost", "waiting 0", "waiting 1"]
    assert lab.journal.most_open(key="k") == lab.journal.most_open(key="l") == 1
    assert "lost its lease" not in worker.log
    assert worker.log.count("has lost its data") == 1
    with primary.server.client() as client:
        stage.assert_nothing_is_left(lab, client)
