"""Workers of two releases on one queue, and workers without the library."""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import Any

import pytest

from celery_exclusive import Exclusive
from celery_exclusive.leases.operator_release import release
from tests.worker.lab import eventually
from tests.worker.message import Message, consume, stop_consuming
from tests.worker.stage import Stage, on_stages
from tests.worker.versions import needs_celery

OLD, NEW = "tests.worker.shop_deploy_old", "tests.worker.shop_deploy_new"
DEADLINE = 90
ALL_OFF = {"task_annotations": {"*": {"exclusive": None}}}


def line_up(task: Any, *calls: tuple[Any, ...], **kwargs: Any) -> list[Any]:
    """Let these calls of a task with key "k" wait, one behind the other."""
    results = []
    for arguments in calls:
        before = task.lock_state("k").waiting
        results.append(task.apply_async(arguments, kwargs))
        eventually(lambda: task.lock_state("k").waiting > before, "one more in line")  # noqa: B023
    return results


@pytest.mark.promise(
    "Two releases on one queue run each call once, or skip it before it waits: other limits, policies, "
    "keys, parameters; an option that comes or goes",
    name="rolling deploy",
    broke=(
        "no `Unlocked`; removed with a tombstone; lower limit stays; own entry counts against oneself; key "
        "made on the worker, by the retry, by the parent"
    ),
)
@on_stages("prefork", lates=(True,))
def test_while_two_releases_share_a_queue_each_call_runs_once_or_is_skipped_before_it_waits(
    stage: Stage,
) -> None:
    old, new = stage.make_lab(OLD), stage.make_lab(NEW)
    workers = [stage.start_worker(old, "old"), stage.start_worker(new, "new")]
    sent: dict[str, Any] = {}
    for number in range(15):
        for name in ("crawl", "sync", "freed", "locked"):
            for code, lab in (("old", old), ("new", new)):
                tag = f"{name} {number} by {code}"
                sent[tag] = lab.app.tasks[f"deploy.{name}"].delay("k", tag)
    results = {tag: result.get(timeout=DEADLINE) for tag, result in sent.items()}
    stage.assert_nothing_is_left(old)
    skipped = {tag for tag, result in results.items() if result != tag}
    assert all(tag.startswith("sync") for tag in skipped)
    assert Counter(old.journal.tags("start")) == Counter(sent.keys() - skipped)
    log = "".join(worker.log for worker in workers)
    assert not [tag for tag in skipped if f"[{sent[tag].id}] parked: " in log]
    assert old.journal.most_open(task="deploy.sync") == 1
    assert old.journal.most_open(task="deploy.crawl") <= 2


@pytest.mark.proves("rolling deploy")
@on_stages("prefork", brokers=("redis",), lates=(True,))
def test_a_task_that_waits_under_an_older_limit_is_admitted_by_a_call_with_a_higher_one(
    stage: Stage,
) -> None:
    old, new = stage.make_lab(OLD), stage.make_lab(NEW)
    first = stage.start_worker(old, "old")
    task = old.app.tasks["deploy.crawl"]
    task.delay("k", "holder", hold=True)
    old.journal.wait_for("start", tag="holder")
    line_up(task, ("k", "a"))
    stage.start_worker(new, "new", slots=3)
    stop_consuming(old, first, "lab")
    new.app.tasks["deploy.crawl"].delay("k", "b")  # with its place comes the new limit
    old.journal.wait_for("end", 2)
    assert old.journal.tags("start") == ["holder", "a", "b"]
    old.open("holder")
    stage.assert_nothing_is_left(old)


@pytest.mark.proves("rolling deploy")
@on_stages("prefork", brokers=("redis",), lates=(True,))
def test_a_task_that_has_waited_runs_though_the_newer_release_skips(stage: Stage) -> None:
    old, new = stage.make_lab(OLD), stage.make_lab(NEW)
    first = stage.start_worker(old, "old")
    task = old.app.tasks["deploy.sync"]
    task.delay("k", "holder", hold=True)
    old.journal.wait_for("start", tag="holder")
    waiting = line_up(task, ("k", "a"), ("k", "b", True))
    stage.start_worker(new, "new")
    stop_consuming(old, first, "lab")
    assert "skipped" in new.app.tasks["deploy.sync"].delay("k", "newcomer").get(timeout=DEADLINE)
    waiting += line_up(task, ("k", "c"))  # it has its place from a publisher of the older release
    old.open("holder", "b")
    assert [result.get(timeout=DEADLINE) for result in waiting] == ["a", "b", "c"]
    stage.assert_nothing_is_left(old)
    assert old.journal.tags("start") == ["holder", "a", "b", "c"]
    assert old.journal.most_open() == 1


@pytest.mark.proves("rolling deploy")
@on_stages("prefork", brokers=("redis",), lates=(True,))
def test_a_message_and_its_retry_by_newer_code_keep_the_key_of_the_code_that_sent_it(stage: Stage) -> None:
    old, new = stage.make_lab(OLD), stage.make_lab(NEW)
    first = stage.start_worker(old, "old")
    task = old.app.tasks["deploy.export"]
    task.delay("k", "a")
    old.journal.wait_for("start", tag="a")
    stage.start_worker(new, "new")
    stop_consuming(old, first, "lab")
    b, _ = line_up(task, ("k", "b", 1), ("k", "c", 2))
    (unfit,) = line_up(task, (), key="k", tag="unfit")
    old.open("a", "b")
    old.journal.wait_for("start", tag="c")
    eventually(lambda: task.lock_state("k").waiting == 2, "the retry of b, behind unfit")
    old.open("c")
    old.journal.wait_for("end", tag="c, again")
    with pytest.raises(TypeError, match="key"):
        unfit.get(timeout=DEADLINE)
    assert b.get(timeout=DEADLINE) == "b"
    stage.assert_nothing_is_left(old)
    assert old.journal.tags("start") == ["a", "b", "c", "b, again", "c, again"]
    assert old.journal.most_open() == 1


@pytest.mark.proves("rolling deploy")
@needs_celery("5.7", "task_retry_on_worker_lost")
@on_stages("prefork", brokers=("redis",), lates=(True,))
def test_the_retry_that_celery_publishes_for_a_lost_child_keeps_the_key_of_the_code_that_sent_it(
    stage: Stage,
) -> None:
    old = stage.make_lab(OLD, exclusive_ttl=600)
    soon = {"task_retry_on_worker_lost": True, "task_annotations": {"*": {"default_retry_delay": 0}}}
    new = stage.make_lab(NEW, exclusive_ttl=600, **soon)
    worker = stage.start_worker(new, "new")
    task: Any = old.app.tasks["deploy.export"]
    doomed = task.delay("k", "a")
    (start,) = old.journal.wait_for("start", tag="a")
    line_up(task, ("k", "b"))
    worker.wait_accepted(doomed.id)
    os.kill(start["pid"], signal.SIGKILL)
    old.journal.wait_for("start", tag="b")
    eventually(lambda: task.lock_state("k").waiting == 1, "the retry in the same line")
    old.open("b")
    old.journal.wait_for("end", tag="b, again")
    stage.assert_nothing_is_left(old)
    assert old.journal.tags("start") == ["a", "b", "a, again", "b, again"]


@pytest.mark.proves("rolling deploy")
@pytest.mark.parametrize("new_conf", [{}, ALL_OFF], ids=["one option removed", "all options removed"])
@on_stages("prefork", lates=(True,))
def test_a_task_that_waits_for_one_without_its_option_runs_once_and_so_do_all_behind_it(
    stage: Stage, new_conf: dict[str, Any]
) -> None:
    old, new = stage.make_lab(OLD), stage.make_lab(NEW)
    first = stage.start_worker(old, "old")
    freed = old.app.tasks["deploy.freed"]
    freed.delay("k", "holder", hold=True)
    old.journal.wait_for("start", tag="holder")
    _, killed, *_ = line_up(freed, ("k", "a"), ("k", "killed", True), ("k", "b"), ("k", "c"))
    stop_consuming(old, first, "lab")
    doomed = stage.start_worker(new, "new", slots=3, **new_conf)
    old.open("holder")
    old.journal.wait_for("end", tag="c")
    doomed.wait_for_log(f"[{killed.id}] left the line of lock")
    eventually(lambda: stage.messages_at_the_broker(old) == 1, "all but one acknowledged")
    doomed.kill()
    if stage.broker == "redis":
        Message.unacknowledged(old, killed.id).deliver_again()
    consume(old, first, "lab")
    old.journal.wait_for("start", 2, tag="killed")
    old.open("killed", "killed")  # Redis may not have noticed that the first, who is dead, waits no more
    old.journal.wait_for("end", tag="killed")
    stage.assert_nothing_is_left(old)
    assert sorted(old.journal.tags("start")) == ["a", "b", "c", "holder", "killed", "killed"]


@pytest.mark.promise(
    "A worker without the library that gets a promoted message runs it once more, and the line goes on",
    broke="no reaper",
)
@on_stages("prefork", brokers=("redis",), lates=(True,))
def test_a_worker_without_the_library_ignores_locks_and_whose_offer_it_takes_runs_once_more(
    stage: Stage,
) -> None:
    lab = stage.make_lab("tests.worker.shop", exclusive_offer=6)
    worker = stage.start_worker(lab, options=("-Q", "lab,side"))
    lab.send("wait", "k", tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    line_up(lab.task("wait"), ("k", "retried"), ("k", "twice"), ("k", "last"))
    stop_consuming(lab, worker, "lab")
    stranger = stage.start_worker(stage.make_lab("tests.worker.shop_stranger"), "stranger", 1)
    lab.send("wait", "k", tag="newcomer", options={"exclusive": Exclusive("key", order="arrived")})
    lab.journal.wait_for("unlocked", tag="newcomer")
    assert not lab.journal.events("end")
    lab.open("holder")
    lab.journal.wait_for("end", tag="retried")
    lab.journal.wait_for("unlocked", tag="twice")
    assert stranger.stop() == 0
    consume(lab, worker, "lab")
    lab.journal.wait_for("end", tag="last")
    stage.assert_nothing_is_left(lab)
    assert lab.journal.tags("unlocked") == ["newcomer", "retried", "twice"]
    assert lab.journal.tags("start") == ["holder", "retried", "twice", "last"]
    assert lab.journal.most_open() == 1


@pytest.mark.promise(
    "A call that a worker without the library has run keeps the place that it got when it was published, and "
    "runs again when another call has joined behind it",
    broke="the long first offer is not shortened",
)
@on_stages("prefork", brokers=("redis",), lates=(True,))
def test_a_published_call_that_a_worker_without_the_library_ran_runs_again_when_another_joins(
    stage: Stage,
) -> None:
    lab = stage.make_lab("tests.worker.shop", exclusive_offer=1)
    stranger = stage.start_worker(stage.make_lab("tests.worker.shop_stranger"), "stranger", 1)
    first = lab.send("wait", "k", tag="first")
    assert first.get(timeout=DEADLINE) == "first"
    assert stranger.stop() == 0
    stage.start_worker(lab)
    assert lab.line("wait", "k") == [first.id]
    assert not lab.journal.events("start")
    lab.send("wait", "k", tag="second")
    lab.journal.wait_for("end", tag="second")
    stage.assert_nothing_is_left(lab)
    assert lab.journal.tags("unlocked") == ["first"]
    assert lab.journal.tags("start") == ["first", "second"]


@pytest.mark.promise(
    "In a rolling deploy a unique key ends as its publisher has said; a task that waits for a key which is "
    "declared no more runs",
    name="unique deploy",
    broke="it leaves that line, too, and is dropped; a task without options releases nothing",
)
@on_stages("prefork", brokers=("redis",), lates=(True,))
def test_a_unique_key_ends_as_its_publisher_has_said_and_what_came_without_one_gets_one(stage: Stage) -> None:
    old, new = stage.make_lab(OLD, exclusive_ttl=600), stage.make_lab(NEW, exclusive_ttl=600)
    stage.start_worker(new, "new", slots=6)
    names = ("unique_no_more", "unique_now", "other_window")
    tasks = {name: old.app.tasks[f"deploy.{name}"] for name in names}
    for name, task in tasks.items():
        task.delay("k", name, hold=True)
        old.journal.wait_for("start", tag=name)
    eventually(
        lambda: tasks["unique_no_more"].lock_state("k").unique_holder is None, "a key that nobody ends"
    )
    assert new.app.tasks["deploy.unique_now"].delay("k", "duplicate").outcome == "skipped"
    assert tasks["other_window"].delay("k", "duplicate").outcome == "skipped"
    old.open(*names)
    old.journal.wait_for("end", len(names))
    for task in (new.app.tasks["deploy.unique_now"], tasks["other_window"]):
        eventually(lambda task=task: task.lock_state("k").unique_holder is None, "a free key")
    stage.assert_nothing_is_left(old)
    assert sorted(old.journal.tags()) == sorted(names)


@pytest.mark.proves("unique deploy")
@on_stages("prefork", brokers=("redis",))
def test_a_task_that_waits_for_a_unique_key_which_is_declared_no_more_runs_once(stage: Stage) -> None:
    """It was admitted at its lock, which the newer release declares, too, and lost its key meanwhile."""
    old, new = stage.make_lab(OLD, exclusive_ttl=600), stage.make_lab(NEW, exclusive_ttl=600)
    first = stage.start_worker(old, "old")
    task: Any = old.app.tasks["deploy.queued_no_more"]
    task.delay("k", "holder", hold=True)
    old.journal.wait_for("start", tag="holder")
    (waits,) = line_up(task, ("k", "a"))
    release(old.app._celery_exclusive, waits.key)  # type: ignore[attr-defined]
    line_up(task, ("k", "a", True))  # another call, with the key that is free now
    old.open("holder")
    first.wait_for_log(f"[{waits.id}] parked: number 1 in line for lock u:")
    second = stage.start_worker(new, "new", slots=1)
    stop_consuming(old, first, "lab")
    new.app.tasks["deploy.crawl"].delay("other", "busy", hold=True)
    old.journal.wait_for("start", tag="busy")
    old.open("a")
    old.journal.wait_for("end", tag="a")
    second.wait_for_log(f"Task deploy.queued_no_more[{waits.id}] received")
    old.open("busy")
    assert waits.get(timeout=DEADLINE) == "a"
    stage.assert_nothing_is_left(old)
    assert old.journal.tags() == ["holder", "a", "busy", "a"]
    assert task.delay("k", "a").outcome == "published"
