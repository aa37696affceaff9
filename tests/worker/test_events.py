"""Events are sent while somebody listens, whenever a monitor begins or ends that."""

from __future__ import annotations

import pytest

from tests.servers import RedisServer
from tests.worker.lab import Lab, Worker
from tests.worker.stage import Stage, on_stages
from tests.worker.trouble import lose
from tests.worker.watcher import Watcher


def switch(lab: Lab, worker: Worker, command: str) -> None:
    """As Flower does, and `celery control enable_events`."""
    (answer,) = lab.app.control.broadcast(command, destination=[worker.name], reply=True, timeout=60, limit=1)
    assert "ok" in answer[worker.name], answer


@pytest.mark.promise(
    "Events are sent while a monitor listens: switched on and off at run time, in every pool, by children "
    "that were spawned, too",
    name="events while a monitor listens",
    broke="asked at the start alone; children are not told; told once for all",
)
@on_stages("prefork", "threads", "gevent", "solo", brokers=("redis",), lates=(True,))
def test_events_that_are_switched_on_and_off_at_run_time_are_sent_while_they_are_on(stage: Stage) -> None:
    lab = stage.make_lab("tests.worker.shop_leaks")
    worker = stage.start_worker(lab)
    with Watcher(lab, worker) as watcher:
        seen_by_nobody = [lose(lab, worker, "before")]
        switch(lab, worker, "enable_events")
        first = lose(lab, worker, "listened to")
        (event,) = watcher.wait_for("lock-lost", uuid=first)
        assert event["hostname"] == worker.name
        switch(lab, worker, "disable_events")
        seen_by_nobody.append(lose(lab, worker, "after"))
        switch(lab, worker, "enable_events")
        watcher.wait_for("lock-lost", uuid=lose(lab, worker, "listened to again"))
        assert not [event for id in seen_by_nobody for event in watcher.events("lock-lost", uuid=id)]


@pytest.mark.proves("events while a monitor listens")
@on_stages("prefork", brokers=("redis",), lates=(True,))
def test_the_main_process_sends_its_events_only_while_a_monitor_listens(
    stage: Stage, store: RedisServer
) -> None:
    lab = stage.make_lab("tests.worker.shop_leaks", exclusive_store=store.url, exclusive_ttl=1)
    worker = stage.start_worker(lab)
    with Watcher(lab, worker) as watcher, store.client() as client:
        client.flushall()
        worker.wait_for_log("has lost its data")
        switch(lab, worker, "enable_events")
        client.flushall()
        events = watcher.wait_for("lock-data-lost")
        assert len(events) == 1
