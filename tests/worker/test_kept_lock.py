"""A retry keeps the lock of its run: no other task runs between the attempts."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery import chord
from celery.exceptions import TaskRevokedError

from celery_exclusive import LockHeld
from tests.proxy import Proxy
from tests.servers import RedisServer
from tests.worker.lab import Lab, command, eventually
from tests.worker.stage import Stage, on_stages
from tests.worker.test_unique import ONCE

SHOP = "tests.worker.shop_kept"
DEADLINE = 60


def make_lab(stage: Stage, **conf: Any) -> Lab:
    return stage.make_lab(SHOP, **{"exclusive_ttl": 600, **conf})


def until_queued(lab: Lab, name: str, result: Any, key: str = "k") -> Any:
    """Wait until the retry of this task holds the lock while it is queued."""

    def is_queued() -> bool:
        holders = lab.task(name).lock_state(key).holders
        return [(it.task_id, it.is_queued) for it in holders] == [(result.id, True)]

    eventually(is_queued, "the lock of a queued retry")
    return lab.task(name).lock_state(key)


@pytest.mark.promise(
    "With `keep_on_retry` a retry keeps the lock of its run through its countdown, under the same fence, "
    "and no other task runs between the attempts: in every pool, on Redis and RabbitMQ, late and early",
    name="kept lock",
    broke="the lease released before the retry; the retry's own id not granted",
)
@on_stages("prefork", "threads", "gevent", "solo", late_only=("rabbitmq",))
def test_no_other_task_runs_between_the_attempts_of_a_task_that_keeps_its_lock(stage: Stage) -> None:
    lab = make_lab(stage)
    stage.start_worker(lab, slots=3)
    first = lab.send("kept", "k", "first", 4, hold=True)
    lab.journal.wait_for("start", tag="first")
    others = [lab.send("kept", "k", "other", retries=0) for _ in range(2)]
    if stage.pool != "solo":
        lab.wait_for_line(2, "kept", "k")
    lab.open("first")
    state = until_queued(lab, "kept", first)
    assert (state.is_running, state.is_queued) == (False, True)
    assert 86_390 < state.holders[0].remaining < 86_410
    assert first.get(timeout=DEADLINE) == "first"
    assert [it.get(timeout=DEADLINE) for it in others] == ["other", "other"]
    assert lab.journal.tags() == ["first", "first", "other", "other"]
    fences = [start["fence"] for start in lab.journal.events("start", tag="first")]
    assert fences[0] == fences[1]
    stage.assert_nothing_is_left(lab)


@pytest.mark.proves("kept lock")
@pytest.mark.parametrize(
    "store", ["sqlite", "postgres", pytest.param("maria", marks=pytest.mark.large), "memory"]
)
def test_no_other_task_runs_between_the_attempts_on_other_stores(
    store: str, make_lab: Callable[..., Lab], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    files = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/locks.db"}
    url = files.get(store) or request.getfixturevalue(f"{store}_url")
    lab = make_lab(module=SHOP, exclusive_store=url, exclusive_ttl=600, task_acks_late=True)
    lab.start_worker("w1", 3, pool="threads" if store == "memory" else "prefork")
    first = lab.send("kept", "k", "first", 3, hold=True)
    lab.journal.wait_for("start", tag="first")
    other = lab.send("kept", "k", "other", retries=0)
    lab.open("first")
    assert first.get(timeout=DEADLINE) == "first"
    assert other.get(timeout=DEADLINE) == "other"
    assert lab.journal.tags() == ["first", "first", "other"]
    if store != "memory":
        eventually(lambda: not lab.task("kept").lock_state("k").holders, "a free key")


@pytest.mark.proves("kept lock")
def test_no_other_task_runs_between_the_attempts_on_a_store_without_lines(
    make_lab: Callable[..., Lab], memcached_url: str
) -> None:
    lab = make_lab(module="tests.worker.shop_lineless", exclusive_store=memcached_url, exclusive_ttl=600)
    lab.start_worker("w1", 3)
    first = lab.send("kept", "k", "first", hold=True)
    lab.journal.wait_for("start", tag="first")
    other = lab.send("kept", "k", "other")
    lab.open("first", "first")
    assert first.get(timeout=DEADLINE) == "first"
    lab.open("other", "other")
    assert other.get(timeout=DEADLINE) == "other"
    assert lab.journal.tags() == ["first", "first", "other", "other"]
    eventually(lambda: not lab.task("kept").lock_state("k").holders, "a free key")


@pytest.mark.proves("kept lock")
@ONCE
def test_a_call_between_the_attempts_is_skipped_fails_or_comes_later_as_its_option_says(
    stage: Stage,
) -> None:
    lab = make_lab(stage)
    stage.start_worker(lab, slots=6)
    firsts = {name: lab.send(name, name, "first", 8) for name in ("skip", "refuse", "later", "ordered")}
    for name, first in firsts.items():
        until_queued(lab, name, first, name)
    others = {name: lab.send(name, name, "other", retries=0) for name in firsts}
    skipped = others["skip"].get(timeout=DEADLINE)["skipped"]
    assert skipped["existing_id"] == firsts["skip"].id
    with pytest.raises(LockHeld) as error:
        others["refuse"].get(timeout=DEADLINE)
    assert error.value.holder == firsts["refuse"].id
    assert all(first.get(timeout=DEADLINE) == "first" for first in firsts.values())
    assert [others[name].get(timeout=DEADLINE) for name in ("later", "ordered")] == ["other"] * 2
    for name in ("later", "ordered"):
        assert lab.journal.tags(key=name) == ["first", "first", "other"]
    stage.assert_nothing_is_left(lab)


@pytest.mark.proves("kept lock")
@pytest.mark.parametrize("name", ["kept", "ordered", "both"])
@ONCE
def test_a_retry_without_countdown_keeps_the_lock(stage: Stage, name: str) -> None:
    lab = make_lab(stage)
    worker = stage.start_worker(lab, slots=4)
    first = lab.send(name, "k", "first", 0, 3, hold=True)
    lab.journal.wait_for("start", tag="first")
    other = lab.send(name, "k", "other", retries=0)
    lab.wait_for_line(1, name, "k")
    lab.open("first")
    assert first.get(timeout=DEADLINE) == "first"
    assert other.get(timeout=DEADLINE) == "other"
    assert lab.journal.tags() == [*["first"] * 4, "other"]
    assert "lost" not in worker.log
    stage.assert_nothing_is_left(lab)


@pytest.mark.promise(
    "A retry that arrives before its run has ended, in a `finally` block or a hook, does not begin until "
    "then, and keeps the lock all the same; the run has its lease until its end, and it is renewed, "
    "restored after a loss of data, and free after `ttl` when its worker is killed",
    name="kept lock, early retry",
    broke="the lease belongs to the retry as soon as that is published; it waits in line; not renewed",
)
@on_stages("prefork", "threads", brokers=("redis", "rabbitmq"), lates=(True,))
def test_a_retry_that_arrives_before_its_run_has_ended_does_not_begin_until_then(stage: Stage) -> None:
    lab = make_lab(stage, exclusive_ttl=6)
    worker = stage.start_worker(lab, slots=4)
    result = lab.send("closing", "k", "closing")
    lab.journal.wait_for("start", tag="closing")
    other = lab.send("kept", "k", "other", retries=0)
    lab.wait_for_line(1, "kept", "k")
    worker.wait_for_log(f"[{result.id}] rescheduled")
    lab.assert_kept("kept", "k", renewals=3)
    assert lab.journal.tags() == ["closing"]
    lab.open("closing")
    assert result.get(timeout=DEADLINE) == "closing"
    assert other.get(timeout=DEADLINE) == "other"
    starts_and_ends = [event["what"] for event in lab.journal.events() if event["what"] != "lost"]
    assert starts_and_ends == ["start", "end"] * 3
    assert lab.journal.tags() == ["closing", "closing", "other"]
    assert not lab.journal.events("lost")
    assert "lost" not in worker.log
    stage.assert_nothing_is_left(lab)


@pytest.mark.proves("kept lock, early retry")
@ONCE
def test_a_run_whose_retry_is_published_gets_its_lease_back_when_the_store_has_lost_its_data(
    stage: Stage, store: RedisServer
) -> None:
    lab = make_lab(stage, exclusive_store=store.url, exclusive_ttl=6, worker_prefetch_multiplier=1)
    worker = stage.start_worker(lab, slots=1)  # it does not receive the retry
    result = lab.send("closing", "k", "closing")
    lab.journal.wait_for("start", tag="closing")
    with store.client() as client:
        client.flushall()
    worker.wait_for_log("1 of this worker's leases were restored")
    stage.start_worker(lab, "w2", slots=3)
    other = lab.send("kept", "k", "other", retries=0)
    eventually(lambda: lab.waiting("kept", "k") == 1, "the other in line")
    lab.open("closing")
    assert result.get(timeout=DEADLINE) == "closing"
    assert other.get(timeout=DEADLINE) == "other"
    assert lab.journal.tags() == ["closing", "closing", "other"]
    with store.client() as client:
        stage.assert_nothing_is_left(lab, client)


@pytest.mark.proves("kept lock, early retry")
@on_stages("prefork", brokers=("redis", "rabbitmq"), lates=(False,))
def test_the_lock_of_a_child_that_dies_when_its_retry_is_published_is_free_for_the_retry(
    stage: Stage,
) -> None:
    lab = make_lab(stage)
    stage.start_worker(lab, slots=3)
    result = lab.send("hooked", "k", "child")
    (event,) = lab.journal.wait_for("retried", id=result.id)
    os.kill(event["pid"], signal.SIGKILL)
    lab.journal.wait_for("end", 2, tag="child")
    assert lab.send("kept", "k", "next", retries=0).get(timeout=DEADLINE) == "next"
    assert lab.journal.tags() == ["child", "child", "next"]
    stage.assert_nothing_is_left(lab)


@pytest.mark.proves("kept lock, early retry")
@on_stages("prefork", brokers=("rabbitmq",), lates=(False,))
def test_the_lock_of_a_worker_that_dies_when_its_retry_is_published_is_free_after_ttl(stage: Stage) -> None:
    lab = make_lab(stage, exclusive_ttl=3)
    doomed = stage.start_worker(lab, "doomed")
    result = lab.send("hooked", "k", "worker", 1)
    lab.journal.wait_for("retried", id=result.id)
    doomed.kill()
    stage.start_worker(lab, "other")
    assert result.get(timeout=DEADLINE) == "worker"
    assert lab.send("kept", "k", "next", retries=0).get(timeout=DEADLINE) == "next"
    assert lab.journal.tags() == ["worker", "worker", "next"]
    stage.assert_nothing_is_left(lab)


@pytest.mark.promise(
    "A kept lock takes one slot of several, beside other holders and a line",
    broke="the retry waits for the whole key to be free",
)
@ONCE
def test_a_retry_keeps_one_slot_of_a_key_with_two(stage: Stage) -> None:
    lab = make_lab(stage)
    stage.start_worker(lab, slots=5)
    first = lab.send("two", "k", "first", 8, hold=True)
    second = lab.send("two", "k", "second", retries=0, hold=True)
    lab.journal.wait_for("start", 2)
    others = [lab.send("two", "k", f"other {n}", retries=0, hold=True) for n in range(2)]
    lab.wait_for_line(2, "two", "k")
    lab.open("first")
    eventually(lambda: any(it.is_queued for it in lab.task("two").lock_state("k").holders), "a queued retry")
    lab.open("second")
    assert second.get(timeout=DEADLINE) == "second"
    lab.journal.wait_for("start", 3)
    assert lab.waiting("two", "k") == 1
    assert first.get(timeout=DEADLINE) == "first"  # beside the other, while the last waits
    lab.journal.wait_for("start", 5)
    lab.open("other 0", "other 1")
    assert [it.get(timeout=DEADLINE) for it in others] == ["other 0", "other 1"]
    stage.assert_nothing_is_left(lab)


@pytest.mark.promise(
    "A kept lock is free when its task has no retries left, when its retry has another key, cannot be "
    "sent, is revoked or expires, also before its run has ended, and when an operator releases it",
    name="kept lock is free",
    broke="the lease of a retry that was not sent, or was revoked, stays for a day",
)
@ONCE
def test_the_lock_is_free_when_no_retry_follows(stage: Stage) -> None:
    lab = make_lab(stage)
    stage.start_worker(lab, slots=4)
    failed = lab.send("failing", "failing", "failing")
    moved, unsent = lab.send("moving", "moving", "moving"), lab.send("unsent", "unsent", "retried")
    eventually(lambda: moved.state == "RETRY", "a retry with another key")
    for key in ("moving", "unsent", "failing"):
        other = lab.send("kept", key, "other", retries=0)
        assert other.get(timeout=DEADLINE) == "other"
        assert key != "moving" or moved.state == "RETRY"
    with pytest.raises(Exception, match="failing"):
        failed.get(timeout=DEADLINE)
    assert lab.journal.tags(key="failing") == [*["failing"] * 3, "other"]
    assert moved.get(timeout=DEADLINE) == "moving"
    assert unsent.state in ("REJECTED", "STARTED", "PENDING", "FAILURE")
    stage.assert_nothing_is_left(lab)


@pytest.mark.proves("kept lock is free")
@on_stages("prefork", "threads", brokers=("redis", "rabbitmq"), lates=(True,))
def test_the_lock_is_free_when_its_retry_is_revoked_or_expires(stage: Stage) -> None:
    lab = make_lab(stage)
    stage.start_worker(lab, slots=4)
    revoked = lab.send("kept", "revoked", "first", 10)
    until_queued(lab, "kept", revoked, "revoked")
    lab.app.control.revoke(revoked.id, reply=True, timeout=60, limit=1)
    expired = lab.send("kept", "expired", "first", 10, expires=1)
    for result, key in ((revoked, "revoked"), (expired, "expired")):
        with pytest.raises(TaskRevokedError):
            result.get(timeout=DEADLINE)
        assert lab.send("kept", key, "next", retries=0).get(timeout=DEADLINE) == "next"
        assert lab.journal.tags(key=key) == ["first", "next"]
    stage.assert_nothing_is_left(lab)


@pytest.mark.proves("kept lock is free")
@ONCE
def test_the_lock_is_free_when_its_retry_is_revoked_before_its_run_has_ended(stage: Stage) -> None:
    lab = make_lab(stage)
    worker = stage.start_worker(lab, slots=4)
    result = lab.send("hooked", "k", "first", hold=True)
    lab.journal.wait_for("start", tag="first")
    lab.app.control.revoke(result.id, reply=True, timeout=60, limit=1)
    lab.open("first")
    worker.wait_for_log("Discarding revoked task")
    other = lab.send("kept", "k", "other", retries=0)
    lab.wait_for_line(1, "kept", "k")
    lab.doors.rpush("door:hook", 1)
    assert other.get(timeout=DEADLINE) == "other"
    stage.assert_nothing_is_left(lab)


@pytest.mark.proves("kept lock is free")
@ONCE
def test_an_operator_sees_and_releases_the_lock_of_a_queued_retry(stage: Stage) -> None:
    lab, countdown = make_lab(stage), 60  # two commands take half a minute on a busy machine
    stage.start_worker(lab, slots=4)
    first = lab.send("kept", "k", "first", countdown)
    key = until_queued(lab, "kept", first).key
    other = lab.send("kept", "k", "other", retries=0)
    lab.wait_for_line(1, "kept", "k")
    listed = command(lab, "locks", "ls").stdout
    assert key in listed
    assert "queued" in listed
    assert first.id in listed
    assert command(lab, "locks", "release", key).returncode == 0  # no body runs: it needs no force
    assert other.get(timeout=DEADLINE) == "other"
    assert first.get(timeout=countdown + DEADLINE) == "first"
    assert lab.journal.tags() == ["first", "other", "first"]
    stage.assert_nothing_is_left(lab)


@pytest.mark.promise(
    "A retry keeps the lock though the worker that waits for its countdown is killed. A killed attempt "
    "runs again, and its retry keeps the lock",
    name="kept lock, killed worker",
    broke="the lease has the life of a run",
)
@on_stages("prefork", "threads", brokers=("rabbitmq",), lates=(True, False))
def test_a_retry_keeps_the_lock_though_the_worker_that_has_it_is_killed(stage: Stage) -> None:
    lab = make_lab(stage, exclusive_ttl=3)
    doomed = stage.start_worker(lab, "doomed")
    first = lab.send("kept", "k", "first", 10)
    until_queued(lab, "kept", first)
    doomed.kill()
    other = lab.send("kept", "k", "other", retries=0)
    stage.start_worker(lab, "heir")
    assert first.get(timeout=DEADLINE) == "first"
    assert other.get(timeout=DEADLINE) == "other"
    assert lab.journal.tags() == ["first", "first", "other"]
    stage.assert_nothing_is_left(lab)


@pytest.mark.proves("kept lock, killed worker")
@on_stages("prefork", brokers=("redis",), lates=(True,))
def test_an_attempt_whose_worker_is_killed_runs_again_and_its_retry_keeps_the_lock(stage: Stage) -> None:
    lab = make_lab(stage, exclusive_ttl=3, broker_transport_options={})
    doomed = stage.start_worker(lab, "doomed")
    first = lab.send("kept", "k", "first", 5, hold=True)
    lab.journal.wait_for("start", tag="first")
    doomed.kill()
    stage.start_worker(lab, "heir", slots=3)
    lab.journal.wait_for("start", 2, tag="first")
    other = lab.send("kept", "k", "other", retries=0)
    lab.wait_for_line(1, "kept", "k")
    lab.open("first")
    assert first.get(timeout=DEADLINE) == "first"
    assert other.get(timeout=DEADLINE) == "other"
    assert lab.journal.tags() == ["first", "first", "first", "other"]


@pytest.mark.promise(
    "A retry whose store does not answer when it is published, or when its run ends, is sent all the same, "
    "runs once, and leaves nothing behind",
    broke="the retry refused; the lease of an unanswered request left; put into a line that has its id",
)
@pytest.mark.parametrize("name", ["kept", pytest.param("ordered", marks=pytest.mark.large)])
@pytest.mark.parametrize("trouble", ["cut", "silent", "lost request", "lost reply", "lost end"])
@ONCE
def test_a_retry_is_sent_and_runs_once_though_the_store_does_not_answer(
    stage: Stage, proxy: Proxy, store: RedisServer, name: str, trouble: str
) -> None:
    url = f"redis://127.0.0.1:{proxy.port}/0?socket_timeout=1"
    lab = make_lab(stage, exclusive_store=store.url, exclusive_ttl=6)
    worker = stage.start_worker(lab, slots=4, exclusive_store=url)
    first = lab.send(name, "k", "first", 0, hold=True)
    lab.journal.wait_for("start", tag="first")
    other = lab.send(name, "k", "other", retries=0)
    lab.wait_for_line(1, name, "k")
    if trouble == "cut":
        proxy.cut()
    elif trouble == "silent":
        proxy.drop(replies=True)
    elif trouble == "lost request":
        proxy.drop(requests=True)
    elif trouble == "lost reply":
        proxy.lose(b"\r\nacquire_alone\r\n", 100)
    else:
        proxy.lose(b"\r\nrequeue\r\n", 100)
    lab.open("first")
    if trouble != "lost end":
        worker.wait_for_log(f"[{first.id}] could not leave lock")
    proxy.restore()
    assert first.get(timeout=DEADLINE) == "first"
    assert other.get(timeout=DEADLINE) == "other"
    assert lab.journal.tags("end").count("first") == 2
    assert lab.journal.tags().count("other") == 1
    with store.client() as client:
        stage.assert_nothing_is_left(lab, client)


@pytest.mark.proves("kept lock")
@ONCE
def test_a_chord_whose_members_keep_their_lock_completes(stage: Stage) -> None:
    lab = make_lab(stage)
    stage.start_worker(lab, slots=4)
    kept, plain = lab.task("kept"), lab.task("gather")
    result = chord(kept.si("k", f"member {n}", 1) for n in range(3))(plain.s())
    assert sorted(result.get(timeout=DEADLINE)) == [f"member {n}" for n in range(3)]
    tags = lab.journal.tags()
    assert tags[::2] == tags[1::2]  # each with its retry
    stage.assert_nothing_is_left(lab)


@pytest.mark.promise(
    "A retry keeps the lock of its run though the store is away when the retry is due",
    broke="red before: the message that came again released the lease that it had",
)
@pytest.mark.parametrize("trouble", ["cut", "lost replies"])
@on_stages("prefork", brokers=("redis",), lates=(False,))
def test_a_retry_that_finds_no_store_keeps_the_lock_until_it_comes_again(
    stage: Stage, proxy: Proxy, store: RedisServer, trouble: str
) -> None:
    url = f"redis://127.0.0.1:{proxy.port}/0?socket_timeout=0.5"
    lab = make_lab(stage, exclusive_store=store.url, exclusive_store_wait=3)
    worker = stage.start_worker(lab, slots=4, exclusive_store=url)
    first = lab.send("kept", "k", "first", 10)
    until_queued(lab, "kept", first)
    other = lab.send("kept", "k", "other", retries=0)
    lab.wait_for_line(1, "kept", "k")
    if trouble == "cut":
        proxy.cut()
    else:
        proxy.drop(replies=True)
    worker.wait_for_log(f"[{first.id}] goes back to the broker")
    proxy.restore()
    assert first.get(timeout=DEADLINE) == "first"
    assert other.get(timeout=DEADLINE) == "other"
    assert lab.journal.tags() == ["first", "first", "other"]
    with store.client() as client:
        stage.assert_nothing_is_left(lab, client)


@pytest.mark.proves("kept lock is free")
@on_stages("prefork", brokers=("rabbitmq",), lates=(True,))
def test_the_lock_is_free_when_a_redelivered_retry_of_a_topic_is_revoked(stage: Stage) -> None:
    topic = {"task_default_exchange": "lab.topic", "task_default_exchange_type": "topic"}
    lab = make_lab(stage, exclusive_ttl=3, task_default_routing_key="lab.key", **topic)
    doomed = stage.start_worker(lab, "doomed")
    first = lab.send("kept", "k", "first", 30)
    until_queued(lab, "kept", first)
    doomed.kill()
    heir = stage.start_worker(lab, "heir")
    heir.wait_for_log(f"[{first.id}] received")
    lab.app.control.revoke(first.id, reply=True, timeout=60, limit=1)
    with pytest.raises(TaskRevokedError):
        first.get(timeout=DEADLINE)
    assert lab.send("kept", "k", "next", retries=0).get(timeout=DEADLINE) == "next"
    stage.assert_nothing_is_left(lab)


@pytest.mark.proves("kept lock is free")
@on_stages("prefork", brokers=("rabbitmq",), lates=(True,))
def test_the_lock_is_free_when_a_release_without_it_has_run_the_retry(stage: Stage) -> None:
    lab = make_lab(stage, exclusive_ttl=3)
    doomed = stage.start_worker(lab, "doomed")
    first = lab.send("both", "k", "first", 10)
    until_queued(lab, "both", first)
    doomed.kill()
    stage.start_worker(lab, "newer", task_annotations={"*": {"exclusive": None}})
    assert first.get(timeout=DEADLINE) == "first"
    stage.assert_nothing_is_left(lab)
