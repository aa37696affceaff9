"""Endings that come from outside: somebody revokes, purges, terminates or kills. The key goes on."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from celery_exclusive import Exclusive
from tests.worker.journal import Event
from tests.worker.lab import Lab, Worker, eventually
from tests.worker.message import Message, consume, stop_consuming
from tests.worker.stage import Stage, on_stages
from tests.worker.versions import needs_celery

SOON = 7
"""Seconds until something expires: until then it has to wait in line, also on a busy machine."""
OUTSIDE = "tests.worker.shop_outside"
ARRIVED = {"exclusive": Exclusive("key", order="arrived")}


def hold(
    lab: Lab, tag: str, *, name: str = "wait", key: str = "k", is_stubborn: bool = False, **options: Any
) -> Any:
    """Send a task whose body stays open until the test opens its tag's door, and wait until it runs."""
    result = lab.send(name, key, tag, True, is_stubborn, options=options)
    lab.journal.wait_for("alive", tag=tag)
    return result


def line_up(lab: Lab, *tags: str, key: str = "k", **options: Any) -> list[Any]:
    """Let these wait for a key, one behind the other."""
    results = []
    for tag in tags:
        results.append(lab.send("wait", key, tag, options=options))
        lab.wait_until_in_line(results[-1].id, "wait", key)
    return results


def hold_plain(lab: Lab, tag: str, *, is_stubborn: bool = False, **options: Any) -> Any:
    """The same, with a task that wants no lock."""
    result = lab.send("plain", tag, True, is_stubborn, options=options)
    lab.journal.wait_for("alive", tag=tag)
    return result


def start_of(lab: Lab, tag: str) -> Event:
    return lab.journal.wait_for("start", tag=tag)[0]


def end_of(lab: Lab, tag: str) -> int:
    return int(lab.journal.wait_for("end", tag=tag)[0]["at"])


def now() -> int:
    """This instant on the journal's clock."""
    return time.monotonic_ns()


def revoke(lab: Lab, *results: Any, workers: int = 1, **how: Any) -> None:
    """Revoke these, and wait until so many workers know it."""
    ids = [result.id for result in results]
    assert len(lab.app.control.revoke(ids, reply=True, timeout=60, limit=workers, **how)) == workers


def assert_never_two(lab: Lab, *keys: str) -> None:
    """No two bodies of one key were open at once; one that was cut off was so until its last sign of life."""
    for key in keys:
        signs = {(event["pid"], event["id"]): event for event in lab.journal.events(key=key)}
        for event in signs.values():
            if event["what"] != "end":
                lab.journal.write("end", **{name: value for name, value in event.items() if name != "what"})
        assert lab.journal.most_open(key=key) == 1


def wait_until_expired(seconds: float, since: int) -> None:
    """Wait until what was to expire so long after that instant certainly has."""
    eventually(lambda: now() > since + (seconds + 0.1) * 1e9, "its expiry")


def received(worker: Worker, result: Any) -> int:
    """How often a worker was given a task's message."""
    return worker.log.count(f"[{result.id}] received")


@pytest.mark.promise(
    "A task that is revoked, revoked by a stamp, or expired lets the line move on: in queue, in line, "
    "offered, prefetched",
    name="revoked and expired",
    broke="nothing is reported; `done` always false",
)
@on_stages("prefork")
def test_a_task_revoked_or_expired_in_queue_in_line_or_prefetched_lets_the_line_move_on(stage: Stage) -> None:
    lab = stage.make_lab(OUTSIDE, exclusive_ttl=600, exclusive_offer=1)
    worker = stage.start_worker(lab, slots=3, options=("-Q", "lab"))
    lab.start_worker("holding", 2, options=("-Q", "holding"))
    team = {"stamped_headers": ["team"], "team": "blue"}
    in_queue = [
        lab.send("wait", "k", f"in-queue-{how}", options={"queue": "side", **ARRIVED, **options})
        for how, options in (("revoked", {}), ("stamped", team), ("expired", {"expires": 1}))
    ]
    hold(lab, "k-holder", queue="holding")
    hold(lab, "e-holder", key="e", queue="holding")
    revoked, _ = line_up(lab, "revoked", "k-first")
    stamped, also_stamped = line_up(lab, "stamped", "also-stamped", **team)
    line_up(lab, "k-next")
    (expiring,), sent = line_up(lab, "expiring", key="e", expires=SOON), now()  # last: its time runs
    line_up(lab, "e-next", key="e")
    for tag in ("slot", "slot0", "slot1"):
        hold_plain(lab, tag)
    lab.open("k-holder", "e-holder")
    for result in (revoked, expiring):  # maybe once more: an offer lasts a second
        eventually(lambda result=result: received(worker, result) >= 2, "both, prefetched")
    revoke(lab, revoked, in_queue[0], workers=2)
    assert lab.app.control.revoke_by_stamped_headers({"team": "blue"}, reply=True, timeout=60, limit=2)
    wait_until_expired(SOON, since=sent)
    assert not lab.journal.events("start", tag="k-first")
    lab.open("slot")
    started = {tag: start_of(lab, tag)["at"] for tag in ("k-first", "k-next", "e-next")}
    stage.note("revoked-offered", end_of(lab, "slot"), started["k-first"])
    stage.note("revoked-offered", end_of(lab, "k-first"), started["k-next"])
    stage.note("expired-offered", end_of(lab, "slot"), started["e-next"])
    consume(lab, worker, "side")
    lab.open("slot0", "slot1")
    dropped = in_queue.pop() if stage.broker == "rabbitmq" else None  # by the broker, which tells nobody
    for result in (revoked, expiring, stamped, also_stamped, *in_queue):
        assert eventually(lambda result=result: result.state == "REVOKED", f"REVOKED, not {result.state}")
    assert dropped is None or dropped.state == "PENDING"
    lab.send("wait", "k", "last", options={"queue": "side"})
    lab.journal.wait_for("end", tag="last")
    stage.assert_nothing_is_left(lab)
    assert lab.journal.tags("start", key="k") == ["k-holder", "k-first", "k-next", "last"]
    assert lab.journal.tags("start", key="e") == ["e-holder", "e-next"]


@pytest.mark.proves("revoked and expired")
@on_stages("threads", "gevent", "solo", brokers=("redis",), lates=(True,))
def test_in_a_pool_of_one_process_too_the_line_passes_revoked_and_expired_tasks(stage: Stage) -> None:
    lab = stage.make_lab(OUTSIDE, exclusive_ttl=600, exclusive_offer=1)
    stage.start_worker(lab, options=("-Q", "side"))
    hold(lab, "holder", queue="side")
    stage.start_worker(lab, "w2", 1, options=("-Q", "lab"))
    (revoked,) = line_up(lab, "revoked")
    (stamped,) = line_up(lab, "stamped", stamped_headers=["team"], team="blue")
    (expired,), sent = line_up(lab, "expired", expires=SOON), now()
    line_up(lab, "next")
    to = {"destination": ["w2@lab"], "reply": True, "timeout": 60, "limit": 1}
    assert lab.app.control.revoke(revoked.id, **to)
    assert lab.app.control.revoke_by_stamped_headers({"team": "blue"}, **to)
    wait_until_expired(SOON, since=sent)
    lab.open("holder")
    stage.note("revoked-offered", end_of(lab, "holder"), start_of(lab, "next")["at"])
    for result in (revoked, stamped, expired):
        assert eventually(lambda result=result: result.state == "REVOKED", f"REVOKED, not {result.state}")
    stage.assert_nothing_is_left(lab)
    assert lab.journal.tags("start") == ["holder", "next"]


@pytest.mark.promise(
    "A terminated body keeps its key as long as it lives, and no longer; so it does inside our own calls",
    name="terminated",
    broke="freed at once; no heartbeat; death not reported",
)
@pytest.mark.proves("prompt release")
@on_stages("prefork")
def test_a_terminated_task_keeps_the_key_as_long_as_its_body_lives_and_no_longer(stage: Stage) -> None:
    lab = stage.make_lab(OUTSIDE, exclusive_ttl=600)
    stage.start_worker(lab, slots=5)
    signals = {"terminate": "SIGTERM", "terminate-kill": "SIGKILL"}
    twins = {row: hold_plain(lab, f"{row}-twin") for row in signals}
    holders = {row: hold(lab, row, key=row) for row in signals}
    (waiting,) = line_up(lab, "waiting", key="terminate")
    for row, signal_name in signals.items():
        line_up(lab, f"{row}-next", key=row)
        told = now()
        revoke(lab, waiting, holders[row], twins[row], terminate=True, signal=signal_name)
        stage.note(row, told, start_of(lab, f"{row}-next")["at"])
    stubborn = hold(lab, "stubborn", name="brief", key="s", is_stubborn=True)
    line_up(lab, "stubborn-next", key="s")
    twin = hold_plain(lab, "twin", is_stubborn=True)
    revoke(lab, stubborn, twin, terminate=True)
    lab.journal.wait_for("told", tag="stubborn")
    lab.journal.wait_for("told", tag="twin")
    lab.assert_kept("brief", "s")
    lab.open("stubborn", "twin")
    started = start_of(lab, "stubborn-next")
    stage.note("terminate-stubborn", end_of(lab, "stubborn"), started["at"])
    stage.assert_nothing_is_left(lab)
    for row in signals:
        assert lab.journal.tags("start", key=row) == [row, f"{row}-next"]
        for result in (holders[row], twins[row], waiting):
            assert eventually(lambda result=result: result.state == "REVOKED", f"REVOKED, not {result.state}")
    assert lab.journal.tags("start", key="s") == ["stubborn", "stubborn-next"]
    eventually(
        lambda: twin.state != "PENDING" and stubborn.state == twin.state, "the state that Celery gives"
    )
    assert_never_two(lab, "s", *signals)


@pytest.mark.proves("terminated")
@on_stages("prefork", brokers=("redis",))
def test_a_task_terminated_inside_our_own_calls_leaves_neither_lease_nor_line(stage: Stage) -> None:
    lab = stage.make_lab(OUTSIDE, exclusive_ttl=600)
    stage.start_worker(lab, slots=9)
    hold(lab, "holder", key="parking")
    line = {"after-park": "parking", "after-park-too": "parking"}
    places = ["before-acquire", "after-acquire", "before-release", "before-release-too", "after-release"]
    keys = {**{place: place for place in places}, **line}
    killed = {id: lab.send("wait", key, id, options={"task_id": id}) for id, key in keys.items()}
    for id in keys:
        lab.journal.wait_for("at", tag=id)
    for place in places:
        if place != "before-acquire":
            lab.send("wait", place, f"{place}-next")
    lab.wait_for_line(2, "wait", "parking")
    for id, result in killed.items():
        revoke(lab, result, terminate=True, signal="SIGKILL" if id.endswith("-too") else "SIGTERM")
    lab.open("before-release", "after-release")  # which is not interrupted: it is over first
    lab.wait_for_line(0, "wait", "parking")
    lab.open("holder")
    for key in (*places, "parking"):
        lab.send("wait", key, f"{key}-last")
    for key in (*places, "parking"):
        lab.journal.wait_for("end", tag=f"{key}-last")
    stage.assert_nothing_is_left(lab)
    assert not {"before-acquire", "after-acquire", *line} & set(lab.journal.tags("start"))
    assert_never_two(lab, *places, "parking")


def kill(stage: Stage, *, parent_alone: bool = False) -> None:
    """Kill a worker, all of it or only its main process, while it has a body and others wait for the key."""
    lab = stage.make_lab(OUTSIDE, exclusive_ttl=9, exclusive_recover=False)
    doomed = stage.start_worker(lab, options=("-Q", "lab"))
    holder = hold(lab, "holder")
    other = stage.start_worker(lab, "w2", 1, options=("-Q", "side"))
    line_up(lab, "next0", "next1", queue="side")
    consume(lab, other, "lab")
    asked = now()
    (lease,) = lab.task("wait").lock_state("k").holders
    killed = now()
    if parent_alone:
        os.kill(doomed.pid, signal.SIGKILL)
    else:
        doomed.kill()
    start = start_of(lab, "next0")["at"]
    assert start > asked + lease.remaining * 1e9
    stage.note("worker-killed", killed, start)
    lab.journal.wait_for("end", tag="next1")
    if stage.late and stage.broker == "redis":  # which would do it in ten minutes
        Message.unacknowledged(lab, holder.id).deliver_again()
    lab.open(*["holder"][: stage.late])
    expected = ["holder", "next0", "next1", *["holder"][: stage.late]]
    lab.journal.wait_for("start", len(expected))
    stage.assert_nothing_is_left(lab)
    assert lab.journal.tags("start") == expected
    assert holder.state == ("SUCCESS" if stage.late else "PENDING")
    assert_never_two(lab, "k")


@pytest.mark.promise(
    "After a crash the task runs again; with early acknowledgement it is lost, as in plain Celery",
    broke="reaper does not sweep",
)
@pytest.mark.promise(
    "After a crash the key goes on through `ttl` and reaper",
    name="liveness",
    broke="no reaper",
)
@pytest.mark.promise(
    "When a worker is killed, or its main process alone, its key is free after its lease and never before, "
    "and the task runs once more",
    name="killed worker",
    broke="no sweeps",
)
@pytest.mark.each_part
@on_stages("prefork")
def test_when_a_worker_is_killed_the_key_waits_for_its_ttl_and_the_task_runs_again(stage: Stage) -> None:
    kill(stage)


@pytest.mark.proves("killed worker")
@on_stages("prefork", brokers=("redis",), lates=(True,))
def test_when_its_main_process_alone_is_killed_a_body_does_not_outlive_its_lease(stage: Stage) -> None:
    kill(stage, parent_alone=True)


@pytest.mark.proves("killed worker")
@on_stages("threads", "gevent", "solo", brokers=("redis",), lates=(True,))
def test_when_a_worker_of_one_process_is_killed_the_key_waits_for_its_ttl_too(stage: Stage) -> None:
    kill(stage)


@pytest.mark.promise(
    "A promoted message that is purged or expires is sent again",
    broke="no sweeps; expiry kept",
)
@on_stages("prefork", lates=(True,))
def test_a_message_that_is_purged_or_expires_on_its_way_from_the_line_is_sent_again(stage: Stage) -> None:
    lab = stage.make_lab(OUTSIDE, exclusive_ttl=600, exclusive_offer=1, exclusive_reap_period=0.2)
    worker = stage.start_worker(lab, slots=3, options=("-Q", "lab,side,brief"))
    hold(lab, "k-holder")
    hold(lab, "e-holder", key="e")
    (purged,) = line_up(lab, "purged", queue="side")
    line_up(lab, "k-next", queue="side")
    (expiring,), sent = line_up(lab, "expiring", key="e", queue="brief", expires=SOON), now()
    line_up(lab, "e-next", key="e", queue="brief")
    for queue in ("side", "brief"):
        stop_consuming(lab, worker, queue)
    lab.open("k-holder", "e-holder")
    for queue in ("side", "brief"):
        eventually(lambda queue=queue: stage.messages_at_the_broker(lab, queue) > 0, "a promoted message")
    wait_until_expired(SOON, since=sent)
    with lab.app.connection_for_write() as connection:
        for queue in ("side", "brief"):
            connection.default_channel.queue_purge(queue)
    gone = now()
    eventually(lambda: stage.messages_at_the_broker(lab, "brief") > 0, "another, without an expiry")
    for queue in ("side", "brief"):
        consume(lab, worker, queue)
    stage.note("purged-offered", gone, start_of(lab, "purged")["at"])
    row = "expired-in-queue" if stage.broker == "rabbitmq" else "purged-offered"
    stage.note(row, gone, start_of(lab, "e-next")["at"])
    stage.assert_nothing_is_left(lab)
    assert eventually(lambda: expiring.state == "REVOKED", "REVOKED")
    assert purged.get(timeout=60) == "purged"
    assert lab.journal.tags("start", key="k") == ["k-holder", "purged", "k-next"]
    assert lab.journal.tags("start", key="e") == ["e-holder", "e-next"]


@pytest.mark.promise(
    "A task with an ETA acquires no lease until it runs, and its copies add no run (Redis)",
    broke="an id per delivery",
)
@needs_celery("5.7", "a kombu that soon delivers again")
@on_stages("prefork", brokers=("redis",))
def test_a_task_with_an_eta_takes_no_lease_until_it_runs_and_its_copies_add_no_run(stage: Stage) -> None:
    lab = stage.make_lab(OUTSIDE, broker_transport_options={
        "visibility_timeout": 2, "unacked_restore_interval": 1, "unacked_restore_throttle": 1,
    })  # fmt: skip
    worker = stage.start_worker(lab, slots=6)
    later = lab.send("wait", "k", "later", True, options={"countdown": 8})
    revoked = lab.send("wait", "k", "revoked", options={"countdown": 6})
    eventually(lambda: received(worker, later) and received(worker, revoked), "both, in its memory")
    revoke(lab, revoked)
    assert not lab.task("wait").lock_state("k").is_queued
    lab.send("wait", "k", "meanwhile")
    lab.journal.wait_for("end", tag="meanwhile")
    lab.journal.wait_for("start", tag="later")
    parked = lab.send("wait", "k", "parked", options={"countdown": 1})
    lab.wait_for_line(1, "wait", "k")
    eventually(lambda: received(worker, later) > 1, "its copy")
    lab.open("later")
    assert parked.get(timeout=60) == "parked"
    stage.assert_nothing_is_left(lab)
    assert eventually(lambda: revoked.state == "REVOKED", "REVOKED")
    assert lab.journal.tags("start") == ["meanwhile", "later", "parked"]
