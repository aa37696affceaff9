"""However a task ends, its unique key is free when it has, and not before; what runs again keeps it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from base64 import b64decode, b64encode
from collections import Counter

import celery
import pytest
from kombu.exceptions import OperationalError

from celery_exclusive import Exclusive, StoreUnavailable, Unique
from tests.proxy import Proxy
from tests.servers import RedisServer
from tests.worker.lab import Lab, eventually
from tests.worker.message import Message, consume
from tests.worker.stage import Stage, on_stages
from tests.worker.test_unique import ONCE, SHOP, assert_skipped, hold
from tests.worker.versions import needs_celery

DEADLINE = 60
AS_LOST = (2, 1) if celery.VERSION >= (5, 7) else (1, 1)
TOLD = {
    **dict.fromkeys(("return", "exception", "ignore", "reject"), (1, 1)),
    **dict.fromkeys(("retry", "retry-later", "retries-exhausted", "autoretry", "replace"), (2, 2)),
    "reject-requeue": (2, 1),
}
"""How often such a task runs with late, and with early acknowledgement."""
RUNS = {
    **TOLD,
    **dict.fromkeys(("child-exit", "child-killed"), (2, 1)),
    **dict.fromkeys(("soft-limit", "hard-limit", "hard-limit-stubborn"), (1, 1)),
    "system-exit": AS_LOST,
}
LIMITS = {
    "soft-limit": {"soft_time_limit": 5},
    "hard-limit": {"time_limit": 5},
    "hard-limit-stubborn": {"time_limit": 5},
}


@pytest.mark.promise(
    "A unique key is free after every ending of a body, SIGKILL, limits, retries and replace among them, "
    "in every pool (Redis and RabbitMQ, late and early; quorum queues; ttl 600 s)",
    name="unique, endings of a body",
    broke=(
        "the main process releases the lock alone; early ack keeps what cannot be redelivered; no "
        "hand-over to the retry"
    ),
)
@pytest.mark.each_part
@on_stages("prefork")
def test_the_unique_key_is_free_after_each_ending_of_a_body(stage: Stage) -> None:
    assert_keys_are_free_after(RUNS, stage, stage.make_lab(SHOP, exclusive_ttl=600))


@pytest.mark.proves("unique, endings of a body")
@pytest.mark.each_part
@on_stages("threads", "gevent", "solo", late_only=("rabbitmq",))
def test_the_unique_key_is_free_after_each_ending_of_a_body_in_a_pool_of_one_process(stage: Stage) -> None:
    assert_keys_are_free_after(TOLD, stage, stage.make_lab(SHOP, exclusive_ttl=600))


@pytest.mark.proves("unique, endings of a body")
@needs_celery("5.5", "quorum queues")
@on_stages("prefork", "gevent", brokers=("rabbitmq",), lates=(True,))
def test_the_unique_key_is_free_after_each_ending_of_a_body_with_quorum_queues(stage: Stage) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=600, queue_arguments={"x-queue-type": "quorum"})
    assert_keys_are_free_after(RUNS if stage.pool == "prefork" else TOLD, stage, lab)


def assert_keys_are_free_after(ways: dict[str, tuple[int, int]], stage: Stage, lab: Lab) -> None:
    """No lease runs out: who sees the end gives the key back."""
    stage.start_worker(lab, slots=len(ways) + 2)
    for how in ways:
        lab.send("end", how, "doomed", how, options=LIMITS.get(how, {}))
    for how, runs in ways.items():

        def is_free(how: str = how) -> bool:
            return bool(lab.send("end", how, "next").outcome == "published")

        lab.journal.wait_for("start", runs[not stage.late], key=how, tag="doomed")
        eventually(is_free, f"a free key after {how}")
        lab.journal.wait_for("end", key=how, tag="next")
    stage.assert_nothing_is_left(lab)
    for how, runs in ways.items():
        assert Counter(lab.journal.tags(key=how)) == {"doomed": runs[not stage.late], "next": 1}, how
        assert lab.journal.tags(key=how)[-1] == "next"


@pytest.mark.promise(
    "A message that was acknowledged, and whose body wants it again, releases its key though it had waited",
    broke="red before, in a child: held for `ttl`",
)
@pytest.mark.parametrize("how", ["reject-requeue", "memory-error"])
@on_stages("prefork", "threads", brokers=("redis",), lates=(False,))
def test_an_acknowledged_message_that_asks_for_redelivery_releases_its_key_also_after_waiting(
    stage: Stage, how: str
) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=600)
    worker = stage.start_worker(lab, slots=3)
    options = {"exclusive": Exclusive(key="one at a time")}
    lab.send("end", "other", "holder", "return", True, options=options)
    lab.journal.wait_for("start", tag="holder")
    ends = lab.send("end", "k", "ends", how, options=options)
    worker.wait_for_log(f"[{ends.id}] parked: ")
    lab.open("holder")
    lab.journal.wait_for("end", tag="ends")
    eventually(lambda: lab.task("end").lock_state("k").unique_holder is None, "a free key")


@pytest.mark.proves("unique, endings of a body")
@ONCE
def test_a_retry_has_the_key_while_it_waits_for_its_time(stage: Stage) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=600, exclusive_queued_ttl=10_000)
    stage.start_worker(lab)
    result = lab.send("patient", "k", "retried")
    eventually(lambda: result.state == "RETRY", "its retry")
    state = lab.task("patient").lock_state("k")
    assert (state.unique_holder.task_id, state.is_running, state.is_queued) == (result.id, False, True)
    assert state.unique_holder.remaining > 9_990
    assert_skipped(lab.send("patient", "k", "duplicate"), result)
    assert result.get(timeout=DEADLINE) == "retried"
    stage.assert_nothing_is_left(lab)
    assert lab.journal.tags() == ["retried", "retried"]


@pytest.mark.promise(
    "When a worker is killed, its unique task comes back with its key, or the key ends by `ttl`; a "
    "redelivered message waits for another run that holds its key",
    name="unique, killed worker",
    broke="a redelivered message is skipped; its ttl not set at the start",
)
@pytest.mark.each_part
@on_stages("prefork", brokers=("redis",))
def test_when_a_worker_is_killed_its_task_comes_back_with_its_key_or_the_key_ends_by_ttl(
    stage: Stage,
) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=9)
    doomed = stage.start_worker(lab)
    holder = hold(lab, "once")
    doomed.kill()
    assert_skipped(lab.send("once", "k", "duplicate"), holder)
    other = stage.start_worker(lab, "w2")
    if stage.late:
        Message.unacknowledged(lab, holder.id).deliver_again()
        lab.journal.wait_for("start", 2, tag="holder")
        assert_skipped(lab.send("once", "k", "duplicate"), holder)
        lab.open("holder")
        assert holder.get(timeout=DEADLINE) == "holder"
    eventually(lambda: lab.send("once", "k", "next").outcome == "published", "a free key")
    lab.journal.wait_for("end", tag="next")
    assert other.process.poll() is None
    stage.assert_nothing_is_left(lab)
    assert lab.journal.tags() == ["holder", *["holder"][: stage.late], "next"]


@pytest.mark.proves("unique, killed worker")
@ONCE
def test_a_redelivered_task_waits_for_another_run_that_holds_its_key(stage: Stage) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=1, exclusive_recover=False)
    doomed = stage.start_worker(lab)
    first = hold(lab, "once", "first")
    doomed.kill()
    eventually(lambda: lab.send("once", "k", "second", True).outcome == "published", "the end of its lease")
    worker = stage.start_worker(lab, "w2", slots=3)
    lab.journal.wait_for("start", tag="second")
    Message.unacknowledged(lab, first.id).deliver_again()
    worker.wait_for_log(f"[{first.id}] parked: number 1 in line")
    lab.open("first", "second")
    assert first.get(timeout=DEADLINE) == "first"
    stage.assert_nothing_is_left(lab)
    assert lab.journal.tags("end") == ["second", "first"]


@pytest.mark.proves("unique key in line")
@ONCE
def test_a_redelivered_task_that_has_to_wait_keeps_its_key_in_the_line(stage: Stage) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=600, exclusive_recover=False)
    doomed = stage.start_worker(lab, options=("-Q", "side"))
    first = hold(lab, "outlived", "first", queue="side")
    stage.start_worker(lab, "w2", slots=3)
    doomed.kill()
    hold(lab, "outlived", "second", unique=None)  # when the lease on the lock has expired
    Message.unacknowledged(lab, first.id).deliver_again()
    consume(lab, stage.start_worker(lab, "w3", options=("-Q", "none")), "side")
    lab.wait_for_line(1, "outlived", "k")
    eventually(
        lambda: lab.task("outlived").lock_state("k").unique_holder.remaining > 80_000, "a key that is kept"
    )
    assert lab.task("outlived").lock_state("k").is_unique_holder_queued
    assert_skipped(lab.send("outlived", "k", "duplicate"), first)
    lab.open("second")
    lab.journal.wait_for("start", 2, tag="first")
    lab.open("first")
    assert first.get(timeout=DEADLINE) == "first"
    stage.assert_nothing_is_left(lab)


@pytest.mark.promise(
    "A unique task that is revoked, expires or is terminated releases its key; at a warm shutdown the key "
    "stays with its task",
    name="unique, revoked",
    broke="the main process releases the lock alone",
)
@on_stages("prefork", brokers=("redis",))
def test_a_task_that_is_revoked_expires_or_is_terminated_releases_its_key(stage: Stage) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=600)
    stage.start_worker(lab, "side", options=("-Q", "side"))
    in_queue = lab.send("once", "in queue", "in queue")
    expired = lab.send("once", "expired", "expired", options={"expires": 0.1})
    for signal_name in ("SIGTERM", "SIGKILL"):
        running = hold(lab, "once", signal_name, key=signal_name, queue="side")
        lab.app.control.revoke(running.id, terminate=True, signal=signal_name)
    holder = hold(lab, "both", unique=None, queue="side")
    in_line = lab.send("both", "k", "in line", options={"queue": "side"})
    lab.wait_for_line(1, "both", "k")
    lab.app.control.revoke([in_queue.id, in_line.id], reply=True, timeout=60, limit=1)
    lab.open("holder")
    holder.get(timeout=DEADLINE)
    eventually(lambda: in_line.state == "REVOKED", "its end")
    worker = stage.start_worker(lab, "w1", options=("-Q", "none"))
    eventually(  # a worker that has just begun may not hear of it yet
        lambda: len(lab.app.control.revoke(in_queue.id, reply=True, timeout=5, limit=2)) == 2, "both know"
    )
    consume(lab, worker, "lab")
    keys = {"in queue": "once", "expired": "once", "SIGTERM": "once", "SIGKILL": "once", "k": "both"}
    for key, name in keys.items():
        eventually(
            lambda name=name, key=key: lab.send(name, key, f"after {key}").outcome == "published",
            f"a free key: {key}",
        )
        lab.journal.wait_for("end", tag=f"after {key}")
    assert expired.state == "REVOKED"
    stage.assert_nothing_is_left(lab)
    assert not {"in queue", "expired", "in line"} & set(lab.journal.tags())


@pytest.mark.proves("unique, revoked")
@on_stages("prefork", brokers=("redis",))
def test_a_worker_that_shuts_down_leaves_the_key_with_its_task(stage: Stage) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=600)
    warm = stage.start_worker(lab, "warm")
    holder = hold(lab, "once")
    warm.process.send_signal(signal.SIGTERM)
    warm.wait_for_log("Warm shutdown")
    assert_skipped(lab.send("once", "k", "duplicate"), holder)
    lab.open("holder")
    assert holder.get(timeout=DEADLINE) == "holder"
    assert warm.process.wait(60) == 0
    assert lab.send("once", "k", "next").outcome == "published"


@pytest.mark.proves("unique, unknown message")
@on_stages("prefork", brokers=("redis",))
def test_a_worker_in_cold_shutdown_leaves_the_key_with_the_redelivered_message(stage: Stage) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=600)
    cold = stage.start_worker(lab)
    holder = hold(lab, "once")
    cold.process.send_signal(signal.SIGQUIT)
    cold.process.wait(60)
    if stage.messages_at_the_broker(lab):  # not with early acknowledgement, nor with Celery 5.4
        assert_skipped(lab.send("once", "k", "duplicate"), holder)
    else:
        eventually(lambda: lab.send("once", "k", "next").outcome == "published", "a free key")


@pytest.mark.proves("unique, unknown message")
@on_stages("threads", "gevent", brokers=("redis",), lates=(False,))
def test_an_acknowledged_message_whose_body_ends_its_thread_releases_the_key(stage: Stage) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=600)
    stage.start_worker(lab)
    lab.send("end", "k", "doomed", "system-exit")
    lab.journal.wait_for("start", tag="doomed")
    eventually(lambda: lab.send("end", "k", "next").outcome == "published", "a free key")
    lab.journal.wait_for("end", tag="next")


@pytest.mark.promise(
    "The unique key is free after a message that no worker knows, or can make a lock of; after a thread "
    "that ends by SystemExit; after a cold shutdown (Celery 5.4, early). It stays if the task is in line "
    "or runs elsewhere",
    name="unique, unknown message",
    broke="each red before it was fixed (cold shutdown on 5.4)",
)
@pytest.mark.parametrize("is_redelivered", [False, True])
@ONCE
def test_a_task_that_no_worker_knows_releases_its_key(stage: Stage, is_redelivered: bool) -> None:
    """A worker that was stopped may have had it before."""
    lab = stage.make_lab(SHOP, exclusive_ttl=600)

    def ghost(key: str) -> None: ...

    lab.app.task(name="ghost", shared=False, unique=Unique())(ghost)
    lab.app.finalize()
    ghost_task = lab.app.tasks["ghost"]
    result = ghost_task.delay("k")
    if is_redelivered:
        (text,) = lab.doors.lrange("lab", 0, -1)
        lab.doors.delete("lab")
        Message(lab, json.loads(text)).deliver_again()
    stage.start_worker(lab)
    eventually(lambda: result.state == "FAILURE", "its end")
    eventually(lambda: ghost_task.delay("k").outcome == "published", "a free key")


@pytest.mark.proves("unique, unknown message")
@pytest.mark.parametrize("is_redelivered", [False, True])
@ONCE
def test_a_message_that_no_lock_can_be_made_of_releases_its_key(stage: Stage, is_redelivered: bool) -> None:
    """The worker's release has a lock that the publisher's had not, and other parameters."""
    lab = stage.make_lab(SHOP, exclusive_ttl=600)
    message = Message.withheld(
        lab, "both", "k", "odd", options={"exclusive": Exclusive("key", order="arrived")}
    )
    message.content["headers"]["exclusive"].pop("values")
    message.content["headers"]["exclusive"]["exclusive"] = None
    body = json.loads(b64decode(message.content["body"]))
    body[0] += ["too", "many", "arguments"]
    message.content["body"] = b64encode(json.dumps(body).encode()).decode()
    stage.start_worker(lab)
    deliver = message.deliver_again if is_redelivered else message.deliver
    deliver()
    eventually(lambda: message.result.state == "FAILURE", "its end")
    eventually(lambda: lab.send("both", "k", "next").outcome == "published", "a free key")
    lab.journal.wait_for("end", tag="next")


@pytest.mark.promise(
    "The unique key is free when the broker refuses the message; when it refuses the retry, the run has "
    "the key until it ends. The key of a caller that dies before it has sent ends with `queued_ttl`",
    name="broker refuses the message",
    broke="nothing released; the retry's lease released instead of returned",
)
@ONCE
def test_a_call_that_the_broker_does_not_accept_leaves_its_key_free(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    task = lab.task("once")
    with lab.app.connection("redis://127.0.0.1:1/0") as nowhere, pytest.raises(OperationalError):
        task.apply_async(("k", "lost"), connection=nowhere, retry=False)
    assert task.lock_state("k").unique_holder is None
    stage.start_worker(lab)
    assert lab.send("once", "k", "next").get(timeout=DEADLINE) == "next"
    stage.assert_nothing_is_left(lab)


@pytest.mark.proves("broker refuses the message")
@ONCE
def test_a_retry_that_the_broker_does_not_take_leaves_the_key_with_the_run_that_ends_by_it(
    stage: Stage,
) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=600)
    stage.start_worker(lab)
    result = lab.send("unsent", "k", "retried")
    eventually(lambda: lab.send("unsent", "k", "next").outcome == "published", "a free key")
    (kept,) = lab.journal.events("kept", tag="retried")
    assert kept["by"] == result.id
    lab.journal.wait_for("end", tag="next")
    stage.assert_nothing_is_left(lab)


@pytest.mark.proves("broker refuses the message")
@ONCE
def test_a_retry_with_other_arguments_that_the_broker_does_not_take_leaves_both_keys_free(
    stage: Stage,
) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=600)
    stage.start_worker(lab)
    lab.send("unsent", "k", "moved")
    lab.journal.wait_for("end", tag="moved")
    for key in ("k", "k elsewhere"):
        eventually(
            lambda key=key: lab.task("unsent").lock_state(key).unique_holder is None, f"a free key: {key}"
        )
    stage.assert_nothing_is_left(lab)


@pytest.mark.promise(
    "Retries, members of canvases and the calls at the end of a task are never refused, by the store or by "
    "a conflict",
    name="never refused",
    broke="none of them has to be sent; what comes next has not; it is told of its parent",
)
@ONCE
def test_without_its_store_a_retry_is_sent_all_the_same(
    stage: Stage, proxy: Proxy, store: RedisServer
) -> None:
    url = f"redis://127.0.0.1:{proxy.port}/0?socket_timeout=1"
    lab = stage.make_lab(SHOP, exclusive_store=store.url, exclusive_ttl=600)
    worker = stage.start_worker(lab, exclusive_store=url)
    result = lab.send("end", "k", "retried", "retry", True)
    lab.journal.wait_for("start", tag="retried")
    proxy.cut()
    lab.open("retried", "retried")
    worker.wait_for_log(f"[{result.id}] continues without unique key")
    proxy.restore()
    assert result.get(timeout=DEADLINE) == "retried"
    eventually(lambda: lab.send("end", "k", "next").outcome == "published", "a free key")
    lab.journal.wait_for("end", tag="next")
    with store.client() as client:
        stage.assert_nothing_is_left(lab, client)
    assert lab.journal.tags() == ["retried", "retried", "next"]


@pytest.mark.promise(
    "A hard limit does not fail finished work while the store is silent; a key is released also where "
    "Celery does not come to the body",
    name="unique, hard limit",
    broke="calls as long as the store's timeout; only a run releases",
)
@ONCE
def test_a_hard_limit_does_not_end_a_body_that_has_ended_while_the_store_is_silent(
    stage: Stage, proxy: Proxy, store: RedisServer
) -> None:
    url = f"redis://127.0.0.1:{proxy.port}/0?socket_timeout=30"
    lab = stage.make_lab(SHOP, exclusive_store=store.url, exclusive_ttl=600)
    stage.start_worker(lab, exclusive_store=url)
    holder = hold(lab, "once", time_limit=20)
    proxy.drop(requests=True)
    lab.open("holder")
    assert holder.get(timeout=DEADLINE) == "holder"
    proxy.restore()
    eventually(lambda: lab.send("once", "k", "next").outcome == "published", "a free key")
    lab.journal.wait_for("end", tag="next")
    with store.client() as client:
        stage.assert_nothing_is_left(lab, client)


@pytest.mark.proves("unique, hard limit")
@ONCE
def test_a_task_that_fails_before_it_would_be_skipped_releases_its_key(stage: Stage) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=600)
    stage.start_worker(lab, slots=3)
    hold(lab, "fussy", "holder", unique=None)
    fails = lab.send("fussy", "k", "fussy")
    assert isinstance(fails.get(timeout=DEADLINE, propagate=False), KeyError)
    eventually(lambda: lab.send("fussy", "k", "skipped").outcome == "published", "a free key")
    lab.open("holder")
    lab.journal.wait_for("end", tag="holder")
    eventually(lambda: lab.task("fussy").lock_state("k").unique_holder is None, "a free key")
    stage.assert_nothing_is_left(lab)


DYING = """
import os, signal
from tests.worker.shop_unique import app, once
app.amqp.send_task_message = lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL)
once.delay("k", "lost")
"""


@pytest.mark.proves("broker refuses the message")
@ONCE
def test_a_caller_that_dies_before_it_has_sent_holds_the_key_for_as_long_as_a_lost_message(
    stage: Stage, store: RedisServer
) -> None:
    """Unless broker and store are one Redis database, where it has no key yet: see test_one_call.py."""
    lab = stage.make_lab(SHOP, exclusive_store=store.url, exclusive_queued_ttl=9)
    lab.app._celery_exclusive.store.check()  # the store knows the script, and does what is only sent
    dying = subprocess.run([sys.executable, "-c", DYING], env=lab.environment, check=False)
    assert dying.returncode == -signal.SIGKILL
    assert lab.send("once", "k", "too early").outcome == "skipped"
    eventually(lambda: lab.send("once", "k", "next").outcome == "published", "the end of a lost message")
    stage.start_worker(lab)
    lab.journal.wait_for("end", tag="next")
    assert lab.journal.tags() == ["next"]


@pytest.mark.promise(
    "The store is down at a unique call, or at its end, or loses its data: the call fails or is sent, no "
    "result changes, and held keys are restored",
    name="unique, store outage",
    broke="what failed at the end is not owed; not restored",
)
@ONCE
def test_without_its_store_a_call_fails_or_is_sent_and_its_worker_takes_the_key(
    stage: Stage, proxy: Proxy, store: RedisServer
) -> None:
    url = f"redis://127.0.0.1:{proxy.port}/0?socket_timeout=1"
    lab = stage.make_lab(SHOP, exclusive_store=url, exclusive_ttl=600)
    stage.start_worker(lab, exclusive_store=store.url)
    proxy.cut()
    with pytest.raises(StoreUnavailable):
        lab.send("once", "k", "refused")
    allowed = lab.send("careless", "k", "allowed", True)
    assert allowed.outcome == "published"
    lab.journal.wait_for("start", tag="allowed")
    twice = lab.send("careless", "k", "twice")
    assert twice.get(timeout=DEADLINE)["skipped"]["existing_id"] == allowed.id
    proxy.restore()
    assert_skipped(lab.send("careless", "k", "duplicate"), allowed)
    lab.open("allowed")
    assert allowed.get(timeout=DEADLINE) == "allowed"
    with store.client() as client:
        stage.assert_nothing_is_left(lab, client)
    assert lab.journal.tags() == ["allowed"]


@pytest.mark.proves("unique, store outage")
@ONCE
def test_a_store_that_is_down_at_the_end_changes_no_result_and_the_key_is_released_when_it_is_back(
    stage: Stage, proxy: Proxy, store: RedisServer
) -> None:
    url = f"redis://127.0.0.1:{proxy.port}/0?socket_timeout=1"
    lab = stage.make_lab(SHOP, exclusive_store=store.url, exclusive_ttl=600)
    stage.start_worker(lab, exclusive_store=url)
    holder = hold(lab, "once")
    proxy.cut()
    lab.open("holder")
    assert holder.get(timeout=DEADLINE) == "holder"
    assert_skipped(lab.send("once", "k", "too early"), holder)
    proxy.restore()
    eventually(lambda: lab.send("once", "k", "next").outcome == "published", "a free key")
    lab.journal.wait_for("end", tag="next")
    with store.client() as client:
        stage.assert_nothing_is_left(lab, client)


@pytest.mark.proves("unique, store outage")
@ONCE
def test_a_store_that_loses_its_data_gets_the_held_keys_restored(stage: Stage, store: RedisServer) -> None:
    lab = stage.make_lab(SHOP, exclusive_store=store.url, exclusive_ttl=6)
    stage.start_worker(lab)
    holder = hold(lab, "careless")
    lab.assert_kept("careless", "k", renewals=1)
    with store.client() as client:
        client.flushall()
    eventually(lambda: lab.task("careless").lock_state("k").unique_holder, "its lease, restored")
    assert_skipped(lab.send("careless", "k", "duplicate"), holder)
    lab.open("holder")
    assert holder.get(timeout=DEADLINE) == "holder"
    with store.client() as client:
        stage.assert_nothing_is_left(lab, client)
