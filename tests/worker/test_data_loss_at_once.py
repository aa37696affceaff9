"""The store has just lost its data: bodies that no heartbeat has seen, and leases checked before a beat."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from celery_exclusive import lock
from celery_exclusive.core.operations import Acquire
from celery_exclusive.stores.base import open_store
from tests.proxy import Proxy
from tests.servers import RedisServer
from tests.worker.lab import Lab, Worker, eventually
from tests.worker.message import consume, stop_consuming
from tests.worker.pipe import in_the_pipe
from tests.worker.stage import Stage, on_stages
from tests.worker.trouble import hold
from tests.worker.versions import IS_FAST, needs_celery

PUT_BACK = "1 of this worker's leases were restored"
NOT_NOTICED = {"exclusive_ttl": 600, "exclusive_reap_period": 600}
"""A heartbeat beats every 20 s then, and no reaper tells it of the loss."""


def flush(store: RedisServer) -> None:
    with store.client() as client:
        client.flushall()


def holders(lab: Lab, name: str) -> list[str]:
    return [holder.task_id for holder in lab.task(name).lock_state("k").holders]


def begin_unseen(worker: Worker) -> Any:
    """Let a body begin while the main process stands still: its heartbeat has seen nothing of it."""
    with in_the_pipe(worker, "patient", "k", tag="young", hold=True) as young:
        os.kill(worker.pid, signal.SIGSTOP)
    worker.lab.journal.wait_for("start", tag="young")
    return young


def assert_it_gets_its_lease_back(lab: Lab, store: RedisServer) -> None:
    worker = lab.start_worker("w1", 1)
    young = begin_unseen(worker)
    flush(store)
    os.kill(worker.pid, signal.SIGCONT)
    worker.wait_for_log(PUT_BACK)
    assert holders(lab, "patient") == [young.id]
    lab.open("young")
    assert young.get(timeout=60) == "young"
    eventually(lambda: not holders(lab, "patient"), "the end of its lease")


@pytest.mark.promise(
    "Leases of bodies that no heartbeat has seen yet are restored, too",
    name="restored before the first heartbeat",
    broke="red before: only leases that a renewal had found",
)
@on_stages("prefork", brokers=("redis",))
def test_a_body_that_no_heartbeat_has_seen_gets_its_lease_back(stage: Stage, store: RedisServer) -> None:
    assert_it_gets_its_lease_back(
        stage.make_lab("tests.worker.shop_trouble", exclusive_store=store.url), store
    )


@pytest.mark.proves("restored before the first heartbeat")
@needs_celery("5.7", "spawned children")
def test_the_body_of_a_child_that_is_not_forked_gets_its_lease_back(
    make_lab: Callable[..., Lab], store: RedisServer
) -> None:
    conf = {"worker_pool_start_method": "spawn", "task_acks_late": True, "exclusive_store": store.url}
    assert_it_gets_its_lease_back(make_lab(module="tests.worker.shop_trouble", **conf), store)


@pytest.mark.promise(
    "`lease.check()` restores a lease before the heartbeat does, of a task in every pool and of `lock()`. "
    "It raises `LeaseLost` if another owner holds the key or the lease has expired, and then for good",
    name="check restores a lease",
    broke=(
        "red before: LeaseLost; the epoch not compared; not passed to children; the age of the grant not "
        "looked at; raised once only; a released lease restored; not released after its release"
    ),
)
@on_stages("prefork", "threads", "gevent", "solo", brokers=("redis",), lates=(True,))
def test_a_body_that_checks_its_lease_before_a_heartbeat_gets_it_back(
    stage: Stage, store: RedisServer
) -> None:
    lab = stage.make_lab("tests.worker.shop_trouble", exclusive_store=store.url, **NOT_NOTICED)
    stage.start_worker(lab)
    asked = lab.send("asked", "k", tag="asked")
    lab.journal.wait_for("start", tag="asked")
    flush(store)
    lab.open("asked")
    eventually(lambda: lab.journal.events("stands") + lab.journal.events("lost"), "the answer")
    assert not lab.journal.events("lost")
    assert holders(lab, "asked") == [asked.id]
    lab.open("asked")
    asked.get(timeout=60)
    eventually(lambda: not holders(lab, "asked"), "the end of its lease")


@pytest.mark.proves("check restores a lease")
@on_stages("prefork", "threads", brokers=("redis",), lates=(True,))
def test_a_body_whose_key_another_owner_holds_gets_lease_lost_when_it_checks(
    stage: Stage, store: RedisServer
) -> None:
    lab = stage.make_lab("tests.worker.shop_trouble", exclusive_store=store.url, **NOT_NOTICED)
    stage.start_worker(lab)
    asked = lab.send("asked", "k", tag="asked")
    lab.journal.wait_for("start", tag="asked")
    key = lab.task("asked").lock_state("k").key
    flush(store)
    near = open_store(store.url)
    near.apply(key, Acquire("other/1", "token", 600_000_000))
    near.close()
    lab.open("asked")
    lab.journal.wait_for("lost", tag="asked")
    assert holders(lab, "asked") == ["other"]
    lab.open("asked")
    asked.get(timeout=60)
    assert holders(lab, "asked") == ["other"]


@pytest.mark.proves("only held leases are restored")
@on_stages("prefork", "threads", brokers=("redis",), lates=(True,))
def test_a_lease_that_its_body_has_released_stays_free_while_the_next_is_called(
    stage: Stage, store: RedisServer, redis_server: RedisServer
) -> None:
    lab = stage.make_lab("tests.worker.shop_trouble", exclusive_store=store.url, exclusive_ttl=600)
    with Proxy(redis_server.port) as broker:
        worker = stage.start_worker(lab, broker_url=f"redis://127.0.0.1:{broker.port}/0")
        hold(lab, "patient")
        consume(lab, worker, "side")
        lab.send("patient", "k", tag="next", options={"queue": "side"})
        lab.wait_for_line(1, "patient", "k")
        stop_consuming(lab, worker, "side")
        broker.withhold(b"RPUSH" if IS_FAST else b"LPUSH")
        lab.open("holder")
        eventually(lambda: broker.met, "the call of the next")
        flush(store)
        worker.wait_for_log("0 of this worker's leases were restored")
        assert not holders(lab, "patient")
        broker.deliver()
        consume(lab, worker, "side")
        lab.journal.wait_for("end", tag="next")


@pytest.mark.proves("only held leases are restored")
@on_stages("prefork", "threads", brokers=("redis",), lates=(True,))
def test_a_unique_key_that_the_end_of_its_body_has_released_stays_free(
    stage: Stage, store: RedisServer
) -> None:
    lab = stage.make_lab("tests.worker.shop_unique", exclusive_store=store.url, exclusive_ttl=600)
    worker = stage.start_worker(lab)
    lingering = lab.send("lingering", "k")
    lab.journal.wait_for("hook")
    flush(store)
    worker.wait_for_log("0 of this worker's leases were restored")
    assert lab.task("lingering").lock_state("k").unique_holder is None
    lab.open("hook")
    lingering.get(timeout=60)


@pytest.mark.proves("check restores a lease")
def test_a_lock_that_is_checked_before_a_heartbeat_is_restored(
    make_lab: Callable[..., Lab], store: RedisServer
) -> None:
    lab = make_lab(module="tests.worker.shop_lock", exclusive_store=store.url)
    guard = lock("repo:17", ttl=600, app=lab.app)
    with guard as lease:
        flush(store)
        assert not guard.locked()
        lease.check()
        assert guard.locked()
    assert not guard.locked()
