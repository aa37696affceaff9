"""The store loses its data: the leases of running bodies are restored, and what the broker kept runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from celery_exclusive import lock
from celery_exclusive.stores.base import open_store
from tests.proxy import Proxy
from tests.servers import RedisServer
from tests.worker.journal import eventually
from tests.worker.lab import Lab
from tests.worker.message import stop_consuming
from tests.worker.stage import Stage, on_stages
from tests.worker.trouble import (
    ACQUIRE,
    RESTORE,
    hold,
)
from tests.worker.watcher import SENDS_EVENTS, Watcher

DEADLINE = 90
FORGOT = "has lost its data: the tasks that waited in line are lost"


def flush(store: RedisServer) -> None:
    with store.client() as client:
        client.flushall()


def make_lab(stage: Stage, url: str, **conf: object) -> Lab:
    """Its tasks `patient` and `three` have a ttl of 600 s: only what is given back is free in time."""
    return stage.make_lab("tests.worker.shop_trouble", **{"exclusive_store": url, "exclusive_ttl": 3, **conf})


def assert_nothing_is_left(stage: Stage, lab: Lab, store: RedisServer) -> None:
    with store.client() as client:
        stage.assert_nothing_is_left(lab, client)


@pytest.mark.promise(
    "A store that loses its data: the loss is reported in log and event, the leases of running bodies are "
    "restored, fences grow, a lease that is left over is released",
    name="loss of data",
    broke=(
        "not noticed; nothing restored; no event; restored beside a new holder; its loss not reported; "
        "what ended meanwhile is not released; `lock()` not restored; a replaced file not noticed; what "
        "has not begun is restored; a restored lease released while its process lives"
    ),
)
@on_stages("prefork", "threads", "gevent", brokers=("redis",), lates=(True,))
def test_running_bodies_keep_their_keys_and_their_ends_wake_the_next(
    stage: Stage, store: RedisServer
) -> None:
    lab = make_lab(stage, f"{store.url}?socket_timeout=1")
    workers = [stage.start_worker(lab, name, 5, options=SENDS_EVENTS) for name in ("w1", "w2")]
    for number in range(
        9
    ):  # after the loss the fences that are restored would else exceed the old ones by chance
        assert lab.send("skip", f"others {number}").get(timeout=DEADLINE) == ""
    holder = hold(lab, "patient", check=True)
    parked = lab.send("patient", "k", tag="parked")
    lab.wait_for_line(1, "patient", "k")
    three = [lab.send("three", "k", tag=f"three {n}", hold=True, check=True) for n in range(3)]
    lab.journal.wait_for("start", 4, key="k")
    with Watcher(lab, *workers) as watcher:
        store.restart(keep_data=False)
        events = watcher.wait_for("lock-data-lost", 2)
    assert sum(event["restored"] for event in events) == 4
    assert {event["hostname"] for event in events} == {worker.name for worker in workers}
    kept = lab.app._celery_exclusive.store  # type: ignore[attr-defined]
    records = lambda: [it for its in kept.workers().values() for it in its]  # noqa: E731
    eventually(lambda: [bool(it.lost) for it in records()] == [True, True], "two records that tell of it")
    for worker in workers:
        line = worker.wait_for_log(FORGOT)
        assert ": ERROR/" in line
        assert "geheim" not in line
    behind = [lab.send(name, "k", tag=f"behind {name}") for name in ("patient", "three")]
    lab.wait_for_line(1, "patient", "k")
    lab.wait_for_line(1, "three", "k")
    lab.open("holder", "three 0")
    assert [result.get(timeout=DEADLINE) for result in (holder, *behind)] == [
        "holder",
        "behind patient",
        "behind three",
    ]
    (end,), (next_start,) = (
        lab.journal.events("end", tag="holder"),
        lab.journal.events("start", tag="behind patient"),
    )
    (first,) = lab.journal.events("start", tag="holder")
    assert next_start["fence"] > first["fence"]
    lab.open("three 1", "three 2")
    assert [result.get(timeout=DEADLINE) for result in three] == [f"three {n}" for n in range(3)]
    assert lab.journal.most_open(task="tests.worker.shop_trouble.patient") == 1
    assert lab.journal.most_open(task="tests.worker.shop_trouble.three") == 3
    assert lab.journal.events("start", tag="parked") == []  # as durable as its store
    assert parked.state == "PENDING"
    for worker in workers:
        assert worker.log.count(FORGOT) == 1
        assert "lost its lease" not in worker.log
    assert_nothing_is_left(stage, lab, store)
    stage.note("store-lost-data", end["at"], next_start["at"])


@pytest.mark.proves("loss of data")
@on_stages("prefork", "gevent", brokers=("redis",), lates=(True,))
def test_a_holder_that_cannot_restore_its_lease_gets_lease_lost_and_leaves_the_new_holder_alone(
    stage: Stage, store: RedisServer, proxy: Proxy
) -> None:
    lab = make_lab(stage, f"redis://127.0.0.1:{proxy.port}/0?socket_timeout=1", exclusive_ttl=600)
    away = stage.start_worker(lab, "away", options=SENDS_EVENTS)
    first = lab.send("watch", "k", tag="first", until_lost=True)
    lab.journal.wait_for("start", tag="first")
    stop_consuming(lab, away, "lab")
    near = stage.start_worker(lab, "near", exclusive_store=store.url)
    proxy.cut()
    flush(store)
    second = lab.send("watch", "k", tag="second", hold=True)
    lab.journal.wait_for("start", tag="second")
    with Watcher(lab, away) as watcher:
        proxy.restore()
        assert watcher.wait_for("lock-data-lost")[0]["restored"] == 0
        lab.journal.wait_for("lost", tag="first")
        third = lab.send("watch", "k", tag="third")
        lab.wait_for_line(1, "watch", "k")
        lab.open("first")
        assert first.get(timeout=DEADLINE) == "first"
        (event,) = watcher.wait_for("lock-lost", uuid=first.id)
    assert (event["name"], event["lock"]) == (lab.task("watch").name, lock_of(lab, "watch"))
    away.wait_for_log(f"[{first.id}] lost its lease on lock")
    near.wait_for_log(FORGOT)
    assert [holder.task_id for holder in lab.task("watch").lock_state("k").holders] == [second.id]
    lab.open("second")
    assert [result.get(timeout=DEADLINE) for result in (second, third)] == ["second", "third"]
    assert lab.journal.tags() == ["first", "second", "third"]
    assert lab.journal.spells()[1].until < lab.journal.spells()[2].since
    assert_nothing_is_left(stage, lab, store)


@pytest.mark.proves("loss of data")
@pytest.mark.parametrize("fails", [False, True], ids=["returns", "raises"])
@on_stages("prefork", brokers=("redis",))
def test_a_body_that_ends_while_its_lease_is_restored_leaves_none_behind(
    stage: Stage, store: RedisServer, proxy: Proxy, fails: bool
) -> None:
    lab = make_lab(stage, f"redis://127.0.0.1:{proxy.port}/0?socket_timeout=60")
    worker = stage.start_worker(lab)
    holder = hold(lab, "patient", fail=fails)
    proxy.withhold(RESTORE)
    flush(store)
    eventually(lambda: proxy.met, "the heartbeat's attempt")
    lab.open("holder")
    assert holder.get(timeout=DEADLINE, propagate=False) == "holder" or fails
    eventually(lambda: stage.messages_at_the_broker(lab) == 0, "the worker to know")
    proxy.deliver()
    worker.wait_for_log(FORGOT)
    assert lab.send("patient", "k", tag="next").get(timeout=DEADLINE) == "next"
    assert_nothing_is_left(stage, lab, store)


@pytest.mark.proves("loss of data")
def test_a_process_puts_the_lock_that_it_holds_back(
    make_lab: Callable[..., Lab], store: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    lab = make_lab(module="tests.worker.shop_lock", exclusive_store=store.url, task_acks_late=True)
    worker = lab.start_worker()
    with caplog.at_level(logging.ERROR), lock("repo:17", ttl=12, app=lab.app) as lease:
        flush(store)
        eventually(lambda: "has lost its data" in caplog.text, "the heartbeat to notice")
        assert "x=repo:17" in caplog.text
        lease.check()
        waiting = lab.send("sync", 17, tag="next")
        worker.wait_for_log(f"[{waiting.id}] parked: number 1 in line for lock x=repo:17")
        assert not lab.journal.events("start")
    assert waiting.get(timeout=DEADLINE) == "next"
    assert lab.journal.events("start")[0]["fence"] > lease.fence


@pytest.mark.promise(
    "After a Redis came back with older data leases are restored as after a loss of all data, and fences "
    "go on above the lost ones, whatever the clock says",
    name="restored after older data",
    broke="red before; fences that are not raised",
)
@on_stages("prefork", "threads", brokers=("redis",), lates=(True,))
def test_leases_that_are_younger_than_the_snapshot_of_their_store_are_restored(
    stage: Stage, start_redis: Callable[..., RedisServer]
) -> None:
    store = start_redis()
    lab = make_lab(stage, store.url)
    worker = stage.start_worker(lab, slots=3)
    assert lab.send("skip", "of before").get(timeout=DEADLINE) == ""
    with store.client() as client:
        client.save()
    holder = hold(lab, "patient")
    store.restart(keep_data=True)
    worker.wait_for_log("1 of this worker's leases were restored")
    behind = lab.send("patient", "k", tag="next")
    lab.wait_for_line(1, "patient", "k")
    lab.open("holder")
    assert [result.get(timeout=DEADLINE) for result in (holder, behind)] == ["holder", "next"]
    assert lab.journal.most_open() == 1
    assert worker.log.count(FORGOT) == 1
    assert "lost its lease" not in worker.log
    assert_nothing_is_left(stage, lab, store)


@pytest.mark.proves("loss of data")
@on_stages("prefork", "threads", brokers=("redis",), lates=(True,))
def test_a_file_that_is_replaced_gets_the_leases_of_running_bodies(stage: Stage, tmp_path: Path) -> None:
    lab = make_lab(stage, f"sqlite:///{tmp_path}/locks.db")
    worker = stage.start_worker(lab, slots=3)
    holder = hold(lab, "patient")
    for file in tmp_path.glob("locks.db*"):
        file.unlink()
    worker.wait_for_log(FORGOT)
    behind = lab.send("patient", "k", tag="next")
    lab.wait_for_line(1, "patient", "k")
    lab.open("holder")
    assert [result.get(timeout=DEADLINE) for result in (holder, behind)] == ["holder", "next"]
    assert lab.journal.most_open() == 1
    assert "lost its lease" not in worker.log
    near = open_store(lab.conf["exclusive_store"])
    eventually(lambda: not list(near.scan()), "a file without leases and lines")
    near.close()


def lock_of(lab: Lab, name: str) -> str:
    return str(lab.task(name).lock_state("k").key)


@pytest.mark.proves("loss of data")
@on_stages("threads", brokers=("redis",), lates=(True,))
def test_a_task_that_has_not_begun_does_not_get_the_place_of_a_running_one(
    stage: Stage, store: RedisServer, proxy: Proxy
) -> None:
    """In a pool of threads a worker has tasks in hand for which it has no slot yet."""
    lab = make_lab(stage, store.url)
    running = stage.start_worker(lab, "running", 2, exclusive_store=f"redis://127.0.0.1:{proxy.port}/0")
    holder = hold(lab, "patient")
    stop_consuming(lab, running, "lab")
    busy = stage.start_worker(lab, "busy", 1)
    other = lab.send("wait", "l", tag="other", hold=True)
    lab.journal.wait_for("start", tag="other")
    queued = lab.send("patient", "k", tag="queued")
    busy.wait_for_log(f"[{queued.id}] received")
    proxy.cut()
    flush(store)
    busy.wait_for_log(FORGOT)
    proxy.restore()
    running.wait_for_log(FORGOT)
    assert [owner.task_id for owner in lab.task("patient").lock_state("k").holders] == [holder.id]
    lab.open("other")
    busy.wait_for_log(f"[{queued.id}] parked: number 1 in line")
    lab.open("holder")
    assert [result.get(timeout=DEADLINE) for result in (other, holder, queued)] == [
        "other",
        "holder",
        "queued",
    ]
    assert lab.journal.most_open(key="k") == 1
    assert_nothing_is_left(stage, lab, store)


@pytest.mark.promise(
    "Only leases that are held are restored: none that is not granted yet, has expired, or has been "
    "released; a unique key not after the end of its body",
    name="only held leases are restored",
    broke=(
        "all that a child executes is held; what is released, or ended with the body, stays held; what was "
        "refused a renewal is restored"
    ),
)
@on_stages("prefork", brokers=("redis",), lates=(True,))
def test_a_task_that_waits_for_an_answer_does_not_get_the_place_of_a_running_one(
    stage: Stage, store: RedisServer, proxy: Proxy
) -> None:
    lab = make_lab(stage, store.url)
    running = stage.start_worker(lab, "running", exclusive_store=f"redis://127.0.0.1:{proxy.port}/0")
    holder = hold(lab, "patient")
    stop_consuming(lab, running, "lab")
    with Proxy(store.port) as other:
        url = f"redis://127.0.0.1:{other.port}/0?socket_timeout=60"
        asking = stage.start_worker(lab, "asking", exclusive_store=url)
        other.withhold(ACQUIRE)
        asks = lab.send("patient", "k", tag="asks")
        eventually(lambda: other.met, "its request")
        proxy.cut()
        flush(store)
        asking.wait_for_log(FORGOT)
        proxy.restore()
        running.wait_for_log(FORGOT)
        assert [owner.task_id for owner in lab.task("patient").lock_state("k").holders] == [holder.id]
        other.deliver()
        asking.wait_for_log(f"[{asks.id}] parked: number 1 in line")
        lab.open("holder")
        assert [result.get(timeout=DEADLINE) for result in (holder, asks)] == ["holder", "asks"]
        assert lab.journal.most_open(key="k") == 1
        assert_nothing_is_left(stage, lab, store)
        asking.stop()


@pytest.mark.proves("loss of data")
@on_stages("prefork", brokers=("redis",), lates=(True,))
def test_a_lease_that_was_restored_lasts_until_its_process_is_gone(stage: Stage, store: RedisServer) -> None:
    lab = stage.make_lab(exclusive_store=store.url, exclusive_ttl=600)
    worker = stage.start_worker(lab, slots=2, options=("-Q", "side"))
    stage.start_worker(lab, "w2", options=("-Q", "lab"))
    options = {"time_limit": 12, "queue": "side"}
    lab.send("end", "k", "doomed", "hard-limit-stubborn", options=options)
    lab.journal.wait_for("start", tag="doomed")
    flush(store)
    worker.wait_for_log("1 of this worker's leases were restored")
    lab.send("end", "k", "next")
    lab.wait_for_line(1, "end", "k")
    lab.journal.wait_for("end", tag="next")
    assert lab.journal.events("beside") == []
    assert_nothing_is_left(stage, lab, store)
