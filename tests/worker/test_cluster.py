"""Workers whose locks are in a Redis Cluster: on each node somebody runs, and somebody waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster import RedisCluster, slot_of
from tests.servers import RedisServer, wait_until
from tests.worker.lab import Lab, Worker, eventually

pytestmark = pytest.mark.xdist_group("redis-cluster")
DEADLINE = 90
Results = dict[str, Any]


@pytest.fixture
def lab(make_lab: Callable[..., Lab], cluster: RedisCluster) -> Lab:
    return make_lab(
        task_acks_late=True,
        exclusive_ttl=3,
        exclusive_store=f"{cluster.url}?socket_timeout=30",
        broker_transport_options={"visibility_timeout": 3600},
    )


def owner(lab: Lab, cluster: RedisCluster, argument: str) -> RedisServer:
    """The node that has the lock of this argument."""
    return cluster.owner(slot_of(lab.task("wait").lock_state(argument).key))


def hold_on_each(lab: Lab, cluster: RedisCluster) -> tuple[Worker, Results]:
    """On each node one task runs, with tag "k runs", and one waits for it, with tag "k waits"."""
    arguments = [f"k{number}" for number in range(50)]
    nodes = [owner(lab, cluster, argument) for argument in arguments]
    keys = [arguments[nodes.index(node)] for node in cluster.primaries()]
    worker = lab.start_worker("first", 4)  # one child parks who waits
    results = {f"{key} runs": lab.send("wait", key, tag=f"{key} runs", hold=True) for key in keys}
    lab.journal.wait_for("start", 3)
    for key in keys:
        results[f"{key} waits"] = lab.send("wait", key, tag=f"{key} waits")
        lab.wait_for_line(1, "wait", key)
    return worker, results


def finish(lab: Lab, results: Results) -> None:
    """All end, none beside another of its key."""
    lab.open(*results)
    for tag, result in results.items():
        assert result.get(timeout=DEADLINE) == tag
    for key in {tag.partition(" ")[0] for tag in results}:
        assert lab.journal.most_open(key=key) == 1
    store = lab.app._celery_exclusive.store  # type: ignore[attr-defined]
    eventually(lambda: not list(store.scan()), "no lock")


@pytest.mark.proves("cluster failover")
def test_tasks_of_a_killed_worker_and_waiting_tasks_run_on_every_node(
    lab: Lab, cluster: RedisCluster
) -> None:
    doomed, results = hold_on_each(lab, cluster)
    lab.start_worker("second", 4)
    doomed.kill()
    for tag in results:
        lab.open(tag)
    running = [tag for tag in results if tag.endswith("runs")]
    for tag in results:
        assert results[tag].get(timeout=DEADLINE) == tag
    tags = lab.journal.tags()
    assert sorted(tags) == sorted([*results, *running])


@pytest.mark.proves("cluster failover")
def test_tasks_run_and_wait_on_while_a_replica_takes_over_from_a_killed_primary(
    lab: Lab, cluster: RedisCluster
) -> None:
    worker, results = hold_on_each(lab, cluster)
    doomed = cluster.primaries()[0]
    cluster.replica_of(doomed)
    doomed.kill()
    wait_until(lambda: doomed not in cluster.primaries(), "a new primary", 30)
    finish(lab, results)
    assert sorted(lab.journal.tags()) == sorted(results)
    assert "has lost its data" not in worker.log


@pytest.mark.proves("loss of one node's data")
def test_the_loss_of_one_node_s_data_is_told_and_the_leases_of_running_bodies_are_restored(
    lab: Lab, cluster: RedisCluster
) -> None:
    worker, results = hold_on_each(lab, cluster)
    forgetful = cluster.primaries()[0]
    cluster.ask(forgetful, "FLUSHALL")
    worker.wait_for_log("has lost its data: the tasks that waited in line are lost")
    keys = {tag.partition(" ")[0]: owner(lab, cluster, tag.partition(" ")[0]) for tag in results}
    for key in keys:
        eventually(lambda key=key: lab.task("wait").lock_state(key).is_running, f"{key} held again")
    lost = [f"{key} waits" for key, node in keys.items() if node is forgetful]
    for tag in lost:
        del results[tag]
    finish(lab, results)
    assert not set(lost) & set(lab.journal.tags())
