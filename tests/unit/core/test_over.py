"""Tasks that give up in line or are replaced there: which ones, and the outcomes of their deliveries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_exclusive.core.admission import Admission, Policy, admit
from celery_exclusive.core.claim import Claim
from celery_exclusive.core.delivery import Delivery
from celery_exclusive.core.operations import Answer
from celery_exclusive.core.plan import Ask, run_plan
from celery_exclusive.core.records import SECOND
from celery_exclusive.testing.lock_store import LockStore

TTL = 600 * SECOND
LATEST = Policy("latest")
SUPERSEDE = Policy("supersede")
HASTY = Policy(gives_up_in=30 * SECOND)
BEGUN = {"was_admitted": True, "may_have_begun": True}


class Line:
    """A lock whose holder is the task `a`, and the plans of the deliveries of other tasks on it."""

    def __init__(self) -> None:
        self.store = LockStore()
        self.store.apply("x", Claim("x", "a/1", "a", TTL).acquire())

    def ask(self, asked: Ask) -> Answer:
        assert asked.operation
        operation = replace(asked.operation, message=b"{}") if asked.park else asked.operation
        return self.store.apply("x", operation).answer

    def admit(self, task: str, policy: Policy, **facts: object) -> Admission:
        id = f"{task}/1"
        delivery = Delivery(id=id, token=task, exclusive=Claim("x", id, task, TTL), acks_late=True)
        return run_plan(admit(replace(delivery, **facts), policy), self.ask)

    def admit_offer(self, task: str, policy: Policy, **facts: object) -> Admission:
        """Admit the copy that the store has published."""
        epoch = self.store.epoch()
        return self.admit(task, policy, promoted=epoch, offered="x", was_admitted=True, **facts)


@pytest.fixture
def line() -> Line:
    return Line()


def seen(outcome: Admission) -> tuple[str, str, str]:
    return outcome.kind, outcome.reason, outcome.existing_id


@pytest.mark.proves("give up")
@pytest.mark.parametrize(("on_give_up", "kind"), [("raise", "fail"), ("skip", "skip")])
def test_a_new_task_gives_up_after_its_time_in_line_and_names_the_holder(
    line: Line, on_give_up: str, kind: str
) -> None:
    policy = replace(HASTY, on_give_up=on_give_up)
    assert line.admit("b", policy).kind == "wait"
    line.store.advance(29)
    assert line.admit_offer("b", policy).kind == "wait"  # an early copy does not begin the time anew
    line.store.advance(1)
    assert seen(line.admit_offer("b", policy)) == (kind, "given_up", "a")
    assert line.store.inspect("x").all_waiting == 0


@pytest.mark.proves("latest")
def test_a_newer_task_takes_the_place_of_the_waiting_one(line: Line) -> None:
    assert [line.admit(task, LATEST).kind for task in "bcd"] == ["wait"] * 3
    assert [seen(line.admit_offer(task, LATEST)) for task in "bc"] == [
        ("skip", "replaced", "c"),
        ("skip", "replaced", "d"),
    ]
    assert line.admit_offer("d", LATEST).position == 1


@pytest.mark.proves("give up")
@pytest.mark.parametrize("policy", [HASTY, LATEST], ids=["give up", "latest"])
def test_a_task_that_has_begun_before_neither_gives_up_nor_is_replaced_nor_replaces(
    line: Line, policy: Policy
) -> None:
    assert line.admit("new", LATEST).kind == "wait"
    assert line.admit("retry", policy, **BEGUN).kind == "wait"
    assert line.admit("redelivered", policy, redelivered=True, **BEGUN).kind == "wait"
    assert line.admit_offer("new", LATEST).kind == "wait"
    assert line.admit("newer", LATEST).kind == "wait"
    line.store.advance(31)
    for task in ("retry", "redelivered"):
        assert line.admit(task, policy, redelivered=True, **BEGUN).kind == "wait"
    assert line.admit_offer("new", LATEST).reason == "replaced"


@pytest.mark.proves("supersede")
def test_only_a_newer_call_supersedes_a_run_and_no_retry_or_other_task_in_line(line: Line) -> None:
    for waits in (line.admit("retry", SUPERSEDE, **BEGUN), line.admit("other", Policy())):
        assert waits.kind == "wait"
        assert line.store.inspect("x").newer_than("a/1") is None
    for task in "bc":
        assert line.admit(task, SUPERSEDE).kind == "wait"
        assert line.store.inspect("x").newer_than("a/1") == task


@pytest.mark.proves("supersede")
def test_a_retry_of_a_superseded_run_is_skipped_before_it_asks_for_its_key(line: Line) -> None:
    before = line.store.inspect("x")
    retry = line.admit("a", SUPERSEDE, superseded_by="b", **BEGUN)
    assert seen(retry) == ("skip", "superseded", "b")
    assert line.store.inspect("x") == before


@pytest.mark.proves("latest")
def test_an_ended_wait_is_reported_again_to_a_redelivery_and_to_no_other_copy(line: Line) -> None:
    for task in "bc":
        line.admit(task, LATEST)
    for again in ({}, {"redelivered": True}):
        assert seen(line.admit_offer("b", LATEST, **again)) == ("skip", "replaced", "c")
    assert line.admit_offer("b", LATEST).kind == "drop"


@pytest.mark.proves("latest")
def test_a_step_that_waits_for_its_parent_may_be_replaced(line: Line) -> None:
    assert line.admit("b", LATEST, published_by="a").kind == "wait"
    assert line.admit("c", LATEST).kind == "wait"
    assert seen(line.admit_offer("b", LATEST)) == ("skip", "replaced", "c")


def test_a_task_that_cannot_be_parked_is_rescheduled_until_it_gives_up(line: Line) -> None:
    assert line.admit("b", LATEST, can_be_parked=False).kind == "reschedule"
    assert seen(Admission("reschedule", existing_id="a").given_up("skip")) == ("skip", "given_up", "a")


@pytest.mark.proves("latest")
def test_a_task_that_was_replaced_by_a_call_with_its_own_id_must_not_store_its_result(line: Line) -> None:
    line.admit("b", LATEST)
    line.admit("c", LATEST)
    outcome = line.admit_offer("b", LATEST)
    assert outcome.is_against("c")
    assert not outcome.is_against("b")
