"""What a delivery does with its unique key, where no race can be arranged with real workers."""

from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import Reject

from celery_exclusive import Exclusive
from celery_exclusive.core.admission import Admission, Policy, admit
from celery_exclusive.core.claim import Claim, UniqueClaim
from celery_exclusive.core.operations import Answer, Applied, Held, Owner, Parked
from celery_exclusive.core.plan import Ask, run_plan
from celery_exclusive.core.records import SECOND
from celery_exclusive.messages.header import Header
from celery_exclusive.run import current_run
from celery_exclusive.system.deadline import Budget
from celery_exclusive.worker.context import WorkerContext
from celery_exclusive.worker.reading import Received
from celery_exclusive.worker.run_leases import LeasedRun
from tests.worker.embedded import embedded, memory_app
from tests.worker.lab import disconnect, eventually

CLAIM = Claim("u:k", "id/p", "p", 30 * SECOND)
QUEUED = 1000 * SECOND
UNIQUE = UniqueClaim(CLAIM, "finished", QUEUED, is_acquired=True)
DELIVERY = Received(
    id="id/p",
    token="t",
    unique=UNIQUE,
    acks_late=True,
    header=Header("p"),
    content=(b"[]", "application/json", "utf-8", {}, {}, "celery", ""),
)


@pytest.fixture
def store(app: Celery) -> Any:
    store = app._celery_exclusive.store  # type: ignore[attr-defined]
    yield store
    store.clear()


def begun(app: Celery) -> LeasedRun:
    worker = WorkerContext(app._celery_exclusive)  # type: ignore[attr-defined]
    task = SimpleNamespace(name="feeds.load")
    return LeasedRun(task, DELIVERY, worker, worker.roster.begin(DELIVERY), "id", Budget())


@pytest.fixture
def run(app: Celery, store: Any) -> LeasedRun:
    """Of a message that its publisher has acquired the key for."""
    store.apply(CLAIM.key, CLAIM.acquire_alone(CLAIM.ttl, "running"))
    return begun(app)


@pytest.mark.promise(
    "A run that is over leaves its message and its arguments to no cycle: they are freed at once",
    name="no cycles",
    broke="red before, in a worker and in `apply()`: the end of the body kept the run, and the run its end",
)
@pytest.mark.parametrize("done", [True, False])
def test_run_that_is_over_is_freed_without_the_garbage_collector(app: Celery, store: Any, done: bool) -> None:
    run = begun(app)
    is_alive = weakref.ref(run.slot)
    gc.disable()
    try:
        run.release(Admission("run"), done=done)
        run.worker.roster.end(run.slot)
        del run
        assert is_alive() is None
    finally:
        gc.enable()


def left(store: Any) -> float:
    """Seconds until the key is free."""
    return max((owner.remaining / SECOND for owner in store.inspect(CLAIM.key).holders), default=0)


@pytest.mark.parametrize("error", [Reject(requeue=True), MemoryError()])
def test_a_message_that_will_be_redelivered_keeps_the_key_for_queued_ttl(
    run: LeasedRun, store: Any, error: Exception
) -> None:
    run.end_body(error)
    assert 30 < left(store) <= 1000


@pytest.mark.parametrize("error", [None, KeyError(), Reject(requeue=False)])
def test_a_message_that_will_not_be_redelivered_releases_the_key(
    run: LeasedRun, store: Any, error: Exception | None
) -> None:
    run.end_body(error)
    assert left(store) == 0
    assert run.unique
    assert not run.unique.may_hold


def test_a_process_that_exits_leaves_the_key_to_the_main_process(run: LeasedRun, store: Any) -> None:
    run.end_body(SystemExit())
    assert 0 < left(store) <= 30
    assert run.unique
    assert run.unique.may_hold


def test_a_rejected_message_keeps_its_key_but_does_not_acquire_a_key_that_another_copy_released(
    run: LeasedRun, store: Any
) -> None:
    run.end_body(Reject(requeue=True))
    assert 30 < left(store) <= 1000
    (holder,) = store.inspect(CLAIM.key).holders
    assert holder.phase == "again"
    store.apply(CLAIM.key, CLAIM.release(ending="open"))
    run.end_body(Reject(requeue=True))
    assert left(store) == 0


@pytest.mark.proves("unique, key of the running delivery")
def test_a_rejected_message_leaves_the_key_to_another_delivery_that_runs(run: LeasedRun, store: Any) -> None:
    other = replace(CLAIM, token="of the other delivery")
    store.apply(CLAIM.key, CLAIM.release(ending="open"))
    store.apply(CLAIM.key, other.acquire_alone(CLAIM.ttl, "running"))
    run.end_body(Reject(requeue=True))
    run.end_body(None)
    (holder,) = store.inspect(CLAIM.key).holders
    assert (holder.phase, left(store) <= 30) == ("running", True)


def admitted(store: Any, delivery: Received) -> Admission:
    return run_plan(admit(delivery, Policy()), lambda asked: store.apply(asked.key, asked.operation).answer)


@pytest.mark.proves("queue longer than queued_ttl")
@pytest.mark.parametrize("again", [False, True])
def test_a_message_that_has_lost_its_key_to_one_that_is_queued_runs_before_it(
    run: LeasedRun, store: Any, again: bool
) -> None:
    store.apply(CLAIM.key, CLAIM.release(ending="open"))
    owner = replace(CLAIM, id="owner/p", token="p")
    store.apply(CLAIM.key, owner.acquire_alone(QUEUED, "queued"))
    outcome = admitted(store, replace(DELIVERY, was_admitted=again))
    (holder,) = store.inspect(CLAIM.key).holders
    assert holder.id == CLAIM.id
    assert outcome == Admission("run", unique_fence=holder.fence, may_hold_unique=True)
    run.end_body(None)
    assert not store.inspect(CLAIM.key).holders


@pytest.mark.proves("queue longer than queued_ttl")
@pytest.mark.parametrize("phase", ["running", "again", "period"])
def test_a_message_that_has_lost_its_key_to_one_that_runs_or_will_run_does_not_run(
    run: LeasedRun, store: Any, phase: Any
) -> None:
    store.apply(CLAIM.key, CLAIM.release(ending="open"))
    owner = replace(CLAIM, id="owner/p", token="t")
    store.apply(CLAIM.key, owner.acquire_alone(QUEUED, phase))
    outcome = admitted(store, DELIVERY)
    assert (outcome.kind, outcome.reason, outcome.existing_id) == ("skip", "duplicate", "owner")


@pytest.mark.promise(
    "A store that names no running owner leaves the unique key of a run alone",
    broke="red before",
)
@pytest.mark.parametrize("unanswered", ["u:k", "x:k"])
def test_a_parked_delivery_leaves_its_unique_key_alone_if_the_store_names_no_running_owner(
    unanswered: str,
) -> None:
    asks: list[Ask] = []

    def answer(asked: Ask) -> Answer:
        asks.append(asked)
        if len(asks) == 1:
            return Parked(1, ())
        is_told = asked.operation is None and asked.key != unanswered
        return (
            Held((Owner("id/p", 0, 0, token="dead"),) * (asked.key == "u:k")) if is_told else Applied(False)
        )

    lock = Claim("x:k", "id/p", "t", 30 * SECOND)
    outcome = run_plan(admit(replace(DELIVERY, exclusive=lock, was_admitted=True), Policy()), answer)
    assert (outcome.kind, outcome.key) == ("wait", "x:k")
    assert [asked.key for asked in asks] == ["x:k", CLAIM.key, CLAIM.key, "x:k"]


@pytest.mark.parametrize("interruption", [SystemExit(), RuntimeError()])
def test_a_signal_during_the_release_of_a_lock_ends_the_run_only_if_it_ends_the_process(
    app: Celery, store: Any, monkeypatch: pytest.MonkeyPatch, interruption: BaseException
) -> None:
    monkeypatch.setattr(LeasedRun, "_release_lock", lambda _, *, done: interruption)
    ends = isinstance(interruption, SystemExit)
    with pytest.raises(SystemExit) if ends else nullcontext():
        begun(app).release(Admission("run"), done=True)
    assert not store.inspect(CLAIM.key).holders


@pytest.mark.proves("no cycles")
def test_a_context_that_outlives_its_run_keeps_no_message() -> None:
    app, contexts = memory_app("contexts"), []

    @app.task(shared=False, exclusive=Exclusive("key"))
    def load(key: str) -> None:
        contexts.append(copy_context())

    with embedded(app, "threads"):
        load.delay("k").get(timeout=60)
        (context,) = contexts
        run = vars(context[current_run])
        eventually(lambda: run.keys().isdisjoint(("call", "delivery", "slot")), "the end of the run")
    disconnect(app)
    app.close()
