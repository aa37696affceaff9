"""What is promised for prefork holds in the pools of one process too: threads, gevent and solo."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord, group

from celery_exclusive import ExclusiveError
from tests.servers import RedisServer
from tests.worker.lab import Lab, Worker, eventually, wait_until_gone

DEADLINE = 60
TASKS = "tests.worker.shop_late_tasks"
LATE = {"task_acks_late": True, "task_reject_on_worker_lost": True}


@pytest.fixture(params=["threads", "gevent", "solo"])
def pool(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def start(lab: Lab, pool: str, name: str = "w1", slots: int = 2, **more: Any) -> Worker:
    return lab.start_worker(name, 1 if pool == "solo" else slots, pool=pool, **more)


def hold(lab: Lab, pool: str, name: str = "wait", **more: Any) -> Any:
    """One body held open on a worker of its own, `w1`; then starts `w2`, which has one slot."""
    holding = start(lab, pool)
    holder = lab.send(name, "k", tag="holder", hold=True, **more)
    lab.journal.wait_for("start", tag="holder")
    start(lab, pool, "w2", 1)
    return holding, holder


def assert_nothing_is_renewed(lab: Lab, queue: str = "lab") -> None:
    """The heartbeat of the only worker of a queue, or of whichever gets the question, keeps no leases."""
    ask = {"queue": queue}
    eventually(lambda: lab.send("kept", options=ask).get(timeout=DEADLINE) == 0, "a heartbeat without leases")


def assert_nothing_is_left(lab: Lab, *keys: str, name: str = "wait") -> None:
    for key in keys:
        eventually(lambda key=key: not lab.task(name).lock_state(key).is_running, f"no holder of {key}")
        assert lab.waiting(name, key) == 0
    eventually(lambda: lab.messages_at_the_broker() == 0, "an empty broker")


@pytest.mark.promise(
    "Every pool keeps leases, line and order",
    name="pools",
    broke=(
        "threads, gevent and solo: waiting in the slot; a gate that lets all in; no release; skip enters "
        "the body; connections shared"
    ),
)
@pytest.mark.parametrize("late", [True, False], ids=["late", "early"])
def test_a_line_uses_no_slot_and_moves_in_order_without_those_revoked(
    make_lab: Callable[..., Lab], pool: str, late: bool
) -> None:
    # Nobody else wakes them.
    lab = make_lab(exclusive_ttl=600, exclusive_reap_period=600, task_acks_late=late)
    hold(lab, pool)
    waiting = [lab.send("wait", "k", tag=f"{number:02}") for number in range(12)]
    lab.wait_for_line(12, "wait", "k")
    lab.send("plain", tag="other")
    lab.journal.wait_for("end", tag="other")
    skipped = lab.send("skip", "k", tag="skipper")
    assert skipped.get(timeout=DEADLINE) == "skipper"  # "k" of another task is another key
    hearing = 1 if pool == "solo" else 2  # the other one hears it after its body, before anything else
    assert len(lab.app.control.revoke(waiting[5].id, reply=True, timeout=60, limit=hearing)) == hearing
    arrived = [id for id in lab.line("wait", "k") if id != waiting[5].id]
    lab.open("holder")
    lab.journal.wait_for("end", 12, task="tests.worker.shop.wait")
    assert eventually(lambda: waiting[5].state == "REVOKED", "REVOKED")
    starts = [event["id"] for event in lab.journal.events("start", task="tests.worker.shop.wait")]
    assert starts[1:] == arrived
    assert lab.journal.most_open(task="tests.worker.shop.wait") == 1
    assert_nothing_is_left(lab, "k")


@pytest.mark.proves("pools")
def test_a_limit_of_three_is_used_and_kept(make_lab: Callable[..., Lab], pool: str) -> None:
    lab = make_lab(**LATE)
    others = ["w2", "w3", "w4"] if pool == "solo" else ["w2"]
    workers = [start(lab, pool, name, ready=False) for name in others]
    start(lab, pool, slots=4)
    for worker in workers:
        worker.wait_ready()
    tags = [f"{number:02}" for number in range(20)]
    for tag in tags:
        lab.send("three", "k", tag=tag, hold=True)
    lab.journal.wait_for("start", 3)
    lab.open(*tags)
    lab.journal.wait_for("end", 20)
    assert lab.journal.most_open() == 3
    assert_nothing_is_left(lab, "k", name="three")


@pytest.mark.promise(
    "A lease outlasts a body that computes",
    name="body that computes",
    broke="patched thread; greenlet id as pid; no heartbeat",
)
def test_a_body_that_computes_keeps_its_lease_for_more_than_a_ttl(
    make_lab: Callable[..., Lab], pool: str
) -> None:
    lab = make_lab(module="tests.worker.shop_pools", exclusive_ttl=9, **LATE)
    start(lab, pool, options=("-Q", "side"))  # it would get what kombu has asked for before, and not look
    lab.send("compute", "k", "computing", True, options={"queue": "side"})
    lab.journal.wait_for("start", tag="computing")
    start(lab, pool, "w2", 1, options=("-Q", "lab"))
    lab.send("compute", "k", "next")
    lab.wait_for_line(1, "compute", "k")
    lab.assert_kept("compute", "k", renewals=4)
    (lab.folder / "door-computing").touch()
    lab.journal.wait_for("end", tag="next")
    assert lab.journal.most_open() == 1
    assert_nothing_is_left(lab, "k", name="compute")
    assert_nothing_is_renewed(lab, queue="side")
    assert_nothing_is_renewed(lab)


@pytest.mark.proves("pools, store outage")
def test_a_body_that_raises_systemexit_in_a_thread_leaves_nothing_to_the_heartbeat(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(module="tests.worker.shop_pools", exclusive_ttl=600, **LATE)
    start(lab, "threads")
    for _ in range(3):
        lab.send("leave", "k")
    eventually(lambda: lab.send("wait", "k", tag="after").get(timeout=DEADLINE), "the next one")
    eventually(lambda: not lab.task("leave").lock_state("k").is_running, "a free key")
    assert_nothing_is_renewed(lab)


@pytest.mark.proves("pools")
def test_canvases_whose_members_wait_retry_and_are_skipped_complete(
    make_lab: Callable[..., Lab], pool: str
) -> None:
    lab = make_lab(module="tests.worker.shop_canvas", **LATE)
    start(lab, pool, "w1", 4, ready=False)
    start(lab, pool, "w2", 4)
    holder = lab.send("hold", "k")
    lab.journal.wait_for("start", tag="holder")
    task = lab.task
    steps = chain(task("append").s(key="k", tag=tag) for tag in "abc").apply_async()
    total = chord(task("number").s(n, "k") for n in range(4))(task("total").s("k"))
    retried = task("again").delay(key="k", tag="try", linger=True)
    replaced = task("become").delay(key="k", tag="form")
    skips = group(task("maybe").s(key="k", tag=tag) for tag in "xy").apply_async()
    skip = {"skipped": {"key": "x=shared:k", "existing_id": holder.id}}
    assert skips.get(timeout=DEADLINE) == [skip, skip]
    lab.wait_for_line(7, "hold", "k")
    lab.open("holder")
    assert steps.get(timeout=DEADLINE) == ["a", "b", "c"]
    assert total.get(timeout=DEADLINE) == 6
    assert retried.get(timeout=DEADLINE) == 2
    assert replaced.get(timeout=DEADLINE) == 100
    tags = lab.journal.tags("start")
    assert len(tags) == len(set(tags)) == 1 + 3 + 5 + 3 + 3
    assert lab.journal.most_open(key="k") == 1
    assert_nothing_is_left(lab, "k", name="hold")


@pytest.mark.promise(
    "In every pool tasks wait while the store is down; a body whose end is not reported to Celery leaves "
    "nothing to the heartbeat",
    name="pools, store outage",
    broke="no patience",
)
def test_while_the_store_is_down_tasks_wait_and_run_when_it_is_back(
    make_lab: Callable[..., Lab], start_redis: Callable[..., RedisServer], pool: str
) -> None:
    store = start_redis(appendonly=True, appendfsync="always")
    lab = make_lab(exclusive_store=f"{store.url}?socket_timeout=1", exclusive_ttl=2, **LATE)
    worker = start(lab, pool)
    lab.send("wait", "k", tag="before")
    lab.journal.wait_for("end", tag="before")
    store.kill()
    lab.send("wait", "k", tag="during")
    worker.wait_for_log("waits for its lock's store")
    if pool != "solo":
        lab.send("plain", tag="other")
        lab.journal.wait_for("end", tag="other")
    worker.wait_for_log("the renewal of leases failed; retrying: store")
    store.restart()
    lab.journal.wait_for("end", tag="during")
    worker.wait_for_log("the renewal of leases recovered after")
    assert lab.journal.tags("start", key="k") == ["before", "during"]
    assert_nothing_is_left(lab, "k")


@pytest.mark.promise(
    "Workers with locks in every other store keep lines, skips, pools, and the reaper's three hundred",
    name="workers on other stores",
    broke="as on the other stores",
)
@pytest.mark.parametrize("store", ["memory://", "sqlite:///{}/locks.db", "postgres", "maria"])
def test_every_other_store_keeps_line_lease_and_skip(
    request: pytest.FixtureRequest, make_lab: Callable[..., Lab], tmp_path: Path, pool: str, store: str
) -> None:
    url = store.format(tmp_path) if ":" in store else request.getfixturevalue(f"{store}_url")
    conf = {"exclusive_store": url, "exclusive_ttl": 9}
    lab = make_lab(module="tests.worker.shop_pools", **conf, **LATE)
    worker = start(lab, pool, slots=3)
    is_seen = store != "memory://"  # from outside of the worker
    lab.send("compute", "c", "computing", hold=is_seen, seconds=0 if is_seen else 12)
    lab.journal.wait_for("start", tag="computing")
    lab.send("compute", "c", "next")
    if is_seen:
        lab.assert_kept("compute", "c")
        (lab.folder / "door-computing").touch()
    if pool != "solo":
        holder = lab.send("skip", "s", tag="holder", hold=True)
        lab.journal.wait_for("start", tag="holder")
        skipped = lab.send("skip", "s", tag="skipped")
        assert skipped.get(timeout=DEADLINE)["skipped"]["existing_id"] == holder.id
        lab.send("wait", "k", tag="0", hold=True)
        lab.journal.wait_for("start", tag="0")
        for place in (1, 2, 3):
            lab.send("wait", "k", tag=str(place))
            worker.wait_for_log(f"parked: number {place} in line for lock x:tests.worker.shop_pools.wait")
        lab.open("holder", "0")
        lab.journal.wait_for("end", 4, key="k")
        assert lab.journal.tags("start", key="k") == ["0", "1", "2", "3"]
    lab.journal.wait_for("end", tag="next")
    for key in "cks":
        assert lab.journal.most_open(key=key) <= 1
    assert "lost its lease" not in worker.log
    assert_nothing_is_renewed(lab)


@pytest.mark.promise("A pool of greenlets that is not gevent's is refused", broke="accepted")
def test_a_pool_of_greenlets_that_is_not_of_gevent_is_refused(
    make_lab: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELERY_CUSTOM_WORKER_POOL", "tests.worker.shop_pools:OtherGreenlets")
    worker = make_lab(**LATE).start_worker("w1", 1, pool="custom", ready=False)
    assert worker.process.wait(60) != 0
    assert "Traceback" not in worker.log
    assert "use --pool=gevent, threads, prefork or solo" in worker.log


@pytest.mark.promise(
    "No body begins whose lease no heartbeat would renew: not in a pool class of a project's own, nor in a "
    "worker that gets its first task with an option while it runs",
    name="seen by a heartbeat",
    broke="red before: two bodies at once after `ttl`",
)
def test_a_pool_that_inherits_from_prefork_renews_leases(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(exclusive_ttl=3, worker_pool="tests.worker.shop_late:Processes")
    lab.start_worker("w1", 1)
    lab.send("wait", "k", tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    lab.assert_kept("wait", "k", renewals=1)


@pytest.mark.proves("seen by a heartbeat")
def test_first_task_with_an_option_by_pool_restart_has_its_lease_renewed(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(module="tests.worker.shop_late", exclusive_ttl=3, worker_pool_restarts=True)
    worker = lab.start_worker("w1", 1)
    children = worker.children
    assert lab.app.control.pool_restart(modules=[TASKS], reply=True, timeout=60, limit=1)
    wait_until_gone(*children)
    import_module(TASKS)
    lab.send("wait", "k", tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    lab.assert_kept("wait", "k", renewals=1)


@pytest.mark.proves("seen by a heartbeat")
def test_first_task_with_an_option_in_a_running_worker_without_a_heartbeat_fails_before_its_body(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(module="tests.worker.shop_late")
    lab.start_worker("w1", 1, pool="solo")
    result = lab.app.send_task("tests.worker.shop_late.wait", ("k", "late"))
    with pytest.raises(ExclusiveError, match="no heartbeat of its worker would renew its lease"):
        result.get(timeout=DEADLINE)
    assert not lab.journal.events("start")


@pytest.mark.proves("pools")
@pytest.mark.parametrize("pool", ["threads", "gevent"])
def test_many_bodies_share_a_store_and_each_gets_its_own_answers(
    make_lab: Callable[..., Lab], pool: str
) -> None:
    lab = make_lab(module="tests.worker.shop_pools", **LATE)
    start(lab, pool, slots=40)
    results = [lab.send("ask", f"k{number}", 20) for number in range(40)]
    assert [result.get(timeout=DEADLINE) for result in results] == [20] * 40
    if pool == "gevent":
        threads = [lab.send("ask_from_a_thread", f"k{number}") for number in range(10)]
        assert [result.get(timeout=DEADLINE) for result in threads] == [None] * 10
    assert_nothing_is_renewed(lab)
