"""What a body and its end publish: retries, what comes next, and their own keys."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, chain, group
from kombu.exceptions import OperationalError

from celery_exclusive import DuplicateTask, Exclusive, StoreUnavailable, Unique
from celery_exclusive.core.claim import Claim
from celery_exclusive.core.records import SECOND
from celery_exclusive.messages.header import Header as CarriedHeader
from celery_exclusive.run import Run, current_run, within
from celery_exclusive.stores.memory import MemoryStore
from tests.worker.journal import eventually


@pytest.mark.proves("never refused")
def test_the_end_of_a_task_sends_what_comes_next_without_the_store_and_against_its_own_key(
    app: Celery, make_task: Any, store: MemoryStore, sent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of a chain that was not sent would turn finished work into a failure."""
    task = make_task()
    first = task.delay("a")
    run = Run(first.id, body_over=True)
    mark = current_run.set(run)
    try:
        task.apply_async(("a",))  # a link has no id before it is sent

        def fail(*_: Any) -> None:
            raise StoreUnavailable("no store")

        monkeypatch.setattr(store, "apply", fail)
        task.apply_async(("a",))
    finally:
        current_run.reset(mark)
    assert [header.get("duplicate_of") for header in sent()] == [None, None, None]
    assert [bool(header.get("unique")) for header in sent()] == [True, True, False]
    assert [header.get("published_by") for header in sent()] == [None, first.id, first.id]


@pytest.mark.proves("never refused")
def test_a_call_from_the_end_of_a_task_raises_no_duplicate_task(make_task: Any, sent: Any) -> None:
    """It would turn finished work into a failure."""
    task = make_task(on_conflict="raise")
    first = task.delay("a")
    mark = current_run.set(Run("parent", body_over=True))
    try:
        assert task.delay("a").outcome == "published"
    finally:
        current_run.reset(mark)
    assert [header.get("duplicate_of") for header in sent()] == [None, first.id]


def inside(task: Any, first: Any, store: MemoryStore, until: str, *, may_hold: bool) -> tuple[Run, Any]:
    """The run of a call, in whose body we are, and the options of its retry."""
    (holder,) = store.inspect(first.key).holders
    token = holder.id.rpartition("/")[2]
    claim = Claim(first.key, holder.id, token, 30 * SECOND)
    store.apply(first.key, claim.acquire_alone(30 * SECOND, "running") if may_hold else claim.release("open"))
    header = CarriedHeader(token, None, (first.key, until))
    options = {"task_id": first.id, "retries": 1, "headers": {"exclusive": header.write()}}
    held: Any = SimpleNamespace(claim=claim, until=until, may_hold=may_hold)
    return Run(first.id, unique=held), options


@pytest.mark.promise(
    "A retry that cannot be sent acquires nothing for a run that has released its key, or may have ended; "
    "a store that is unreachable costs one thread",
    name="unsent retry",
    broke="as before: handed back to the run; tried again inline",
)
def test_a_retry_that_is_not_sent_takes_no_key_for_a_run_that_has_given_it_back(
    make_task: Any, store: MemoryStore, without_broker: Any
) -> None:
    task = make_task(until="started")
    run, options = inside(task, task.delay("a"), store, "started", may_hold=False)
    mark = current_run.set(run)
    try:
        with without_broker(), pytest.raises(OperationalError):
            task.apply_async(("a",), **options)
    finally:
        current_run.reset(mark)
    assert task.lock_state("a").unique_holder is None


@pytest.mark.proves("unique, key of the running delivery")
def test_a_retry_that_was_sent_in_spite_of_an_error_and_runs_keeps_the_key(
    make_task: Any, store: MemoryStore, request: pytest.FixtureRequest
) -> None:
    task = make_task()
    run, options = inside(task, task.delay("a"), store, "finished", may_hold=True)
    begun = request.getfixturevalue("begun")
    with within(run), pytest.raises(KeyboardInterrupt):
        task.apply_async(("a",), **options)
    (holder,) = store.inspect(run.unique.claim.key).holders  # type: ignore[union-attr]
    assert [holder.id] == begun


@pytest.mark.proves("unsent retry")
def test_a_run_whose_retry_was_not_sent_has_not_handed_over_its_key(
    make_task: Any, store: MemoryStore, without_broker: Any
) -> None:
    task = make_task()
    run, options = inside(task, task.delay("a"), store, "finished", may_hold=True)
    with within(run), without_broker(), pytest.raises(OperationalError):
        task.apply_async(("a",), **options)
    assert run.unique
    assert not run.unique.is_handed_over


@pytest.mark.proves("unsent retry")
def test_a_late_release_does_not_return_the_key_to_a_run_that_may_have_ended(
    make_task: Any, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, without_broker: Any
) -> None:
    task = make_task(ttl=600)
    run, options = inside(task, task.delay("a"), store, "finished", may_hold=True)
    apply, asked = store.apply, []

    def be_silent_twice(key: str, operation: Any) -> Any:
        asked.append(operation)
        if len(asked) in (2, 3):
            raise StoreUnavailable("no answer")
        return apply(key, operation)

    mark = current_run.set(run)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(store, "apply", be_silent_twice)
            with without_broker(), pytest.raises(OperationalError):
                task.apply_async(("a",), **options)
            eventually(lambda: len(asked) == 4, "another try")
            eventually(lambda: task.lock_state("a").unique_holder is None, "a free key")
    finally:
        current_run.reset(mark)


@pytest.mark.promise(
    "A request of a retry that was not sent acquires nothing when it arrives: its run, which got the lease "
    "back, keeps it. A message that was sent in spite of the error runs",
    name="retry that was given up",
    broke=(
        "looked at in the phases of a call alone; not looked at before the lease goes over (`step`, Lua); "
        "as superseded: its copy leaves the line; over another tombstone: a finished task runs again"
    ),
)
@pytest.mark.parametrize("error", [StoreUnavailable("no answer"), KeyboardInterrupt()], ids=repr)
def test_a_request_of_a_retry_that_arrives_when_this_was_not_sent_leaves_the_key_to_the_run(
    make_task: Any,
    store: MemoryStore,
    monkeypatch: pytest.MonkeyPatch,
    without_broker: Any,
    error: BaseException,
) -> None:
    task = make_task()
    run, options = inside(task, task.delay("a"), store, "finished", may_hold=True)
    (held,) = store.inspect(run.unique.claim.key).holders  # type: ignore[union-attr]
    apply, late = store.apply, list[tuple[str, Any]]()

    def withhold_first(key: str, operation: Any) -> Any:
        if late:
            return apply(key, operation)
        late.append((key, operation))
        raise error

    with within(run), monkeypatch.context() as patch, without_broker():
        patch.setattr(store, "apply", withhold_first)
        with pytest.raises((OperationalError, KeyboardInterrupt)):
            task.apply_async(("a",), **options)
    apply(*late[0])
    (holder,) = store.inspect(run.unique.claim.key).holders  # type: ignore[union-attr]
    assert (holder.id, holder.phase, holder.fence) == (held.id, "running", held.fence)


def test_a_message_that_is_sent_again_from_another_body_does_not_get_that_ones_key(
    make_task: Any, store: MemoryStore, sent: Any
) -> None:
    task = make_task()
    run, _ = inside(task, task.delay("a"), store, "finished", may_hold=True)
    header = CarriedHeader("p", None, None)
    mark = current_run.set(run)
    try:
        task.apply_async(("b",), task_id="b", retries=1, headers={"exclusive": header.write()})
    finally:
        current_run.reset(mark)
    assert sent()[1].get("unique") is None


@pytest.mark.proves("unique, goes on")
def test_the_retry_of_a_call_that_has_switched_one_option_off_has_the_keys_of_its_own_arguments(
    app: Celery, published: list[dict[str, Any]]
) -> None:
    @app.task(name="both", shared=False, bind=True, exclusive=Exclusive("url"), unique=Unique("url"))
    def both(self: Any, url: str) -> None: ...

    app.finalize()
    both.apply_async(("a",), unique=None)
    both.push_request(id="me", args=("a",), kwargs={})
    try:
        both.apply_async(("b",), task_id="me", retries=1, headers={"exclusive": published[0]["exclusive"]})
    finally:
        both.pop_request()
    header = published[1]["exclusive"]
    assert (header.get("exclusive"), header.get("unique"), header.get("switched_off")) == (
        both.lock_state("b").key,
        None,
        ("unique",),
    )


@pytest.mark.parametrize(("args", "kwargs"), [(("a",), {}), ((), {"url": "a"})])
def test_a_retry_with_the_same_arguments_keeps_the_key_that_other_code_has_made(
    app: Celery, published: list[dict[str, Any]], args: tuple[str, ...], kwargs: dict[str, str]
) -> None:
    @app.task(name="both", shared=False, bind=True, exclusive=Exclusive("url"))
    def both(self: Any, url: str) -> None: ...

    app.finalize()
    both.apply_async(args, kwargs)
    header = {**published[0]["exclusive"], "exclusive": "x:of other code"}
    both.push_request(id="me", args=args, kwargs=kwargs)
    try:
        both.apply_async(args, kwargs, task_id="me", retries=1, headers={"exclusive": header})
    finally:
        both.pop_request()
    assert published[1]["exclusive"]["exclusive"] == "x:of other code"


def test_a_retry_that_switches_off_one_option_leaves_the_other_one_off(
    app: Celery, published: list[dict[str, Any]]
) -> None:
    @app.task(name="both", shared=False, exclusive=Exclusive("url"), unique=Unique("url"))
    def both(url: str) -> None: ...

    app.finalize()
    both.apply_async(("a",), unique=None)
    retry = {"task_id": "me", "retries": 1, "headers": {"exclusive": published[0]["exclusive"]}}
    both.apply_async(("a",), exclusive=None, **retry)
    assert sorted(published[1]["exclusive"]["switched_off"]) == ["exclusive", "unique"]


@pytest.mark.proves("position")
def test_a_body_that_has_its_unique_key_and_no_lock_is_running(app: Celery, store: MemoryStore) -> None:
    @app.task(name="both", shared=False, exclusive=Exclusive("url"), unique=Unique("url"))
    def both(url: str) -> None: ...

    app.finalize()
    first = both.apply_async(("a",), exclusive=None)
    assert both.lock_state("a").is_queued
    inside(both, first, store, "finished", may_hold=True)
    state = both.lock_state("a")
    assert (state.is_running, state.is_queued) == (True, False)


def test_a_canvas_with_the_key_of_the_run_that_publishes_it_is_an_error(make_task: Any, sent: Any) -> None:
    task = make_task()
    first = task.delay("a")
    claim = Claim(first.key, f"{first.id}/p", "p", SECOND)
    inside = Run(first.id, unique=SimpleNamespace(claim=claim, until="finished"))  # type: ignore[arg-type]
    mark = current_run.set(inside)
    try:
        for canvas in (chain(task.si("a"), task.si("b")), task.si("a").set(link=task.si("c"))):
            with pytest.raises(DuplicateTask, match="its own unique key"):
                canvas.apply_async()
        group(task.si("a"), task.si("d")).apply_async()  # the other one is sent, and would wait for it
    finally:
        current_run.reset(mark)
    assert [header.get("duplicate_of") for header in sent()] == [None, first.id, None]


def test_a_retry_is_queued_as_its_call_has_said(make_task: Any, store: MemoryStore) -> None:
    task = make_task(until="started")
    first = task.apply_async(("a",), unique=Unique("url", queued_ttl=500))
    (holder,) = store.inspect(first.key).holders
    values = {"unique": {"queued_ttl": 500}}
    header = CarriedHeader(holder.id.rpartition("/")[2], None, (first.key, "finished"), values=values)
    run, _ = inside(task, first, store, "finished", may_hold=True)
    mark = current_run.set(run)
    try:
        task.apply_async(("a",), task_id=first.id, retries=1, headers={"exclusive": header.write()})
    finally:
        current_run.reset(mark)
    (handed,) = store.inspect(first.key).holders
    assert handed.id != holder.id
    assert handed.fence == holder.fence
    assert handed.phase == "again"
    assert handed.remaining / SECOND <= 500


@pytest.mark.promise(
    "A retry takes its place with the options of its call",
    broke="red before: with the options of its task",
)
def test_a_retry_takes_its_place_with_the_options_of_its_call(
    app: Celery, store: MemoryStore, sent: Any
) -> None:
    @app.task(name="feeds.load", shared=False, exclusive=Exclusive("url"))
    def load(url: str) -> None: ...

    app.finalize()
    task = app.tasks["feeds.load"]
    first = task.apply_async(("a",), exclusive=Exclusive("url", order="published"))
    (header,) = sent()
    task.apply_async(("a",), task_id=first.id, retries=1, headers={"exclusive": header})
    assert store.inspect(header["exclusive"]).waiting == 2


def test_a_retry_with_options_of_its_own_has_these(make_task: Any, store: MemoryStore, sent: Any) -> None:
    task = make_task()
    run, options = inside(task, task.delay("a"), store, "finished", may_hold=True)
    with within(run):
        task.apply_async(("a",), unique=Unique(ttl=500), **options)
    assert sent()[1]["values"]["unique"]["ttl"] == 500
