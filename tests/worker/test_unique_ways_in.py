"""Every way into a queue, also of who does not know the task or the library."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from celery import Celery

from celery_exclusive import DuplicateTask, Exclusive, install
from tests.worker.lab import Lab, disconnect, eventually
from tests.worker.message import Message, wait_for_lines
from tests.worker.stage import Stage
from tests.worker.test_full import beat
from tests.worker.test_unique import ONCE, SHOP, assert_skipped, hold

DEADLINE = 60
LATE = {"task_acks_late": True, "task_reject_on_worker_lost": True}


@pytest.mark.promise(
    "Calls of publishers without the library, or without the task, and messages of another language "
    "acquire their key on the worker, or are skipped there",
    name="publishers without the library",
    broke="the worker does not ask before the line",
)
@pytest.mark.proves("duplicates that raise")
def test_a_duplicate_from_a_publisher_without_the_library_is_skipped_or_fails_on_the_worker(
    make_lab: Callable[..., Lab], stranger: Celery
) -> None:
    lab = make_lab(module=SHOP, exclusive_ttl=600, **LATE)
    lab.start_worker("w1", 4)
    first = stranger.send_task(f"{SHOP}.once", ["k", "first", True])
    lab.journal.wait_for("start", tag="first")
    second = stranger.send_task(f"{SHOP}.once", ["k", "second"])
    key = lab.task("once").lock_state("k").key
    assert second.get(timeout=DEADLINE) == {"skipped": {"key": key, "existing_id": first.id}}
    duplicate = lab.send("once", "k", "known")
    assert_skipped(duplicate, first)
    strict = stranger.send_task(f"{SHOP}.strict", ["k", "strict", True])
    lab.journal.wait_for("start", tag="strict")
    with pytest.raises(DuplicateTask, match=f"did not run: unique key .* is held by {strict.id}"):
        stranger.send_task(f"{SHOP}.strict", ["k", "refused"]).get(timeout=DEADLINE)
    tick = stranger.send_task(f"{SHOP}.strict", ["k", "tick"], headers={"celery_beat_task": True})
    assert tick.get(timeout=DEADLINE)["skipped"]["existing_id"] == strict.id
    lab.open("first", "strict")
    assert first.get(timeout=DEADLINE) == "first"
    eventually(lambda: lab.task("once").lock_state("k").unique_holder is None, "a free key")
    assert stranger.send_task(f"{SHOP}.once", ["k", "third"]).get(timeout=DEADLINE) == "third"
    assert lab.journal.tags() == ["first", "strict", "third"]


@pytest.mark.promise(
    "A period is held to its end, whenever the message expires",
    broke="the code before: 60 s in place of 600",
)
def test_a_period_is_not_cut_short_by_the_expiry_of_a_message_from_elsewhere(
    make_lab: Callable[..., Lab], stranger: Celery
) -> None:
    lab = make_lab(module=SHOP, exclusive_ttl=600)
    lab.start_worker()
    first = stranger.send_task(f"{SHOP}.twice_a_period", ["k", "first"], expires=60)
    assert first.get(timeout=DEADLINE) == "first"
    assert lab.task("twice_a_period").lock_state("k").unique_holder.remaining > 60


@pytest.mark.proves("publishers without the library")
def test_a_publisher_that_does_not_know_the_task_leaves_it_to_the_worker(
    make_lab: Callable[..., Lab], redis_url: str
) -> None:
    lab = make_lab(module=SHOP, exclusive_ttl=600, **LATE)
    lab.start_worker("w1", 4)
    web = install(Celery("web", broker=redis_url, backend=redis_url, set_as_current=False))
    web.conf.update(task_default_queue="lab")
    try:
        first = web.send_task(f"{SHOP}.once", ["k", "first", True])
        lab.journal.wait_for("start", tag="first")
        assert "skipped" in web.send_task(f"{SHOP}.once", ["k", "second"]).get(timeout=DEADLINE)
        lab.open("first")
        assert first.get(timeout=DEADLINE) == "first"
    finally:
        disconnect(web)
        web.close()
    assert lab.journal.tags() == ["first"]


@pytest.mark.proves("publishers without the library")
@ONCE
def test_a_message_without_a_header_takes_its_key_also_until_started_and_for_a_period(stage: Stage) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=600)
    headless = [
        Message.withheld(lab, name, "k", name, True, options={"unique": None})
        for name in ("queued", "seldom")
    ]
    for message in headless:
        message.content["headers"].pop("exclusive")
    stage.start_worker(lab, slots=4)
    for message in headless:
        message.deliver()
        lab.journal.wait_for("start", tag=message.content["headers"]["task"].rpartition(".")[2])
    assert lab.task("queued").lock_state("k").unique_holder is None
    assert lab.task("seldom").lock_state("k").unique_holder.task_id == headless[1].id
    assert lab.send("queued", "k", "one more").outcome == "published"
    assert_skipped(lab.send("seldom", "k", "too soon"), headless[1].result)
    lab.open("queued", "seldom")
    lab.journal.wait_for("end", 3)


@pytest.mark.proves("publishers without the library")
@ONCE
def test_a_message_in_line_without_a_header_keeps_the_key(stage: Stage) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=600)
    options = {"unique": None, "exclusive": Exclusive("key", order="arrived")}
    first, second = (Message.withheld(lab, "both", "k", tag, options=options) for tag in "ab")
    for message in (first, second):
        message.content["headers"].pop("exclusive")
    worker = stage.start_worker(lab, slots=3)
    hold(lab, "both", unique=None)
    first.deliver()
    lab.wait_for_line(1, "both", "k")
    second.deliver()
    wait_for_lines(f"[{second.id}] skipped: unique key", 1, worker)
    assert_skipped(lab.send("both", "k", "known"), first.result)
    lab.open("holder")
    assert first.result.get(timeout=DEADLINE) == "a"
    stage.assert_nothing_is_left(lab)
    assert lab.journal.tags() == ["holder", "a"]


@pytest.mark.promise(
    "Of publishers that race one sends, also with one task id",
    name="racing publishers",
    broke="looked first and acquired then",
)
@ONCE
def test_publishers_that_race_send_one(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    once = lab.task("once")
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: once.delay("k", f"{n}"), range(40)))
    sent = [result for result in results if result.outcome == "published"]
    assert len(sent) == 1
    assert {result.id for result in results} == {sent[0].id}
    assert stage.messages_at_the_broker(lab) == 1


@pytest.mark.proves("racing publishers")
@ONCE
def test_publishers_that_race_with_one_task_id_send_one(stage: Stage) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=600)
    once = lab.task("once")
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: once.apply_async(("k", f"{n}"), task_id="by hand"), range(40)))
    assert sorted(result.outcome for result in results) == ["published", *["skipped"] * 39]
    assert stage.messages_at_the_broker(lab) == 1
    stage.start_worker(lab)
    lab.journal.wait_for("end")
    stage.assert_nothing_is_left(lab)
    assert len(lab.journal.tags()) == 1
    assert lab.send("once", "k", "next").outcome == "published"


@pytest.mark.promise(
    "Beat queues one unique call at a time: nothing piles up, no error is logged; an unregistered task "
    "goes on",
    broke="a duplicate is sent",
)
def test_a_producer_that_outruns_its_worker_queues_one_at_a_time(
    make_lab: Callable[..., Lab], tmp_path: Path
) -> None:
    """A periodic task that takes longer than its period: nothing piles up, and no error is logged."""
    names = {"tag": "strict", "other": "once"}
    ticks = {
        tag: {"task": f"{SHOP}.{name}", "schedule": 0.2, "args": (tag, tag, True)}
        for tag, name in names.items()
    }
    ticks["unknown"] = {"task": "nobody.knows", "schedule": 0.2}
    lab = make_lab(module=SHOP, beat_schedule=ticks, **LATE)
    worker = lab.start_worker("w1", 4)
    with beat(lab, tmp_path):
        for runs in (1, 2):
            for tag in names:
                lab.journal.wait_for("start", runs, tag=tag)
            wait_for_lines("'nobody.knows'", worker.log.count("'nobody.knows'") + 10, worker)
            assert len(lab.journal.events("start")) == 2 * runs
            assert len(re.findall(r"(strict|once)\[\S+\] received", worker.log)) == 2 * runs
            assert [lab.task(name).lock_state(tag).is_queued for tag, name in names.items()] == [False] * 2
            lab.open(*names)
        assert "ERROR" not in (tmp_path / "beat.log").read_text()
