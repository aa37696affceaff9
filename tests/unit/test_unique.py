"""What a call of a task with `unique=` does before anything is sent."""

from __future__ import annotations

import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from inspect import signature
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, Task, chain, chord, group, shared_task
from kombu.exceptions import OperationalError
from kombu.utils.json import dumps, loads

from celery_exclusive import DuplicateTask, Exclusive, OptionError, StoreUnavailable, Unique, install
from celery_exclusive import Task as InstallingTask
from celery_exclusive.asked import asked
from celery_exclusive.claim import Claim
from celery_exclusive.core.document import SECOND
from celery_exclusive.core.operations import Own
from celery_exclusive.header import Header as CarriedHeader
from celery_exclusive.stores.memory import MemoryStore
from celery_exclusive.task import Run, current_run
from tests.worker.journal import eventually

Header = dict[str, Any]


@pytest.fixture
def make_task(app: Celery) -> Iterator[Callable[..., Any]]:
    """Declares `feeds.load` with these options of Unique."""

    def make(*args: Any, name: str = "feeds.load", **options: Any) -> Any:
        @app.task(name=name, shared=False, unique=Unique(*args, **options))
        def load(url: str, n: int = 0) -> str:
            return url

        app.finalize()
        return app.tasks[name]

    yield make
    app._celery_exclusive.store.clear()  # type: ignore[attr-defined]


@pytest.fixture
def store(app: Celery) -> MemoryStore:
    store: MemoryStore = app._celery_exclusive.store  # type: ignore[attr-defined]
    return store


@pytest.fixture
def sent(published: list[dict[str, Any]]) -> Callable[[], list[Header]]:
    """Our headers of all messages."""
    return lambda: [message["exclusive"] for message in published]


# Options ------------------------------------------------------------------------------------------------


def test_a_unique_without_arguments_is_for_identical_calls_until_they_have_finished() -> None:
    option = Unique()
    assert (option.by, option.names, option.key) == (None, ("*",), None)
    assert (option.until, option.window, option.period) == ("finished", "finished", None)
    assert (option.on_conflict, option.ttl, option.queued_ttl) == ("skip", None, None)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        (Unique(), "Unique()"),
        (Unique("a", until="started"), "Unique('a', until='started')"),
        (Unique(("a", "b"), period=60), "Unique(('a', 'b'), period=60)"),
        (Unique(key="feed:{a}", on_conflict="raise"), "Unique(key='feed:{a}', on_conflict='raise')"),
        (Unique(ttl=9, queued_ttl=99), "Unique(ttl=9, queued_ttl=99)"),
    ],
)
def test_it_shows_itself_as_it_would_be_written(option: Unique, text: str) -> None:
    assert repr(option) == text
    assert pickle.loads(pickle.dumps(option)) == option
    assert option.replace() == option


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"until": "strated"}, ["'strated'", "'finished'", "did you mean 'started'?"]),
        ({"untli": "started"}, ["'untli'", "did you mean 'until'?"]),
        ({"on_conflict": "wait"}, ["'wait'", "'skip' (nothing is sent)", "'raise' (DuplicateTask)"]),
        ({"period": 0}, ["period=0", "number of seconds from 0.1"]),
        ({"period": 60, "until": "started"}, ["period=60", "Leave until="]),
        ({"period": 60, "ttl": 9}, ["period=60", "ttl="]),
        ({"ttl": 0}, ["ttl=0", "exclusive_ttl"]),
        ({"queued_ttl": "9"}, ["queued_ttl='9'", "exclusive_queued_ttl"]),
        ({"by": ()}, ["by=()", "key='...'"]),
        ({"by": "a", "key": "b"}, ["by= and key="]),
        ({"on_store_error": "alow"}, ["'raise' (StoreUnavailable)", "did you mean 'allow'?"]),
        ({"skip_result": {1}}, ["skip_result="]),
    ],
)
def test_a_wrong_option_is_refused_where_it_is_written(options: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(OptionError) as caught:
        Unique(**options)
    assert all(words in str(caught.value) for words in ["Unique()", *said])


def test_a_parameter_that_the_task_has_not_is_refused_when_it_is_declared(make_task: Any) -> None:
    with pytest.raises(OptionError, match=r"unique=Unique\('ulr'\).*did you mean 'url'\?"):
        make_task("ulr")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lock": Unique()}, r"'lock=Unique\(...\)': did you mean 'unique='"),
        ({"exclusive": Unique()}, r"'exclusive=Unique\(...\)': did you mean 'unique='"),
        ({"unique": True}, r"unique=True is not an option; write unique=Unique\(...\)"),
    ],
)
def test_another_name_or_another_kind_is_refused(app: Celery, options: dict[str, Any], said: str) -> None:
    def work() -> None: ...

    app.task(name="feeds.work", shared=False, **options)(work)
    with pytest.raises(OptionError, match=said):
        app.finalize()


# Calls --------------------------------------------------------------------------------------------------


def by_function(app: Celery, option: Unique) -> Any:
    @app.task(name="feeds.load", shared=False, unique=option)
    def load(url: str) -> None: ...

    app.finalize()
    return app.tasks["feeds.load"]


def by_shared_task(app: Celery, option: Unique) -> Any:
    @shared_task(name="feeds.load", unique=option)
    def load(url: str) -> None: ...

    app.finalize()
    return app.tasks["feeds.load"]


def by_class(app: Celery, option: Unique) -> Any:
    class Load(Task):
        name = "feeds.load"
        unique = option

        def run(self, url: str) -> None: ...

    return app.register_task(Load())


def by_own_base(app: Celery, option: Unique) -> Any:
    class Base(InstallingTask):
        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs)

    @app.task(name="feeds.load", base=Base, shared=False, unique=option)
    def load(url: str) -> None: ...

    app.finalize()
    return app.tasks["feeds.load"]


@pytest.mark.parametrize("declare", [by_function, by_shared_task, by_class, by_own_base])
def test_however_it_is_declared_and_called_it_is_sent_once(
    app: Celery, sent: Any, store: MemoryStore, declare: Callable[..., Any]
) -> None:
    task = declare(app, Unique())
    first = task.delay("a")
    calls: list[Callable[[], Any]] = [
        lambda: task.delay("a"),
        lambda: task.delay(url="a"),
        lambda: task.apply_async(("a",)),
        lambda: task.s("a").delay(),
        lambda: task.s("a").apply_async(),
        task.si(url="a"),  # a direct call is a function call
        lambda: app.send_task("feeds.load", ["a"]),
        lambda: app.send_task("feeds.load", ["a"], None, 10),
        lambda: app.signature("feeds.load", ("a",)).delay(),
    ]
    for call in calls:
        result = call()
        if result is not None:
            assert (result.outcome, result.existing_id, result.id) == ("skipped", first.id, first.id)
            assert result.key == first.key == task.lock_state("a").key
    assert len(sent()) == 1
    assert sent()[0]["u"] == (first.key, "finished")
    assert task.delay("b").outcome == "published"
    store.clear()


def test_what_a_signature_or_a_task_returns_is_what_celery_returns(make_task: Any) -> None:
    task = make_task()
    first, second = task.delay("a"), task.delay("a")
    assert type(second) is type(first)
    assert second == first
    assert second.parent is None


@pytest.mark.parametrize(
    "options",
    [
        {"task_id": "by hand"},
        {"link": "plain"},
        {"link_error": "plain"},
        {"reply_to": "a-mailbox"},
        {"group_id": "g"},
        {"chord": "plain"},
        {"chain": ["plain"]},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_others_wait_for_is_sent_and_named_a_duplicate(
    app: Celery, make_task: Any, sent: Any, options: dict[str, Any]
) -> None:
    task = make_task()
    first = task.delay("a")
    if "plain" in options.values() or ["plain"] in options.values():
        plain = app.signature("feeds.load", ("z",), immutable=True)
        options = {name: [plain] if name == "chain" else plain for name in options}
    result = task.apply_async(("a",), **options)
    assert (result.outcome, result.existing_id) == ("published", None)
    assert [header["dup"] for header in sent()] == [None, first.id]
    assert task.lock_state("a").taker.task_id == first.id


def test_members_of_canvases_are_sent_each(make_task: Any, sent: Any) -> None:
    task = make_task()
    task.delay("a")
    for canvas in (
        group(task.si("a"), task.si("a")),
        chain(task.si("a"), task.si("b")),
        chord([task.si("a"), task.si("a")], task.si("c")),
    ):
        canvas.apply_async()
    assert [bool(header["dup"]) for header in sent()] == [False, True, True, True, True, True]


def test_with_results_by_rpc_every_call_is_sent(make_task: Any, app: Celery, sent: Any) -> None:
    app.conf.result_backend = "rpc://"
    task = make_task()
    first = task.delay("a")
    assert task.delay("a").id != first.id
    assert [header["dup"] for header in sent()] == [None, first.id]


def test_a_conflict_may_be_an_error(make_task: Any, sent: Any) -> None:
    task = make_task("url", on_conflict="raise")
    first = task.delay("a")
    with pytest.raises(DuplicateTask, match=f"task feeds.load was not sent: {first.id} has") as caught:
        task.delay("a", n=3)
    assert (caught.value.existing_id, caught.value.key) == (first.id, first.key)
    assert len(sent()) == 1


def test_what_a_body_is_told_of_a_duplicate_is_no_alarm(app: Celery) -> None:
    @app.task(name="plain", shared=False, unique=Unique(), throws=(KeyError,))
    def plain() -> None: ...

    app.finalize()
    assert plain.throws == (KeyError, DuplicateTask)


def test_beat_is_quiet_about_a_conflict(make_task: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "celery_exclusive")
    task = make_task(on_conflict="raise")
    first = task.delay("a")
    result = task.apply_async(("a",), headers={"celery_beat_task": True})
    assert result.outcome == "skipped"
    ours = [record.levelname for record in caplog.records if record.name == "celery_exclusive"]
    assert ours == ["INFO"]
    assert f"Task feeds.load was not sent: unique key {first.key} is that of {first.id}" in caplog.text


def test_one_id_is_never_a_duplicate_of_itself(make_task: Any, sent: Any) -> None:
    task = make_task()
    for _ in range(2):
        assert task.apply_async(("a",), task_id="by hand").outcome == "published"
    assert [header["dup"] for header in sent()] == [None, None]


def test_a_call_switches_it_off(make_task: Any, sent: Any) -> None:
    task = make_task()
    task.delay("a")
    for call in (
        lambda: task.apply_async(("a",), unique=None),
        lambda: task.s("a").set(unique=None).delay(),
    ):
        result = call()
        assert (result.outcome, result.existing_id, result.key) == ("published", None, None)
    assert [header["off"] for header in sent()] == [(), ("unique",), ("unique",)]
    with pytest.raises(OptionError, match=r"unique=1 is not an option of a call"):
        task.apply_async(("a",), unique=1)


def test_a_call_gives_other_values(app: Celery, make_task: Any, sent: Any) -> None:
    task = make_task()
    one = task.apply_async(("a", 1), unique=Unique("url", until="started", ttl=9))
    two = task.s("a", 2).set(unique=Unique(key="feed:{url}", on_conflict="raise")).delay()
    assert [header["u"] for header in sent()] == [(one.key, "started"), ("u:feed:a", "finished")]
    assert [header["values"] for header in sent()] == [
        {"unique": {"until": "started", "ttl": 9}},
        {"unique": {"on_conflict": "raise"}},
    ]
    with pytest.raises(DuplicateTask):
        task.apply_async(("a", 3), unique=Unique(key="feed:{url}", on_conflict="raise"))
    assert two.key == "u:feed:a"
    assert task.apply(("a",), unique=Unique("url", skip_result="busy")).get() == "busy"


def test_values_travel_in_a_chain_unless_a_function_makes_the_key(make_task: Any, published: Any) -> None:
    task = make_task()
    given = Unique(key="feed:{url}", skip_result=[None])
    chain(task.si("a"), task.si("b").set(unique=given)).apply_async()
    assert len(published) == 1
    signature = loads(dumps(task.si("b").set(unique=given)))
    assert signature["options"]["unique"] == given
    with pytest.raises(OptionError, match="cannot travel in a message: give it a template"):
        dumps(task.si("b").set(unique=Unique(key=str)))


def test_a_call_of_a_task_without_options_cannot_give_one(app: Celery) -> None:
    app.task(name="plain", shared=False)(chain)
    for name in ("plain", "unknown"):
        with pytest.raises(OptionError, match=f"task {name}: unique=Unique.* declare one of them"):
            app.send_task(name, unique=Unique())


def test_what_does_not_fit_is_left_to_the_worker(
    make_task: Any, published: list[dict[str, Any]], app: Celery
) -> None:
    make_task()
    app.send_task("feeds.load", ["a", 1, 2, 3])
    assert "exclusive" not in published[0]


def test_both_options_have_a_key_each(app: Celery, sent: Any) -> None:
    @app.task(name="both", shared=False, exclusive=Exclusive("url"), unique=Unique(key="feed:{url}"))
    def both(url: str) -> None: ...

    app.finalize()
    both.delay("a")
    (header,) = sent()
    assert header["x"].startswith("x:both:")
    assert header["u"] == ("u:feed:a", "finished")


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
    assert state.taker
    assert state.taker.task_id == result.id
    assert looks == [[state.key, result.key]]
    store.clear()


LATER = datetime.now(timezone.utc) + timedelta(days=1000)


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
def test_what_has_expired_is_queued_no_more(
    make_task: Any, store: MemoryStore, options: dict[str, Any], left: float
) -> None:
    own: list[Any] = []
    apply = store.apply
    task = make_task(queued_ttl=100)
    store.apply = lambda key, operation: (own.append(operation), apply(key, operation))[1]  # type: ignore[method-assign]
    task.apply_async(("a",), **options)
    assert own[0].ttl == left * SECOND
    del store.apply


def test_who_waits_for_less_than_a_body_may_be_silent_is_queued_all_the_same(
    make_task: Any, store: MemoryStore
) -> None:
    task = make_task(queued_ttl=10, ttl=600)
    result = task.delay("a")
    state = task.lock_state("a")
    assert (state.is_running, state.is_queued, state.taker.task_id) == (False, True, result.id)
    (taken,) = task.release_lock("a")  # without force: no body is in danger
    assert taken.task_id == result.id


def test_a_period_lasts_exactly_as_long(make_task: Any, store: MemoryStore) -> None:
    task = make_task(period=60)
    (holder,) = store.inspect(task.delay("a").key).holders
    assert holder.remaining <= 60 * SECOND
    state = task.lock_state("a")
    assert (state.is_running, state.is_queued, bool(state.taker)) == (False, False, True)


def refuse_to_send(*_: Any, **__: Any) -> None:
    raise OperationalError("no broker")


def test_what_is_not_sent_leaves_the_key_free(make_task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task()

    with monkeypatch.context() as patch:
        patch.setattr(task.app.amqp, "send_task_message", refuse_to_send)
        with pytest.raises(OperationalError):
            task.delay("a")
    assert task.lock_state("a").taker is None
    assert task.delay("a").outcome == "published"


def test_without_the_store_a_call_fails_or_is_sent_without_its_key(
    make_task: Any, store: MemoryStore, sent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise StoreUnavailable("no store")

    strict, easy = make_task(), make_task(name="feeds.easy", on_store_error="allow")
    monkeypatch.setattr(store, "apply", fail)
    with pytest.raises(StoreUnavailable):
        strict.delay("a")
    assert easy.delay("a").outcome == "published"
    assert [header["u"] for header in sent()] == [None]


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
    assert [header["dup"] for header in sent()] == [None, None, None]
    assert [bool(header["u"]) for header in sent()] == [True, True, False]
    assert [header["next"] for header in sent()] == [False, True, True]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), StoreUnavailable("no answer")])
def test_what_may_have_been_granted_without_an_answer_is_given_back(
    make_task: Any, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    task = make_task()
    apply = store.apply

    def lose_the_answer(key: str, operation: Any) -> Any:
        reply = apply(key, operation)
        if isinstance(operation, Own):
            raise error
        return reply

    with monkeypatch.context() as patch:
        patch.setattr(store, "apply", lose_the_answer)
        with pytest.raises(type(error)):
            task.delay("a")
    eventually(lambda: task.delay("a").outcome == "published", "a free key")


def test_it_is_given_back_later_if_the_store_does_not_answer_then_either(
    make_task: Any, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task()
    apply = store.apply
    silent = [True] * 4

    def be_silent(key: str, operation: Any) -> Any:
        reply = apply(key, operation) if isinstance(operation, Own) else None
        if silent:
            silent.pop()
            raise StoreUnavailable("no answer")
        return reply or apply(key, operation)

    monkeypatch.setattr("celery_exclusive.debts._FIRST_PAUSE", 0.01)
    with monkeypatch.context() as patch:
        patch.setattr(store, "apply", be_silent)
        with pytest.raises(StoreUnavailable):
            task.delay("a")
        eventually(lambda: task.lock_state("a").taker is None, "a free key")
    assert not silent


def test_the_end_of_a_task_is_told_of_no_duplicate(make_task: Any, sent: Any) -> None:
    """It would turn finished work into a failure."""
    task = make_task(on_conflict="raise")
    first = task.delay("a")
    mark = current_run.set(Run("parent", body_over=True))
    try:
        assert task.delay("a").outcome == "published"
    finally:
        current_run.reset(mark)
    assert [header["dup"] for header in sent()] == [None, first.id]


def inside(task: Any, first: Any, store: MemoryStore, until: str, *, may_hold: bool) -> tuple[Run, Any]:
    """The run of a call, in whose body we are, and the options of its retry."""
    (holder,) = store.inspect(first.key).holders
    token = holder.id.rpartition("/")[2]
    claim = Claim(first.key, holder.id, token, 30 * SECOND)
    store.apply(first.key, claim.own(30 * SECOND, "running") if may_hold else claim.release(done=False))
    header = CarriedHeader(token, None, (first.key, until))
    options = {"task_id": first.id, "retries": 1, "headers": {"exclusive": header.write()}}
    held: Any = SimpleNamespace(claim=claim, until=until, may_hold=may_hold)
    return Run(first.id, unique=held), options


def test_a_retry_that_is_not_sent_takes_no_key_for_a_run_that_has_given_it_back(
    make_task: Any, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task(until="started")
    run, options = inside(task, task.delay("a"), store, "started", may_hold=False)
    mark = current_run.set(run)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(task.app.amqp, "send_task_message", refuse_to_send)
            with pytest.raises(OperationalError):
                task.apply_async(("a",), **options)
    finally:
        current_run.reset(mark)
    assert task.lock_state("a").taker is None


def test_what_is_given_back_late_is_not_taken_for_a_run_that_may_have_ended(
    make_task: Any, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
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
            patch.setattr(task.app.amqp, "send_task_message", refuse_to_send)
            with pytest.raises(OperationalError):
                task.apply_async(("a",), **options)
            eventually(lambda: len(asked) == 4, "another try")
            eventually(lambda: task.lock_state("a").taker is None, "a free key")
    finally:
        current_run.reset(mark)


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
    assert sent()[1]["u"] is None


def test_a_store_that_is_away_costs_one_thread_and_no_second_try(make_app: Any) -> None:
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
    assert (header["x"], header["u"], header["off"]) == (both.lock_state("b").key, None, ("unique",))


def test_a_retry_that_switches_off_one_option_leaves_the_other_one_off(
    app: Celery, published: list[dict[str, Any]]
) -> None:
    @app.task(name="both", shared=False, exclusive=Exclusive("url"), unique=Unique("url"))
    def both(url: str) -> None: ...

    app.finalize()
    both.apply_async(("a",), unique=None)
    retry = {"task_id": "me", "retries": 1, "headers": {"exclusive": published[0]["exclusive"]}}
    both.apply_async(("a",), exclusive=None, **retry)
    assert sorted(published[1]["exclusive"]["off"]) == ["exclusive", "unique"]


@pytest.mark.parametrize("window", [{"period": 600}, {"until": "started"}])
def test_a_retry_in_apply_is_not_refused_for_the_sake_of_another_call(
    app: Celery, store: MemoryStore, window: Any
) -> None:
    ran: list[int] = []

    @app.task(name="twice", bind=True, shared=False, max_retries=3, unique=Unique("url", **window))
    def twice(self: Any, url: str) -> str:
        ran.append(self.request.retries)
        if not self.request.retries:
            self.apply_async((url,), task_id="queued meanwhile")
            raise self.retry(countdown=0)
        return "done"

    app.finalize()
    assert twice.apply(("a",)).get() == "done"
    assert ran == [0, 1]
    store.clear()


def test_a_body_that_has_its_unique_key_and_no_lock_is_running(app: Celery, store: MemoryStore) -> None:
    @app.task(name="both", shared=False, exclusive=Exclusive("url"), unique=Unique("url"))
    def both(url: str) -> None: ...

    app.finalize()
    first = both.apply_async(("a",), exclusive=None)
    assert both.lock_state("a").is_queued
    inside(both, first, store, "finished", may_hold=True)
    state = both.lock_state("a")
    assert (state.is_running, state.is_queued) == (True, False)


def test_a_period_that_one_call_gives_is_told_from_a_queue(make_task: Any) -> None:
    task = make_task("url")
    task.apply_async(("a",), unique=Unique("url", period=60))
    state = task.lock_state("a")
    assert (state.is_running, state.is_queued, bool(state.taker)) == (False, False, True)


def test_one_s_own_key_in_a_canvas_from_inside_the_body_is_an_error_too(make_task: Any, sent: Any) -> None:
    task = make_task()
    first = task.delay("a")
    claim = Claim(first.key, f"{first.id}/p", "p", SECOND)
    inside = Run(first.id, unique=SimpleNamespace(claim=claim, until="finished", end=None))  # type: ignore[arg-type]
    mark = current_run.set(inside)
    try:
        for canvas in (chain(task.si("a"), task.si("b")), task.si("a").set(link=task.si("c"))):
            with pytest.raises(DuplicateTask, match="its own unique key"):
                canvas.apply_async()
        group(task.si("a"), task.si("d")).apply_async()  # the other one is sent, and would wait for it
    finally:
        current_run.reset(mark)
    assert [header["dup"] for header in sent()] == [None, first.id, None]


def test_a_retry_is_queued_as_its_call_has_said(make_task: Any, store: MemoryStore) -> None:
    task = make_task(until="started")
    first = task.apply_async(("a",), unique=Unique("url", queued_ttl=500))
    (holder,) = store.inspect(first.key).holders
    values = {"unique": {"queued_ttl": 500}}
    header = CarriedHeader(holder.id.rpartition("/")[2], None, (first.key, "finished"), values=values)
    task.apply_async(("a",), task_id=first.id, retries=1, headers={"exclusive": header.write()})
    (handed,) = store.inspect(first.key).holders
    assert handed.id != holder.id
    assert handed.fence == holder.fence
    assert handed.remaining / SECOND <= 500


def test_an_option_of_a_call_under_another_name_is_refused(make_task: Any) -> None:
    task = make_task()
    with pytest.raises(OptionError, match=r"uniqe=Unique.* is no option of a call: did you mean 'unique'\?"):
        task.apply_async(("a",), uniqe=Unique())
    with pytest.raises(OptionError, match=r"exclusiv=None is no .* did you mean 'exclusive'\?"):
        task.apply_async(("a",), exclusiv=None)


def test_no_option_of_a_call_that_celery_knows_is_taken_for_ours(make_task: Any) -> None:
    task = make_task()
    known = {*signature(Celery.send_task).parameters, *signature(task.app.amqp.as_task_v2).parameters}
    known |= {"queue", "exchange", "routing_key", "priority", "immediate", "mandatory", "delivery_mode"}
    known |= {"declare", "compression", "serializer", "retry", "retry_policy"}
    assert asked(task.app._celery_exclusive, task.name, task, dict.fromkeys(known)).unique == task.unique


@pytest.mark.parametrize(
    ("declared", "given"),
    [
        (Unique("url", until="started", ttl=5), Unique("url")),
        (Unique("url", period=60), Unique("url", ttl=5)),
        (Unique("url", until="started"), Unique("url", period=60)),
        (Exclusive("url", on_conflict="skip", limit=3), Exclusive("url")),
        (Exclusive("url", max_waiting=3), Exclusive("url", on_conflict="reschedule", give_up_after=9)),
    ],
)
def test_what_a_call_gives_holds_instead_of_what_is_declared(app: Celery, declared: Any, given: Any) -> None:
    def load(url: str) -> None: ...

    app.task(name="feeds.load", shared=False, **{declared.attribute: declared})(load)
    app.finalize()
    find = getattr(app._celery_exclusive, declared.attribute)  # type: ignore[attr-defined]
    values = loads(dumps({declared.attribute: given.values}))
    assert find(app.tasks["feeds.load"], values) == given
    assert find(app.tasks["feeds.load"], {}) == declared


def test_two_apps_of_one_process_share_what_is_in_one_store(make_app: Callable[..., Celery]) -> None:
    tasks = [by_function(install(make_app()), Unique()) for _ in range(2)]
    first = tasks[0].delay("a")
    assert tasks[1].delay("a").existing_id == first.id
    tasks[0].app._celery_exclusive.store.clear()


# Without a message --------------------------------------------------------------------------------------


def test_apply_takes_the_key_while_it_runs(app: Celery, store: MemoryStore) -> None:
    seen: list[Any] = []

    @app.task(name="feeds.load", bind=True, shared=False, unique=Unique())
    def load(self: Any, url: str) -> str:
        seen.append(self.lock_state(url))
        seen.append(load.delay(url) if url == "b" else None)
        return url

    result = load.apply(("a",), task_id="me")
    assert (result.get(), result.outcome, result.existing_id) == ("a", "published", None)
    assert (seen[0].taker.task_id, seen[0].is_running) == ("me", True)
    assert load.lock_state("a").taker is None
    with pytest.raises(DuplicateTask, match="its own unique key"):
        load.apply(("b",), throw=True)
    assert load.lock_state("b").taker is None
    assert list(store.scan()) == []


def test_apply_of_what_is_queued_is_skipped_or_raises(make_task: Any) -> None:
    skip, strict = make_task(skip_result="busy"), make_task(name="feeds.strict", on_conflict="raise")
    first = skip.delay("a")
    busy = skip.apply(("a",))
    assert (busy.get(), busy.outcome, busy.existing_id, busy.key) == ("busy", "skipped", first.id, first.key)
    assert skip.apply(("a",), unique=None).get() == "a"
    existing = strict.delay("a")
    with pytest.raises(DuplicateTask) as caught:
        strict.apply(("a",))
    assert caught.value.existing_id == existing.id
    assert skip.lock_state("a").taker.task_id == first.id


def test_apply_until_started_and_for_a_period(make_task: Any) -> None:
    started, seldom = make_task(until="started"), make_task(name="feeds.seldom", period=60)
    assert started.apply(("a",)).get() == "a"
    assert started.lock_state("a").taker is None
    assert seldom.apply(("a",)).get() == "a"
    assert "skipped" in seldom.apply(("a",)).get()


def test_under_always_eager_and_in_a_direct_call_nothing_conflicts(make_task: Any, app: Celery) -> None:
    task = make_task()
    task.delay("a")
    assert task("a") == "a"
    app.conf.task_always_eager = True
    assert task.delay("a").get() == "a"
    assert task.delay("a").outcome == "published"
    assert task.apply_async(("a",), unique=None).get() == "a"
