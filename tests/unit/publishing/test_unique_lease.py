"""The lease of a unique task: for how long it is taken, and how it is given back if nothing is sent."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from kombu.exceptions import OperationalError

from celery_exclusive import Exclusive, StoreUnavailable, Unique, install
from celery_exclusive.core.operations import AcquireAlone
from celery_exclusive.core.records import SECOND
from celery_exclusive.options.amounts import LONGEST
from celery_exclusive.stores.memory import MemoryStore
from tests.worker.journal import eventually


def test_both_options_have_a_key_each(app: Celery, sent: Any) -> None:
    @app.task(name="both", shared=False, exclusive=Exclusive("url"), unique=Unique(key="feed:{url}"))
    def both(url: str) -> None: ...

    app.finalize()
    both.delay("a")
    (header,) = sent()
    assert header["exclusive"].startswith("x:both:")
    assert header.get("unique") == ("u=feed:a", "finished")


@pytest.mark.promise(
    "`lock_state` distinguishes queued, running, waiting and free for both options in one call of the store",
    name="lock_state",
    broke="two calls; begun when it is published; not begun by the start of its body",
)
def test_looking_at_both_keys_is_one_call_of_the_store(app: Celery, store: MemoryStore) -> None:
    @app.task(name="both", shared=False, exclusive=Exclusive("url"), unique=Unique("url", until="started"))
    def both(url: str) -> None: ...

    app.finalize()
    result = both.delay("a")
    looks: list[Any] = []
    inspect_all = store.inspect_all
    store.inspect_all = lambda keys: (looks.append(keys), inspect_all(keys))[1]  # type: ignore[method-assign]
    state = both.lock_state("a")
    del store.inspect_all
    assert (state.is_running, state.is_queued, state.waiting) == (False, True, 0)
    assert state.unique_holder
    assert state.unique_holder.task_id == result.id
    assert looks == [[state.key, result.key]]
    store.clear()


@pytest.mark.promise(
    "The text of a `LockState` shows all that it knows",
    broke="the text of its fields alone",
)
def test_the_text_of_a_state_tells_all_that_it_knows(make_task: Callable[..., Any]) -> None:
    task = make_task("url")
    result = task.delay("a")
    state = task.lock_state("a")
    known = [name for name in dir(state) if not name.startswith("_") and name != "place_of"]
    assert {"key", "holders", "waiting", "position", "unique_holder", "is_running", "is_queued"} < set(known)
    for name in known:
        assert f"{name}={getattr(state, name)!r}" in repr(state)
    assert (
        f"is_queued=True, holders=(), waiting=0, position=0, "
        f"unique_holder=LockHolder(task_id={result.id!r}, " in repr(state)
    )


LATER = datetime.now(timezone.utc) + timedelta(days=1000)


@pytest.mark.promise(
    "Countdown and eta are added to `queued_ttl`",
    name="countdown and queued ttl",
    broke="the countdown left out",
)
@pytest.mark.parametrize(
    ("options", "delay"),
    [
        ({}, 0),
        ({"countdown": 500}, 500),
        ({"countdown": -5}, 0),
        ({"eta": LATER}, 86_400_000),
        ({"eta": LATER.isoformat()}, 86_400_000),
        ({"eta": LATER.replace(tzinfo=None)}, 86_400_000),
    ],
)
def test_the_time_until_it_may_begin_is_added(
    make_task: Any, store: MemoryStore, options: dict[str, Any], delay: int
) -> None:
    task = make_task(queued_ttl=100)
    key = task.apply_async(("a",), **options).key
    (holder,) = store.inspect(key).holders
    assert delay + 100 - 4000 < holder.remaining / SECOND <= delay + 100


@pytest.mark.proves("computed times")
@pytest.mark.parametrize(
    "options",
    [
        {"countdown": 10**9},
        {"eta": datetime.max},  # noqa: DTZ901 - as people write it
        {"eta": datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))},
        {"eta": "9999-12-31T23:59:59.999999+00:00"},
        {"countdown": 10**9, "expires": 2 * 10**9},
    ],
    ids=str,
)
def test_a_call_with_an_eta_in_a_thousand_years_holds_its_key_for_the_longest_time_of_a_store(
    make_task: Any, store: MemoryStore, options: dict[str, Any]
) -> None:
    key = make_task().apply_async(("a",), **options).key
    (holder,) = store.inspect(key).holders
    assert LONGEST - 4000 < holder.remaining / SECOND <= LONGEST


@pytest.mark.parametrize("eta", [datetime.min, "0001-01-01T00:00:00+23:59"], ids=str)  # noqa: DTZ901
def test_an_eta_long_ago_adds_nothing(make_task: Any, store: MemoryStore, eta: Any) -> None:
    key = make_task(queued_ttl=100).apply_async(("a",), eta=eta).key
    assert store.inspect(key).holders[0].remaining / SECOND <= 100


@pytest.mark.proves("computed times")
@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), -float("inf"), 10**400, 1e300])
@pytest.mark.parametrize("option", ["countdown", "expires"])
def test_a_time_that_celery_cannot_add_is_its_own_error_and_leaves_the_key_free(
    app: Celery, make_task: Any, store: MemoryStore, option: str, seconds: float
) -> None:
    @app.task(name="plain", shared=False)
    def plain(url: str) -> None: ...

    task, errors = make_task(), []
    for called in (plain, task):
        with pytest.raises(Exception) as caught:  # noqa: PT011 - whichever Celery raises
            called.apply_async(("a",), **{option: seconds})
        errors.append((type(caught.value), str(caught.value)))
    assert errors[0] == errors[1]
    assert not store.inspect(task.lock_state("a").key).holders


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({"expires": 40}, 40),
        ({"expires": 40, "countdown": 10}, 40),
        ({"expires": 1000}, 100),
        ({"expires": 0}, 0.1),
        ({"expires": datetime.now(timezone.utc) - timedelta(days=1)}, 0.1),
        ({"expires": LATER.isoformat()}, 100),
    ],
)
def test_an_expired_message_does_not_keep_its_unique_key(
    make_task: Any, store: MemoryStore, options: dict[str, Any], left: float
) -> None:
    own: list[Any] = []
    apply = store.apply
    task = make_task(queued_ttl=100)
    store.apply = lambda key, operation: (own.append(operation), apply(key, operation))[1]  # type: ignore[method-assign]
    task.apply_async(("a",), **options)
    assert own[0].ttl == left * SECOND
    del store.apply


@pytest.mark.proves("lock_state")
def test_a_queued_task_with_a_queued_ttl_below_its_ttl_is_queued(make_task: Any, store: MemoryStore) -> None:
    task = make_task(queued_ttl=10, ttl=600)
    result = task.delay("a")
    state = task.lock_state("a")
    assert (state.is_running, state.is_queued, state.unique_holder.task_id) == (False, True, result.id)
    (taken,) = task.release_lock("a")  # without force: no body is in danger
    assert taken.task_id == result.id


@pytest.mark.proves("period")
def test_a_period_lasts_exactly_as_long(make_task: Any, store: MemoryStore) -> None:
    task = make_task(period=60)
    (holder,) = store.inspect(task.apply_async(("a",), countdown=3600).key).holders
    assert holder.remaining <= 60 * SECOND
    state = task.lock_state("a")
    assert (state.is_running, state.is_queued, bool(state.unique_holder)) == (False, False, True)


def test_a_unique_call_that_is_not_sent_leaves_its_key_free(make_task: Any, without_broker: Any) -> None:
    task = make_task()
    with without_broker(), pytest.raises(OperationalError):
        task.delay("a")
    assert task.lock_state("a").unique_holder is None
    assert task.delay("a").outcome == "published"


@pytest.mark.promise(
    "Without the store a call of the user's code is an error, also with a `task_id` or a link; with "
    '"allow" it is sent',
    broke="red before: sent without its key",
)
def test_without_the_store_a_call_fails_or_is_sent_without_its_key(
    make_task: Any, store: MemoryStore, sent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise StoreUnavailable("no store")

    strict, easy = make_task(), make_task(name="feeds.easy", on_store_error="allow")
    monkeypatch.setattr(store, "apply", fail)
    for options in ({}, {"task_id": "given"}, {"link": easy.s()}):
        with pytest.raises(StoreUnavailable):
            strict.apply_async(("a",), **options)
    assert easy.delay("a").outcome == "published"
    assert [header.get("unique") for header in sent()] == [None]


@pytest.mark.promise(
    "A lease that may have been granted without an answer, or to a call that was interrupted, is released",
    name="granted without an answer",
    broke="nothing is released; no second try",
)
@pytest.mark.parametrize("error", [KeyboardInterrupt(), StoreUnavailable("no answer")])
def test_a_lease_that_may_have_been_granted_without_an_answer_is_released(
    make_task: Any, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    task = make_task()
    apply = store.apply

    def lose_the_answer(key: str, operation: Any) -> Any:
        reply = apply(key, operation)
        if isinstance(operation, AcquireAlone):
            raise error
        return reply

    with monkeypatch.context() as patch:
        patch.setattr(store, "apply", lose_the_answer)
        with pytest.raises(type(error)):
            task.delay("a")
    eventually(lambda: task.delay("a").outcome == "published", "a free key")


@pytest.mark.promise(
    "A request of a call that was given up, since the store did not answer, acquires no unique key when it "
    "arrives",
    name="call that was given up",
    broke=(
        "its message is not remembered as given up; that is not looked at (`step`, Lua): a key held for "
        "`queued_ttl`, and every call skipped"
    ),
)
def test_a_request_that_arrives_when_its_call_was_given_up_acquires_nothing(
    make_task: Any, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task()
    apply, late = store.apply, list[tuple[str, Any]]()

    def withhold(key: str, operation: Any) -> Any:
        if not isinstance(operation, AcquireAlone):
            return apply(key, operation)
        late.append((key, operation))
        raise StoreUnavailable("no answer")

    releaser = task.app._celery_exclusive.releaser
    with monkeypatch.context() as patch:
        patch.setattr(store, "apply", withhold)
        with pytest.raises(StoreUnavailable):
            task.delay("a")
        releaser.drain()
    apply(*late[0])
    assert task.lock_state("a").unique_holder is None
    assert task.delay("a").outcome == "published"


@pytest.mark.proves("unique, key of the running delivery")
def test_a_call_that_is_interrupted_when_it_has_been_sent_leaves_the_key_to_the_body_that_runs(
    make_task: Any, begun: list[str]
) -> None:
    task = make_task()
    with pytest.raises(KeyboardInterrupt):
        task.delay("a")
    assert begun
    assert task.lock_state("a").is_running
    assert task.delay("a").outcome == "skipped"


@pytest.mark.proves("granted without an answer")
def test_a_key_is_released_later_if_the_store_does_not_answer_the_release(
    make_task: Any, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task()
    apply = store.apply
    silent = [True] * 4

    def be_silent(key: str, operation: Any) -> Any:
        reply = apply(key, operation) if isinstance(operation, AcquireAlone) else None
        if silent:
            silent.pop()
            raise StoreUnavailable("no answer")
        return reply or apply(key, operation)

    monkeypatch.setattr("celery_exclusive.leases.releaser._PAUSE", 0.01)
    with monkeypatch.context() as patch:
        patch.setattr(store, "apply", be_silent)
        with pytest.raises(StoreUnavailable):
            task.delay("a")
        eventually(lambda: task.lock_state("a").unique_holder is None, "a free key")
    assert not silent


@pytest.mark.proves("unsent retry")
def test_a_store_that_is_down_costs_one_thread_and_no_second_try(make_app: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    app = install(make_app(exclusive_store=f"redis://127.0.0.1:{port}/0"))

    @app.task(name="feeds.load", shared=False, unique=Unique())
    def load(n: int) -> None: ...

    before = threading.active_count()
    for n in range(50):
        with pytest.raises(StoreUnavailable):
            app.tasks["feeds.load"].delay(n)
    assert threading.active_count() <= before + 2
    app._celery_exclusive.releaser._pending.clear()  # for which this process would wait when it ends


@pytest.mark.proves("position")
def test_a_period_that_one_call_gives_is_distinguished_from_a_queue(make_task: Any) -> None:
    task = make_task("url")
    task.apply_async(("a",), unique=Unique("url", period=60))
    state = task.lock_state("a")
    assert (state.is_running, state.is_queued, bool(state.unique_holder)) == (False, False, True)
