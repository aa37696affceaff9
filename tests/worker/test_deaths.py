"""A task that kills its whole worker again and again is given up: its key goes on, and others learn of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from billiard.exceptions import WorkerLostError
from celery import chord
from celery.exceptions import ChordError

from celery_exclusive import locks
from tests.worker.lab import Lab, eventually
from tests.worker.stage import Stage, on_stages
from tests.worker.watcher import SENDS_EVENTS, Watcher

pytestmark = pytest.mark.promise(
    "A task that kills its whole worker is given up after three recoveries: it fails with "
    "`WorkerLostError`, a chord and a monitor learn of it, and its key goes on, also with "
    '`order="published"` and on RabbitMQ. With None it is never given up',
    name="task that kills its worker",
    broke="red before: a fourth worker was killed; explorer: a death is not counted",
    also="the explorer, with a body that kills its workers",
)

TTL = 2
SHOP = "tests.worker.shop_order"


@pytest.fixture
def late(make_lab: Callable[..., Lab]) -> Callable[..., Lab]:
    """Makes a lab whose broker hides the messages of a dead worker for an hour, as Celery's default is."""
    return lambda **conf: make_lab(
        task_acks_late=True,
        exclusive_ttl=TTL,
        broker_transport_options={"visibility_timeout": 3600},
        **conf,
    )


def kill_workers(lab: Lab, deaths: int, **options: Any) -> None:
    """Let the task with the tag "deadly" kill so many workers, one after the other."""
    for number in range(1, deaths + 1):
        doomed = lab.start_worker(f"doomed{number}", 1, worker_prefetch_multiplier=1, **options)
        lab.journal.wait_for("start", number, tag="deadly")
        doomed.kill()


@pytest.mark.parametrize(("module", "name"), [("tests.worker.shop", "wait"), (SHOP, "ordered")])
def test_a_task_that_has_killed_three_workers_fails_and_the_next_one_runs(
    late: Callable[..., Lab], module: str, name: str
) -> None:
    lab = late(module=module)
    deadly = lab.send(name, "k", tag="deadly", hold=True)
    following = lab.send(name, "k", tag="next")
    kill_workers(lab, 2)
    doomed = lab.start_worker("doomed3", 1, worker_prefetch_multiplier=1)
    lab.journal.wait_for("start", 3, tag="deadly")
    answer = locks.why(deadly.id, app=lab.app)
    assert answer.sentence.startswith("RUNNING on doomed3@lab pid ")
    assert "; workers that ran it have died: 2" in answer.sentence
    doomed.kill()
    last = lab.start_worker("last", 1)
    with pytest.raises(WorkerLostError, match="3 times"):
        deadly.get(timeout=60)
    assert "was recovered under lock" in last.wait_for_log("(3 so far)")
    last.wait_for_log("is given up")
    assert following.get(timeout=60) == "next"
    assert sorted(lab.journal.tags("start")) == ["deadly"] * 3 + ["next"]
    eventually(lambda: not lab.waiting(name, "k"), "an empty line")


@pytest.mark.promise(
    "A task that ran beside a task that kills its worker is not given up: before the last death that is "
    "allowed, tasks run one at a time, and the others wait, and keep their places in line. The log names the "
    "worker that died",
    name="bystanders of a task that kills its worker",
    broke="red before: both ran again on one worker, died together, and failed; the place left: those that "
    "came later ran before it",
    also="the explorer of messages, with last chances",
)
def test_a_task_that_has_died_beside_a_deadly_one_runs_apart_from_it_and_ends(
    late: Callable[..., Lab],
) -> None:
    lab = late(exclusive_max_deaths=2)
    sent = {tag: lab.send("wait", tag, tag=tag, hold=True) for tag in "ab"}
    first = lab.start_worker("first", 2)
    for tag in sent:
        lab.journal.wait_for("start", tag=tag)
    first.kill()
    second = lab.start_worker("second", 2)
    second.wait_for_log("for lock x=celery_exclusive.last_chance (workers that ran it have died: 1) held by")
    eventually(lambda: len(lab.journal.tags("start")) == 3, "the other one to run")
    bystander = lab.journal.tags("start")[-1]
    (deadly,) = {*sent} - {bystander}
    lab.send("wait", deadly, tag="passes", hold=True)
    lab.journal.wait_for("start", tag="passes")
    following = lab.send("wait", deadly, tag="next")
    lab.open(bystander)
    assert sent[bystander].get(timeout=60) == bystander
    places = [sent[deadly].id, following.id]
    eventually(lambda: lab.line("wait", deadly) == places, "its old place, before those that came later")
    lab.open("passes")
    lab.journal.wait_for("start", 2, tag=deadly)
    second.kill()
    last = lab.start_worker("last", 2)
    with pytest.raises(WorkerLostError, match="2 times"):
        sent[deadly].get(timeout=60)
    assert following.get(timeout=60) == "next"
    assert lab.journal.tags("start").count(bystander) == 2
    assert "its worker first@lab (number " in second.wait_for_log("(1 so far)")
    assert "its worker second@lab (number " in last.wait_for_log("(2 so far)")
    for tag in sent:
        eventually(lambda: not lab.waiting("wait", tag), "an empty line")  # noqa: B023 - at once
    eventually(lambda: not lab.doors.exists("cx2:{0}:q:x=celery_exclusive.last_chance"), "no last chance")


@on_stages("threads", "prefork", brokers=("rabbitmq",), lates=(True,))
def test_a_broker_that_redelivers_at_once_changes_nothing(stage: Stage) -> None:
    """The next worker stands by: a lease that ends before the message comes again counts no death."""
    lab = stage.make_lab("tests.worker.shop", exclusive_ttl=2 * TTL, exclusive_max_deaths=2)
    deadly = lab.send("wait", "k", tag="deadly", hold=True)
    doomed = stage.start_worker(lab, "doomed1", 1)
    for deaths, name in enumerate(("doomed2", "last"), start=1):
        lab.journal.wait_for("start", deaths, tag="deadly")
        heir = stage.start_worker(lab, name, 1)
        doomed.kill()
        doomed = heir
    with pytest.raises(WorkerLostError, match="2 times"):
        deadly.get(timeout=60)


@pytest.mark.promise(
    "A task that was given up is reported once, as an ordinary failure: one errback, one event, no retry, "
    "and no message comes back, also with `task_reject_on_worker_lost` and `task_retry_on_worker_lost`",
    broke="red before: Celery took the child for lost, and sent the errback twice, or a retry",
)
@pytest.mark.parametrize(
    "conf",
    [{}, {"task_reject_on_worker_lost": True}, {"task_retry_on_worker_lost": True}],
    ids=["as it is", "reject", "retry"],
)
def test_a_task_that_was_given_up_is_reported_once_as_an_ordinary_failure(
    late: Callable[..., Lab], conf: dict[str, Any]
) -> None:
    lab = late(exclusive_max_deaths=1, **conf)
    errback = lab.task("plain").si(tag="errback")
    deadly = lab.send("wait", "k", tag="deadly", hold=True, options={"link_error": errback})
    doomed = lab.start_worker("doomed", 1, options=SENDS_EVENTS)
    with Watcher(lab, doomed) as watcher:
        lab.journal.wait_for("start", tag="deadly")
        doomed.kill()
        lab.start_worker("last", 1, options=SENDS_EVENTS)
        with pytest.raises(WorkerLostError):
            deadly.get(timeout=60)
        (event,) = watcher.wait_for("task-failed", uuid=deadly.id)
        assert event["exception"].startswith("WorkerLostError(")
        marker = lab.send("plain", tag="marker")
        assert marker.get(timeout=60) == "marker"
        watcher.wait_for("task-succeeded", uuid=marker.id)
        assert len(watcher.events("task-failed", uuid=deadly.id)) == 1
    assert deadly.state == "FAILURE"
    assert lab.journal.tags("start") == ["deadly", "errback", "marker"]
    eventually(lambda: lab.messages_at_the_broker() == 1, "no message but that of the killed worker")


def test_a_chord_s_body_and_a_monitor_learn_that_a_member_was_given_up(late: Callable[..., Lab]) -> None:
    lab = late(exclusive_max_deaths=1)
    member = lab.task("wait").s("k", tag="deadly", hold=True)
    body = chord([member, lab.task("plain").s(tag="other")])(lab.task("plain").si(tag="body"))
    doomed = lab.start_worker("doomed", 2, options=SENDS_EVENTS)
    with Watcher(lab, doomed) as watcher:
        lab.journal.wait_for("start", tag="deadly")
        lab.journal.wait_for("end", tag="other")
        doomed.kill()
        lab.start_worker("last", 2, options=SENDS_EVENTS)
        with pytest.raises((ChordError, WorkerLostError), match=r"exclusive_max_deaths=1"):
            body.get(timeout=60)
        (event,) = watcher.wait_for("lock-task-gave-up")
        assert event["deaths"] == 1


def test_without_a_limit_a_task_is_never_given_up(late: Callable[..., Lab]) -> None:
    lab = late(exclusive_max_deaths=None)
    deadly = lab.send("wait", "k", tag="deadly", hold=True)
    kill_workers(lab, 4)
    lab.open("deadly")
    lab.start_worker("last", 1)
    assert deadly.get(timeout=60) == "deadly"


def test_a_unique_task_that_has_killed_its_workers_fails_and_frees_its_key(late: Callable[..., Lab]) -> None:
    lab = late(module="tests.worker.shop_unique", exclusive_max_deaths=2)
    deadly = lab.send("once", "k", "deadly", True)
    kill_workers(lab, 2)
    assert lab.send("once", "k", "duplicate").existing_id == deadly.id
    lab.start_worker("last", 1)
    with pytest.raises(WorkerLostError, match="2 times"):
        deadly.get(timeout=60)
    eventually(lambda: lab.send("once", "k", "next").outcome == "published", "a free key")
    lab.journal.wait_for("end", tag="next")
    assert lab.journal.tags("start") == ["deadly", "deadly", "next"]
    eventually(lambda: not lab.waiting("once", "k"), "an empty line")
