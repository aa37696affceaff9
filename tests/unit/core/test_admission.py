"""Two keys and several deliveries of one message: what the plan of a delivery asks of `step`, and when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from celery_exclusive.core.admission import Admission, Policy, admit
from celery_exclusive.core.claim import LAST_CHANCE, Claim, UniqueClaim
from celery_exclusive.core.delivery import Delivery
from celery_exclusive.core.endings import HandOver
from celery_exclusive.core.operations import Acquire, Answer, Drop, Granted, Held, Parked
from celery_exclusive.core.plan import Ask, Plan, run_plan
from celery_exclusive.core.records import SECOND
from tests.unit.stepping import TTL, Key

QUEUED_TTL = 24 * 3600 * SECOND


class Store:
    """The least of a store with a lock and a unique key, and the plans of deliveries on it."""

    def __init__(self, *, keeps_lines: bool = True) -> None:
        self.keeps_lines = keeps_lines
        self.keys = {"x": Key(), "u": Key()}
        self.lock, self.unique = self.keys["x"], self.keys["u"]
        self.asked: list[tuple[str, bool]] = []

    def ask(self, asked: Ask) -> Answer:
        self.asked.append((asked.key, asked.park))
        key, operation = self.keys[asked.key], asked.operation
        if operation is None:
            return Held(tuple(owner for owner in key.owners() if owner.remaining > 0))
        if isinstance(operation, Acquire) and asked.park and self.keeps_lines:
            operation = replace(operation, message=b"a message")
        return key.ask(operation)

    def admit(self, delivery: Delivery, on_conflict: str = "wait") -> Admission:
        return run_plan(admit(delivery, Policy(on_conflict)), self.ask)

    def wait(self, seconds: int) -> None:
        for key in self.keys.values():
            key.now += seconds * SECOND


def delivery(token: str, *, task: str = "a", lock: bool = True, **facts: object) -> Delivery:
    """A delivery of a task's message; all of them have the same keys."""
    id = f"{task}/1"
    exclusive = Claim("x", id, token, TTL) if lock else None
    unique = UniqueClaim(Claim("u", id, token, TTL), "finished", QUEUED_TTL, is_acquired=True)
    made = Delivery(id=id, token=token, exclusive=exclusive, unique=unique, acks_late=True)
    return replace(made, **facts)


def redelivered(token: str, **facts: object) -> Delivery:
    return delivery(token, redelivered=True, was_admitted=True, **facts)


def promoted(token: str, key: str, **facts: object) -> Delivery:
    return delivery(token, promoted="today", offered=key, was_admitted=True, **facts)


def takes_over(asked: Ask) -> bool:
    return isinstance(asked.operation, Acquire) and asked.operation.takes_over is not None


class Halted:
    """A plan that stops before one of its operations, while others go on."""

    def __init__(self, store: Store, plan: Plan[Admission], until: Callable[[Ask], bool]) -> None:
        self.store, self.plan, self.asked = store, plan, next(plan)
        while not until(self.asked):
            self.asked = plan.send(store.ask(self.asked))

    def go_on(self) -> Admission:
        try:
            while True:
                self.asked = self.plan.send(self.store.ask(self.asked))
        except StopIteration as end:
            outcome: Admission = end.value
            return outcome


def test_a_copy_that_waits_behind_its_own_dead_run_runs_when_that_run_has_expired():
    store = Store()
    assert store.admit(delivery("first")).kind == "run"
    store.wait(5)
    assert store.admit(redelivered("second")).kind == "wait"
    store.wait(31)  # the worker of the first delivery is dead
    assert store.lock.reap() == ("a/1",)
    assert (
        store.admit(promoted("third", "x", redelivered=True)).kind == "wait"
    )  # it may not know of the death
    assert store.admit(promoted("fourth", "x")).kind == "run"


def test_an_offer_of_the_unique_key_to_a_finished_task_is_the_last_one():
    store = Store()
    first, second = redelivered("first"), delivery("second")
    assert store.admit(first).kind == "run"
    store.lock.ask(first.exclusive.release())  # type: ignore[union-attr]
    assert store.admit(second).kind == "wait"  # it waits behind its own run for the unique key
    store.wait(31)  # the worker of the first one has died before it has released the unique key, too
    assert store.unique.reap() == ("a/1",)
    assert store.admit(promoted("third", "u")).kind == "drop"
    assert store.unique.in_line == []


def test_of_two_copies_that_take_the_key_of_a_queued_task_over_one_waits_behind_the_other():
    store = Store()
    store.unique.ask(Claim("u", "b/1", "its publisher", TTL).acquire_alone(QUEUED_TTL, "queued"))
    first, second = (
        Halted(store, admit(redelivered(token, lock=False), Policy()), takes_over)
        for token in ("first", "second")
    )
    assert first.go_on().kind == "run"
    outcome = second.go_on()
    assert (outcome.kind, outcome.position) == ("wait", 0)
    assert store.unique.document.holders[0].token == "first"


def test_a_copy_that_takes_a_key_over_and_finds_only_another_copy_in_line_runs():
    store = Store()
    b = Claim("u", "b/1", "its publisher", TTL)
    store.unique.ask(b.acquire_alone(QUEUED_TTL, "queued"))
    copy = Halted(store, admit(redelivered("first", lock=False), Policy()), takes_over)
    assert isinstance(store.unique.redelivered("a/1", "second"), Parked)
    store.unique.ask(b.release(ending="open"))
    assert copy.go_on().kind == "run"
    assert store.unique.behind == ["a/1"]


@pytest.mark.proves("store without lines")
@pytest.mark.parametrize("lock", [False, True])
def test_a_copy_that_cannot_wait_behind_its_own_dead_run_is_rescheduled_until_that_run_has_expired(
    *, lock: bool
):
    store = Store(keeps_lines=False)
    assert store.admit(delivery("first", lock=lock)).kind == "run"
    outcome = store.admit(redelivered("second", lock=lock))
    assert (outcome.kind, outcome.by[0].id) == ("reschedule", "a/1")
    store.wait(31)
    assert store.admit(redelivered("third", lock=lock)).kind == "run"


def test_a_task_that_is_rescheduled_for_its_unique_key_holds_no_lock_meanwhile():
    store = Store(keeps_lines=False)
    store.unique.ask(Claim("u", "b/1", "of a run", TTL).acquire_alone(TTL, "running"))
    outcome = store.admit(redelivered("first"))
    assert (outcome.kind, outcome.key, outcome.by[0].id) == ("reschedule", "u", "b/1")
    assert store.lock.document.holders == ()
    assert store.admit(delivery("new", task="c", lock=False)).kind == "skip"


@pytest.mark.promise(
    "A message goes to the store only when its lock is known to be held: a free key costs one call without "
    "it",
    broke="sent along with the first request",
)
def test_a_message_goes_to_the_store_of_a_held_lock_alone():
    store = Store()
    assert store.admit(delivery("first")).kind == "run"
    assert store.asked == [("x", False), ("u", False)]
    store.asked.clear()
    assert store.admit(delivery("second", task="b")).kind == "wait"
    assert store.asked[:2] == [("x", False), ("x", True)]


@pytest.mark.promise(
    "A copy that finds its message running does not run after it, also if that ends before the copy is "
    "parked",
    name="copy of a running message",
    broke="the copy not noted, by `step` or by the script",
)
@pytest.mark.parametrize("lock", [False, True])
def test_a_copy_does_not_run_after_its_run_that_ends_before_the_copy_is_parked(*, lock: bool):
    store, first = Store(), delivery("first", lock=lock)
    assert store.admit(first).kind == "run"
    copy = Halted(store, admit(redelivered("second", lock=lock), Policy()), lambda asked: asked.park)
    for claim in first.leases:
        store.keys[claim.key].ask(claim.release())
    assert copy.go_on().kind == "drop"
    assert [key.entries for key in store.keys.values()] == [{}, {}]


def last_chance(token: str, *, task: str = "a", **facts: object) -> Delivery:
    made = promoted(token, str(facts.pop("offered", "x")), task=task, **facts)
    return replace(made, last_chance=Claim(LAST_CHANCE, made.id, token, TTL))


@pytest.fixture
def chances() -> Store:
    """A store in which the task b has its last chance, under keys of its own."""
    store = Store()
    store.keys[LAST_CHANCE] = Key()
    store.keys[LAST_CHANCE].ask(Claim(LAST_CHANCE, "b/1", "of b", QUEUED_TTL).acquire())
    return store


@pytest.mark.proves("bystanders of a task that kills its worker")
@pytest.mark.parametrize("lock", [False, True])
def test_a_task_that_waits_for_its_last_chance_keeps_its_place_in_line_and_its_unique_key(
    chances: Store, *, lock: bool
):
    assert chances.admit(delivery("first", lock=lock)).kind == "run"
    assert chances.admit(redelivered("copy", lock=lock)).kind == "wait"  # behind its own dead run
    chances.wait(31)
    key = "x" if lock else "u"
    assert chances.keys[key].reap() == ("a/1",)
    chances.unique.reap()
    outcome = chances.admit(last_chance("second", lock=lock, offered=key))
    assert (outcome.kind, outcome.key, outcome.position) == ("wait", LAST_CHANCE, 1)
    assert (chances.lock.aside, chances.unique.entries) == (["a/1"] * lock, {})
    assert chances.lock.holders == []
    assert [owner.phase for owner in chances.unique.owners()] == ["again"]
    assert chances.admit(delivery("another", task="c", lock=False)).kind == "skip"  # it is a duplicate
    chances.keys[LAST_CHANCE].release("b/1", "of b")
    third = last_chance("third", lock=lock, offered=LAST_CHANCE)
    assert chances.admit(third).kind == "run"
    assert [claim.key for claim in third.leases if "a/1" in chances.keys[claim.key].holders] == [
        *(["x"] if lock else []),
        "u",
        LAST_CHANCE,
    ]


@pytest.mark.proves("bystanders of a task that kills its worker")
def test_of_two_suspects_each_runs_also_at_the_lock_of_a_line_that_is_never_empty(chances: Store):
    line, chance = chances.lock, chances.keys[LAST_CHANCE]
    line.acquire("c/1")
    line.acquire("a/1")
    line.acquire("d/1")
    line.release("c/1")
    assert chances.admit(last_chance("first")).key == LAST_CHANCE
    assert isinstance(line.promoted("d/1"), Granted)  # it passes
    line.acquire("e/1")
    chance.release("b/1", "of b")
    assert chances.admit(last_chance("second", offered=LAST_CHANCE)).key == "x"
    assert line.in_line == ["a/1", "e/1"]
    assert isinstance(chance.acquire("b/1", "of b"), Granted)  # it leaves its last chance to the other one
    line.release("d/1")
    assert line.last.wake == ("a/1",)
    assert chances.admit(last_chance("third")).key == LAST_CHANCE
    chance.release("b/1", "of b")
    assert chances.admit(last_chance("fourth", offered=LAST_CHANCE)).kind == "run"
    assert line.in_line == ["e/1"]


@pytest.mark.proves("bystanders of a task that kills its worker")
def test_a_task_that_was_dropped_while_it_waited_for_its_last_chance_leaves_its_place(chances: Store):
    chances.lock.acquire("c/1")
    chances.lock.acquire("a/1")
    chances.lock.release("c/1")
    assert chances.admit(last_chance("first")).key == LAST_CHANCE
    chances.keys[LAST_CHANCE].ask(Drop("a/1", "of an operator"))
    chances.wait(600)
    assert chances.lock.reap() == ("a/1",)
    assert chances.admit(last_chance("second")).kind == "drop"
    assert chances.lock.entries == {}


@pytest.mark.proves("bystanders of a task that kills its worker")
def test_a_task_that_waits_for_its_lock_leaves_its_last_chance_to_others(chances: Store):
    chances.keys[LAST_CHANCE].release("b/1", "of b")
    chances.lock.acquire("c/1")
    outcome = chances.admit(last_chance("first", offered=LAST_CHANCE))
    assert (outcome.kind, outcome.key) == ("wait", "x")
    assert chances.keys[LAST_CHANCE].holders == []
    assert chances.keys[LAST_CHANCE].entries == {}


@pytest.mark.proves("bystanders of a task that kills its worker")
def test_a_task_that_is_offered_a_last_chance_and_needs_none_leaves_that_line(chances: Store):
    assert chances.admit(last_chance("first")).kind == "wait"
    assert chances.admit(promoted("second", LAST_CHANCE)).kind == "run"
    assert chances.keys[LAST_CHANCE].entries == {}


CONTINUATIONS = (
    {"was_admitted": True},
    {"published_by": "a"},
    {"published_by": "another"},
    {"follows": "a/1"},
    {"is_awaited": True},
)


@pytest.mark.promise(
    "A retry, a redelivery, a replacement, or a copy without a flag conflicts with no run of its own task",
    name="continuations of a task",
    broke="a body does not mark what it publishes under its own id",
)
@pytest.mark.parametrize("facts", CONTINUATIONS, ids=str)
@pytest.mark.parametrize("key", ["x", "u"])
def test_a_delivery_that_continues_its_task_waits_for_a_run_of_it(key: str, facts: dict[str, object]):
    store = Store()
    store.keys[key].ask(Claim(key, "a/0", "of a run", TTL).acquire())
    outcome = store.admit(delivery("next", lock=key == "x", **facts), "skip")
    assert (outcome.kind, outcome.key) == ("wait", key)


@pytest.mark.proves("one task id")
@pytest.mark.parametrize("key", ["x", "u"])
def test_a_delivery_of_another_call_with_its_task_id_conflicts_with_a_run_of_it(key: str):
    store = Store()
    store.keys[key].ask(Claim(key, "a/0", "of a run", TTL).acquire())
    outcome = store.admit(delivery("next", lock=key == "x"), "skip")
    assert (outcome.kind, outcome.key, outcome.existing_id) == ("skip", key, "a")
    assert outcome.is_against("a")
    assert not outcome.is_against("b")


@pytest.mark.proves("continuations of a task")
def test_a_copy_that_no_broker_has_flagged_waits_behind_its_own_run_and_is_not_skipped():
    store = Store()
    assert store.admit(delivery("first"), "skip").kind == "run"
    outcome = store.admit(delivery("second"), "skip")
    assert (outcome.kind, outcome.position) == ("wait", 0)


@pytest.mark.promise(
    "Of a message that is in line already, the redelivered one is kept, so that its body is told",
    name="redelivered message in line",
    broke="not sent, for the lock or for the unique key; sent each time",
)
@pytest.mark.parametrize("lock", [False, True])
def test_a_redelivered_message_replaces_the_one_that_an_earlier_delivery_has_parked(*, lock: bool):
    store, key = Store(), "x" if lock else "u"
    store.keys[key].ask(Claim(key, "b/1", "of a run", TTL).acquire())
    for again, is_sent in (
        (promoted("first", key, lock=lock), True),
        (promoted("second", key, lock=lock), False),
        (redelivered("third", lock=lock), True),
    ):
        store.asked.clear()
        assert store.admit(again).kind == "wait"
        assert ((key, True) in store.asked) is is_sent


@pytest.mark.proves("kept lock, early retry")
def test_a_copy_does_not_call_a_run_dead_that_holds_its_lock_under_the_id_of_its_retry():
    store, first = Store(), delivery("first")
    assert store.admit(first).kind == "run"
    hand_over = HandOver(first.exclusive, "a/2", QUEUED_TTL)  # type: ignore[arg-type]
    assert isinstance(store.lock.ask(hand_over.begin()), Granted)
    assert store.admit(redelivered("second")).kind == "wait"
    assert [(lease.id, lease.phase) for lease in store.unique.document.holders] == [("a/1", "running")]


@pytest.mark.proves("kept lock, early retry")
def test_a_retry_comes_later_until_its_run_has_ended_and_then_begins():
    store, first = Store(), delivery("first", unique=None)
    assert store.admit(first).kind == "run"
    hand_over = HandOver(first.exclusive, "a/2", QUEUED_TTL)  # type: ignore[arg-type]
    store.lock.ask(hand_over.begin())
    retry = replace(delivery("retry", unique=None, keeps_lock=True, was_admitted=True), id="a/2")
    retry = replace(retry, exclusive=replace(first.exclusive, id="a/2", token="retry"))  # type: ignore[type-var]
    assert store.admit(retry).kind == "reschedule"
    for operation in hand_over.run_ended(has_lease=True, is_published=True, done=True):
        store.lock.ask(operation)
    assert store.admit(retry).kind == "run"
