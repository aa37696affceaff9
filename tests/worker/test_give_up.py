"""A task that gives up in line ends though its lock is held, and no task that has begun gives up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import chain, chord
from celery.exceptions import TaskRevokedError

from celery_exclusive import LockHeld
from tests.proxy import Proxy
from tests.servers import RedisServer
from tests.worker.lab import Lab, eventually
from tests.worker.message import Message
from tests.worker.stage import Stage, on_stages

SHOP = "tests.worker.shop_over"
LOCK = "x=over:k"
DEADLINE = 90
pytestmark = pytest.mark.promise(
    "With `give_up_after` a task that waits in line, or is rescheduled, fails with the name of the holder, "
    "or ends as skipped, though its lock is held; its chain and chord complete; retries, and what runs again "
    "after the death of a worker, do not give up",
    name="give up",
    broke="what has begun gives up; the answer lost with the worker; never given up without a sweep",
)
ONCE = on_stages("prefork", brokers=("redis",), lates=(True,))


def hold(lab: Lab, name: str = "patient", tag: str = "holder", **more: Any) -> Any:
    result = lab.send(name, "k", tag=tag, hold=True, **more)
    lab.journal.wait_for("start", tag=tag)
    return result


@on_stages("prefork", "threads", "gevent")
def test_a_task_that_gives_up_fails_or_is_skipped_and_names_the_holder(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    worker = stage.start_worker(lab)
    holder = hold(lab)
    patient, failed, skipped = (lab.send(name, "k", tag=name) for name in ("patient", "hasty", "hasty_skip"))
    with pytest.raises(LockHeld, match=rf"held by {holder.id} for .* and gave up after 2 s") as error:
        failed.get(timeout=DEADLINE)
    assert (error.value.key, error.value.holder) == (LOCK, holder.id)
    assert skipped.get(timeout=DEADLINE) == {"skipped": {"key": LOCK, "existing_id": holder.id}}
    worker.wait_for_log(f"[{skipped.id}] skipped: it waited for lock {LOCK}")
    assert not holder.ready()
    lab.open("holder")
    assert [result.get(timeout=DEADLINE) for result in (holder, patient)] == ["holder", "patient"]
    assert lab.journal.tags() == ["holder", "patient"]
    stage.assert_nothing_is_left(lab)


@pytest.mark.parametrize("name", ["postgres", pytest.param("maria", marks=pytest.mark.large), "sqlite"])
def test_a_task_gives_up_in_the_line_of_a_database(
    make_lab: Callable[..., Lab], request: pytest.FixtureRequest, tmp_path: Any, name: str
) -> None:
    url = f"sqlite:///{tmp_path}/locks.db" if name == "sqlite" else request.getfixturevalue(f"{name}_url")
    lab = make_lab(module=SHOP, exclusive_store=url)
    lab.start_worker()
    holder = hold(lab)
    with pytest.raises(LockHeld) as error:
        lab.send("hasty", "k").get(timeout=DEADLINE)
    assert error.value.holder == holder.id
    assert lab.send("hasty_skip", "k").get(timeout=DEADLINE)["skipped"]["existing_id"] == holder.id
    lab.open("holder")
    assert holder.get(timeout=DEADLINE) == "holder"
    eventually(lambda: not lab.task("hasty").lock_state("k").is_running, "a free key")
    assert lab.journal.tags() == ["holder"]


@ONCE
def test_a_published_task_gives_up_and_a_rescheduled_one_is_skipped_when_it_does(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab)
    holder = hold(lab)
    results = [lab.send(name, "k", tag=name) for name in ("hasty_ordered", "hasty_later")]
    for result in results:
        assert result.get(timeout=DEADLINE)["skipped"]["existing_id"] == holder.id
    lab.open("holder")
    assert holder.get(timeout=DEADLINE) == "holder"
    stage.assert_nothing_is_left(lab)
    assert lab.journal.tags() == ["holder"]


@ONCE
def test_a_chain_and_a_chord_go_on_with_members_that_give_up_if_they_name_a_result(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab, slots=3)
    hold(lab)
    hasty, skips, collect = (lab.task(name) for name in ("hasty", "hasty_skip", "collect"))
    named = skips.si("k").set(exclusive=skips.exclusive.replace(skip_result="gave up"))
    steps = chain(named, collect.s()).apply_async()
    body = chord([named, skips.si("another", tag="member")])(collect.s())
    broken = [chain(it.si("k"), collect.s()).apply_async() for it in (hasty, skips)]
    assert steps.get(timeout=DEADLINE) == "gave up"
    assert body.get(timeout=DEADLINE) == ["gave up", "member"]
    for result in broken:
        with pytest.raises(LockHeld):
            result.get(timeout=DEADLINE)
    lab.open("holder")
    stage.assert_nothing_is_left(lab)
    assert lab.doors.llen("collected") == 2


def assert_waits_longer_than_others_give_up(lab: Lab, tag: str) -> None:
    """A call that joins the line later gives up, while the task of this tag still waits."""
    starts = len(lab.journal.events("start", tag=tag))
    assert "skipped" in lab.send("hasty_skip", "k", tag="clock").get(timeout=DEADLINE)
    assert len(lab.journal.events("start", tag=tag)) == starts


@pytest.mark.parametrize("again", ["retry", "replace"])
@pytest.mark.parametrize("name", ["hasty", "hasty_ordered"])
@on_stages("prefork", "threads", brokers=("redis",))
def test_a_retry_or_replacement_does_not_give_up(stage: Stage, name: str, again: str) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab)
    first = hold(lab, name, "first", again=again)
    second = lab.send("patient", "k", tag="second", hold=True)
    lab.wait_for_line(1, "patient", "k")
    lab.open("first")
    lab.journal.wait_for("start", tag="second")
    lab.wait_until_in_line(first.id, name, "k")
    assert_waits_longer_than_others_give_up(lab, "first")
    lab.open("second")
    assert [result.get(timeout=DEADLINE) for result in (first, second)] == ["first", "second"]
    assert lab.journal.tags() == ["first", "second", "first"]
    stage.assert_nothing_is_left(lab)


@pytest.mark.parametrize("waited", [False, True], ids=["begun at once", "after a wait in line"])
@on_stages("prefork", lates=(True,))
def test_a_task_that_runs_again_after_the_death_of_its_worker_does_not_give_up(
    stage: Stage, *, waited: bool
) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=3, exclusive_offer=2)
    first_worker = stage.start_worker(lab, "w1")
    if waited:
        before = hold(lab, tag="before")
        first = lab.send("hasty", "k", tag="first", hold=True)
        lab.wait_for_line(1, "hasty", "k")
        lab.open("before")
        assert before.get(timeout=DEADLINE) == "before"
        lab.journal.wait_for("start", tag="first")
    else:
        first = hold(lab, "hasty", "first")
    second = lab.send("patient", "k", tag="second", hold=True)
    lab.wait_for_line(1, "patient", "k")
    first_worker.kill()
    stage.start_worker(lab, "w2", slots=3)
    lab.journal.wait_for("start", tag="second")
    lab.wait_until_in_line(first.id, "patient", "k")
    assert_waits_longer_than_others_give_up(lab, "first")
    lab.open("second", "first")
    assert [result.get(timeout=DEADLINE) for result in (second, first)] == ["second", "first"]
    assert lab.journal.tags()[-3:] == ["first", "second", "first"]


@ONCE
def test_a_task_that_the_broker_redelivers_after_its_lease_has_expired_does_not_give_up(stage: Stage) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=3, exclusive_recover=False)
    worker = stage.start_worker(lab, "w1")
    first = hold(lab, "hasty", "first")
    message = Message.unacknowledged(lab, first.id)
    worker.kill()
    stage.start_worker(lab, "w2", slots=3)
    second = lab.send("patient", "k", tag="second", hold=True)
    lab.journal.wait_for("start", tag="second")
    message.deliver_again()
    lab.wait_until_in_line(first.id, "patient", "k")
    assert_waits_longer_than_others_give_up(lab, "first")
    lab.open("second", "first")
    assert [result.get(timeout=DEADLINE) for result in (second, first)] == ["second", "first"]
    stage.assert_nothing_is_left(lab)


@ONCE
def test_a_task_that_expires_or_is_revoked_before_it_gives_up_is_revoked(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab)
    hold(lab)
    revoked = lab.send("hasty", "k", tag="revoked")
    lab.wait_for_line(1, "hasty", "k")
    revoked.revoke()
    expired = lab.send("hasty", "k", tag="expired", options={"expires": 1})
    for result in (revoked, expired):
        with pytest.raises(TaskRevokedError):
            result.get(timeout=DEADLINE)
    lab.open("holder")
    stage.assert_nothing_is_left(lab)
    assert lab.journal.tags() == ["holder"]


@pytest.mark.each_part
@on_stages("prefork", brokers=("redis",))
def test_a_task_that_gives_up_ends_also_if_its_worker_loses_the_answers_of_the_store(
    stage: Stage, proxy: Proxy, store: RedisServer
) -> None:
    url = f"redis://127.0.0.1:{proxy.port}/0?socket_timeout=0.5"
    lab = stage.make_lab(SHOP, exclusive_store=url, exclusive_store_wait=1)
    worker = stage.start_worker(lab, slots=3)
    holder = hold(lab)
    result = lab.send("hasty_skip", "k", tag="waits")
    worker.wait_for_log(f"[{result.id}] parked")
    proxy.lose(result.id.encode(), times=50)
    worker.wait_for_log(f"[{result.id}] goes back to the broker")
    proxy.restore()
    assert result.get(timeout=DEADLINE)["skipped"]["existing_id"] == holder.id
    lab.open("holder")
    assert holder.get(timeout=DEADLINE) == "holder"
    with store.client() as client:
        stage.assert_nothing_is_left(lab, client)
    assert lab.journal.tags() == ["holder"]
