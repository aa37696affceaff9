"""The message of a window of calls: what the plan of its deliveries asks, and which copy of it begins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from celery_exclusive.core.admission import Admission, Policy, admit
from celery_exclusive.core.claim import WINDOW, Claim, UniqueClaim
from celery_exclusive.core.delivery import Delivery
from celery_exclusive.core.endings import run_ended
from celery_exclusive.core.key_state import FIRST_OFFER
from celery_exclusive.core.operations import Acquire, Answer, Applied, Enqueue, Held, Release
from celery_exclusive.core.plan import Ask, run_plan
from celery_exclusive.core.records import SECOND
from tests.unit.stepping import TTL, Key

WAITS = 5 * SECOND, 60 * SECOND


class Store:
    """A lock and a key of windows, and the plans of deliveries on them."""

    def __init__(self) -> None:
        self.keys = {"x": Key(), "d": Key()}
        self.lock, self.windows = self.keys["x"], self.keys["d"]
        self.asked: list[str] = []
        self.acquires: dict[str, list[Acquire]] = {"x": [], "d": []}
        self.is_away = False

    def call(self, task: str) -> Answer:
        return self.windows.ask(Enqueue(f"{task}/1", b"a message", waits=WAITS))

    def wake(self, seconds: int = 5) -> tuple[str, ...]:
        self.lock.now += seconds * SECOND
        return self.windows.reap(seconds * SECOND)

    def ask(self, asked: Ask) -> Answer:
        self.asked.append(asked.key)
        if self.is_away and asked.may_fail:
            return Applied(False)
        operation = asked.operation
        if isinstance(operation, Acquire):
            self.acquires[asked.key].append(operation)
        if operation is None:
            return Held(self.keys[asked.key].owners())
        if isinstance(operation, Acquire) and asked.park:
            operation = replace(operation, message=b"a message")
        return self.keys[asked.key].ask(operation)

    def admit(self, delivery: Delivery, **policy: Any) -> Admission:
        return run_plan(admit(delivery, Policy(**policy)), self.ask)

    def end(self, delivery: Delivery, *, done: bool = True) -> None:
        for key, operation in run_ended(delivery, done=done, will_be_redelivered=not done):
            self.keys[key].ask(operation)


def delivery(token: str, task: str = "a", *, lock: bool = False, **facts: Any) -> Delivery:
    """A delivery of the message of this call, when its window has ended."""
    id = f"{task}/1"
    exclusive = Claim("x", id, token, TTL) if lock else None
    unique = UniqueClaim(Claim("d", id, token, TTL), WINDOW, TTL, is_acquired=True)
    made = Delivery(id=id, token=token, exclusive=exclusive, unique=unique, acks_late=True)
    return replace(made, **{"promoted": "today", "offered": "d", **facts})


@pytest.fixture
def store() -> Store:
    """A store in which the first window has ended."""
    store = Store()
    store.call("a")
    assert store.wake() == ("a/1",)
    return store


def test_the_first_copy_of_an_offer_begins_and_later_ones_are_dropped(store: Store) -> None:
    assert store.wake(FIRST_OFFER // SECOND) == ("a/1",), "it is offered again"
    assert store.admit(delivery("one")).kind == "run"
    assert store.admit(delivery("two")).kind == "drop"
    assert not store.windows.holders
    assert not store.windows.entries


def test_the_copy_that_has_begun_goes_on_after_a_lost_answer(store: Store) -> None:
    store.windows.ask(replace(delivery("one").acquire(Claim("d", "a/1", "one", TTL)), acks_late=False))
    assert store.admit(delivery("one")).kind == "run"


@pytest.mark.proves("next window")
def test_the_next_window_ends_while_the_body_of_the_former_one_runs(store: Store) -> None:
    store.call("b")
    assert store.wake() == ("a/1",)
    assert store.admit(delivery("one")).kind == "run"
    assert store.windows.last.wake == ("b/1",)
    assert store.admit(delivery("two", "b")).kind == "run"


def test_a_worker_that_dies_while_it_leaves_a_window_delays_the_next_one_only(store: Store) -> None:
    store.call("b")
    store.is_away = True
    assert store.admit(delivery("one")).kind == "run"
    assert store.wake() == ()
    assert store.wake(TTL // SECOND) == ("b/1",)


@pytest.mark.promise(
    "A window's message that is redelivered begins again, whatever windows are open by then; if it had not "
    "begun, it begins once",
    broke="the redelivery waits behind the next window; it runs, and its offer again",
)
@pytest.mark.parametrize("begun", [True, False], ids=["begun", "not begun"])
@pytest.mark.parametrize("next_window", ["none", "open", "offered", "begins"])
def test_a_redelivered_message_begins_once(store: Store, next_window: str, *, begun: bool) -> None:
    if begun:
        assert store.admit(delivery("one")).kind == "run"
    if next_window != "none":
        store.call("b")
    if next_window in ("offered", "begins"):
        store.wake()
    if next_window == "begins" and begun:
        store.is_away = True
        assert store.admit(delivery("other", "b")).kind == "run"
        store.is_away = False
    assert store.admit(delivery("again", redelivered=True)).kind == "run"
    assert "a/1" not in store.windows.entries
    assert store.admit(delivery("copy")).kind == "drop"


@pytest.mark.parametrize("facts", [{"redelivered": True}, {"promoted": ""}], ids=["redelivered", "delayed"])
def test_a_copy_that_comes_after_the_end_of_the_run_is_dropped(store: Store, facts: dict[str, Any]) -> None:
    assert store.admit(delivery("one")).kind == "run"
    store.end(delivery("one"))
    assert store.admit(delivery("two", **facts)).kind == "drop"


@pytest.mark.parametrize("on_conflict", ["wait", "latest", "skip", "raise"])
def test_a_redelivered_copy_waits_behind_the_run_of_another_one_that_has_a_lock(
    store: Store, on_conflict: str
) -> None:
    assert store.admit(delivery("one", lock=True)).kind == "run"
    again = delivery("two", lock=True, redelivered=True, was_admitted=True)
    assert store.admit(again, on_conflict=on_conflict).kind == "wait"
    store.end(delivery("one", lock=True))
    assert not store.lock.entries
    assert store.admit(again, on_conflict=on_conflict).kind == "drop"


def test_a_delivery_that_left_the_window_meets_its_lock_as_a_new_one(store: Store) -> None:
    store.lock.acquire("other")
    assert store.admit(delivery("one", lock=True), on_conflict="skip").kind == "skip"
    assert store.lock.in_line == []


@pytest.mark.parametrize(
    ("facts", "is_new"),
    [({}, True), ({"redelivered": True, "was_admitted": True}, False), ({"promoted": ""}, False)],
    ids=["first", "redelivered", "delayed for a store that was away"],
)
def test_the_lock_of_a_delivery_knows_whether_an_earlier_delivery_has_asked_for_it(
    store: Store, facts: dict[str, Any], *, is_new: bool
) -> None:
    store.admit(delivery("one", lock=True, **facts))
    (acquire,) = store.acquires["x"]
    assert (acquire.redelivered, acquire.promoted) == (not is_new, None)


def test_a_delivery_that_left_the_window_is_refused_by_a_full_line(store: Store) -> None:
    for other in ("other/1", "others/1"):
        store.lock.acquire(other)
    assert store.admit(delivery("one", lock=True), max_waiting=1).reason == "full"
    assert store.lock.in_line == ["others/1"]


def test_a_delivery_that_waits_for_its_lock_does_not_ask_for_its_window_again(store: Store) -> None:
    store.lock.acquire("other")
    assert store.admit(delivery("one", lock=True)).kind == "wait"
    store.lock.release("other")
    store.asked.clear()
    assert store.admit(delivery("two", lock=True, offered="x", was_admitted=True)).kind == "run"
    assert store.asked == ["x"]


@pytest.mark.parametrize(
    "facts", [{"promoted": None, "offered": None}, {"offered": None, "redelivered": True}]
)
def test_a_retry_asks_for_no_window(store: Store, facts: dict[str, Any]) -> None:
    store.call("b")
    retry = delivery("one", was_admitted=True, **facts)
    assert store.admit(retry).kind == "run"
    assert store.asked == []


def test_an_aside_message_that_meets_another_delivery_waits_in_the_store(store: Store) -> None:
    """It had no worker for so long that the next window has gone before it."""
    store.call("b")
    while "a/1" not in store.windows.aside:
        store.wake(600)
    store.wake(600)
    store.is_away = True
    assert store.admit(delivery("one", "b")).kind == "run"
    assert store.admit(delivery("two")).kind == "wait"
    assert store.windows.in_line == ["a/1"]
    assert store.wake(TTL // SECOND) == ("a/1",)
    assert store.admit(delivery("three")).kind == "run"


@pytest.mark.promise(
    "A message that is revoked, or has expired, when its window ends leaves the window, and is offered to no "
    "worker again",
    name="revoked in a window",
    broke="it is offered again after its REVOKED",
)
def test_a_message_that_ends_without_its_body_leaves_its_window(store: Store) -> None:
    store.call("b")
    store.end(delivery("one"))
    assert store.windows.in_line == ["b/1"]
    assert store.wake() == ("b/1",)


def test_a_message_that_is_redelivered_stays_in_its_window(store: Store) -> None:
    store.end(delivery("one"), done=False)
    assert store.wake(10) == ("a/1",)


def test_a_run_that_has_left_its_window_releases_nothing_of_the_next(store: Store) -> None:
    assert store.admit(delivery("one")).kind == "run"
    store.call("b")
    store.end(delivery("one"))
    assert store.windows.in_line == ["b/1"]
    assert store.windows.ask(Release("a/1", "one", "open")) == Applied(False)
