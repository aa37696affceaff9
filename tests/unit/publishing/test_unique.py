"""What a call of a task with `unique=` does before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from celery import Celery, Task, chain, chord, group, shared_task

from celery_exclusive import Debounce, DuplicateTask, Exclusive, Unique, install
from celery_exclusive import Task as InstallingTask
from celery_exclusive.run import Run, within
from celery_exclusive.stores.memory import MemoryStore

Header = dict[str, Any]


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


@pytest.mark.promise(
    "A unique call is sent once by `delay`, `apply_async`, `send_task` and signatures, of `shared_task`, "
    "class-based tasks and own base classes, in several apps",
    name="all ways to call",
    broke="a task that is made, or registered, is not looked at; keys of one app",
)
@pytest.mark.parametrize("declare", [by_function, by_shared_task, by_class, by_own_base])
def test_a_unique_task_is_sent_once_by_each_way_to_declare_and_call_it(
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
    assert sent()[0]["unique"] == (first.key, "finished")
    assert task.delay("b").outcome == "published"
    store.clear()


def test_a_unique_call_returns_the_type_of_result_that_celery_returns(make_task: Any) -> None:
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
def test_a_duplicate_that_a_canvas_waits_for_is_sent_and_named_a_duplicate(
    app: Celery, make_task: Any, sent: Any, options: dict[str, Any]
) -> None:
    task = make_task()
    first = task.delay("a")
    if "plain" in options.values() or ["plain"] in options.values():
        plain = app.signature("feeds.load", ("z",), immutable=True)
        options = {name: [plain] if name == "chain" else plain for name in options}
    result = task.apply_async(("a",), **options)
    assert (result.outcome, result.existing_id) == ("published", None)
    assert [header.get("duplicate_of") for header in sent()] == [None, first.id]
    assert task.lock_state("a").unique_holder.task_id == first.id


def test_members_of_canvases_are_sent_each(make_task: Any, sent: Any) -> None:
    task = make_task()
    task.delay("a")
    for canvas in (
        group(task.si("a"), task.si("a")),
        chain(task.si("a"), task.si("b")),
        chord([task.si("a"), task.si("a")], task.si("c")),
    ):
        canvas.apply_async()
    assert [bool(header.get("duplicate_of")) for header in sent()] == [False, True, True, True, True, True]


@pytest.mark.proves("results by rpc")
def test_with_results_by_rpc_every_call_is_sent(make_task: Any, app: Celery, sent: Any) -> None:
    app.conf.result_backend = "rpc://"
    task = make_task()
    first = task.delay("a")
    assert task.delay("a").id != first.id
    assert [header.get("duplicate_of") for header in sent()] == [None, first.id]


@pytest.mark.proves("results by rpc")
@pytest.mark.parametrize("call", [{}, {"ignore_result": True}])
def test_a_duplicate_without_a_wanted_result_is_not_sent_with_results_by_rpc(
    make_task: Any, app: Celery, sent: Any, call: dict[str, Any]
) -> None:
    app.conf.result_backend = "rpc://"
    task = make_task("url", on_conflict="skip" if call else "raise")
    first = task.apply_async(("a",), **call)
    with nullcontext() if call else pytest.raises(DuplicateTask):
        assert task.apply_async(("a",), **call).existing_id == first.id
    assert len(sent()) == 1


def test_a_conflict_may_be_an_error(make_task: Any, sent: Any) -> None:
    task = make_task("url", on_conflict="raise")
    first = task.delay("a")
    with pytest.raises(
        DuplicateTask,
        match=f"task feeds.load was not published: unique key {first.key} is held by {first.id}",
    ) as caught:
        task.delay("a", n=3)
    assert (caught.value.existing_id, caught.value.key) == (first.id, first.key)
    assert len(sent()) == 1


@pytest.mark.promise(
    '`on_conflict="raise"` raises at a caller that gives a task id or links, too, and sends nothing. In a '
    "canvas the step is sent, and fails with `DuplicateTask` on its worker, with each kind of publisher",
    name="duplicates that raise",
    broke="red before: it was sent, and skipped on its worker with SUCCESS, and its chain went on",
)
@pytest.mark.parametrize("results", ["cache+memory://", "rpc://"])
def test_a_duplicate_that_raises_is_sent_only_for_a_canvas(
    app: Celery, make_task: Any, sent: Any, results: str
) -> None:
    app.conf.result_backend = results
    task, step = make_task("url", on_conflict="raise"), app.signature("feeds.load", ("z",), immutable=True)
    first = task.apply_async(("a",), link=step)
    given = ({"task_id": "by hand"}, {"task_id": first.id}, {"link": step}, {"link_error": step})
    for options in given:
        with pytest.raises(DuplicateTask, match=f"is held by {first.id}"):
            task.apply_async(("a",), **options)
    assert len(sent()) == 1
    for options in ({"group_id": "g"}, {"chord": step, "link": step}, {"chain": [step], "task_id": "step"}):
        assert task.apply_async(("a",), **options).outcome == "published"
    assert [header.get("duplicate_of") for header in sent()[1:]] == [first.id] * 3


SKIPS: list[dict[str, Any]] = [
    {"unique": Unique(until="started")},
    {"exclusive": Exclusive(on_conflict="skip")},
    {"exclusive": Exclusive(on_conflict="latest")},
    {"exclusive": Exclusive(give_up_after=1, on_give_up="skip")},
    {"exclusive": Exclusive(max_waiting=1, on_full="skip"), "unique": Unique(on_conflict="raise")},
]
NO_SKIPS: list[dict[str, Any]] = [
    {"unique": Debounce(wait=1, max_wait=1)},
    {"unique": Unique()},
    {"unique": Unique(on_conflict="raise"), "exclusive": Exclusive()},
    {"exclusive": Exclusive(on_conflict="raise")},
    {"exclusive": Exclusive(on_conflict="skip", skip_result=None)},
    {"unique": Unique(), "retries": 1},
    {"unique": Unique(), "group_id": "g"},
]


@pytest.mark.proves("skipped steps")
@pytest.mark.parametrize(
    ("options", "warnings"), [*((it, 1) for it in SKIPS), *((it, 0) for it in NO_SKIPS)], ids=str
)
@pytest.mark.parametrize("following", ["chain", "chord", "link"])
def test_a_step_that_can_neither_run_nor_wait_is_warned_of_once_if_another_step_gets_its_result(
    app: Celery, make_task: Any, caplog: Any, options: dict[str, Any], warnings: int, following: str
) -> None:
    task, step = make_task(), app.signature("feeds.load", ("z",), immutable=True)
    options = {following: [step] if following == "chain" else step, "unique": None, **options}
    if "group_id" in options:
        del options[following]
    for url in "ab":
        task.apply_async((url,), **options)
    assert caplog.text.count("feeds.load is a step of a canvas (") == warnings


@pytest.mark.proves("duplicates that raise")
def test_the_retry_of_a_duplicate_that_raises_is_sent(make_task: Any, sent: Any) -> None:
    task = make_task("url", on_conflict="raise")
    task.delay("a")
    assert task.apply_async(("a",), task_id="an old message", retries=1).outcome == "published"
    assert len(sent()) == 2


@pytest.mark.proves("DuplicateTask")
def test_duplicate_task_is_among_the_throws_of_a_task(app: Celery) -> None:
    @app.task(name="plain", shared=False, unique=Unique(), throws=(KeyError,))
    def plain() -> None: ...

    app.finalize()
    assert plain.throws == (KeyError, DuplicateTask)


@pytest.mark.proves("DuplicateTask")
@pytest.mark.parametrize(
    ("throws", "expected"), [(KeyError, (KeyError,)), ([KeyError], (KeyError,)), (None, ())]
)
def test_throws_of_a_task_may_be_one_class_or_none(
    app: Celery, throws: Any, expected: tuple[Any, ...]
) -> None:
    @app.task(name="plain", shared=False, unique=Unique(), throws=throws)
    def plain() -> None: ...

    app.finalize()
    assert plain.throws == (*expected, DuplicateTask)


@pytest.mark.proves("DuplicateTask")
def test_beat_is_quiet_about_a_conflict(make_task: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "celery_exclusive")
    task = make_task(on_conflict="raise")
    first = task.delay("a")
    result = task.apply_async(("a",), headers={"celery_beat_task": True})
    assert result.outcome == "skipped"
    said = {
        record.getMessage(): record.levelname for record in caplog.records if task.name in record.getMessage()
    }
    assert said == {
        f"Task feeds.load was not published: unique key {first.key} is held by {first.id}": "INFO"
    }


def test_a_call_with_the_task_id_of_the_holder_is_not_sent(make_task: Any, sent: Any) -> None:
    task = make_task()
    assert task.apply_async(("a",), task_id="by hand").outcome == "published"
    again = task.apply_async(("a",), task_id="by hand")
    assert (again.outcome, again.id, again.existing_id) == ("skipped", "by hand", "by hand")
    assert len(sent()) == 1


def test_a_member_of_a_canvas_with_the_task_id_of_the_holder_is_sent_as_a_duplicate(
    make_task: Any, sent: Any
) -> None:
    task = make_task()
    task.apply_async(("a",), task_id="by hand")
    chain(task.si("a").set(task_id="by hand"), task.si("b")).apply_async()
    assert [header.get("duplicate_of") for header in sent()] == [None, "by hand"]


def test_a_body_that_publishes_its_own_task_id_continues_its_run(make_task: Any, sent: Any) -> None:
    task = make_task()
    task.apply_async(("a",), task_id="by hand")
    with within(Run("by hand")):
        task.apply_async(("a",), task_id="by hand")
        task.delay("b")
    headers = [(header.get("published_by"), header.get("duplicate_of")) for header in sent()]
    assert headers == [(None, None), ("by hand", None), (None, None)]


def test_a_call_whose_arguments_do_not_fit_is_left_to_the_worker(
    make_task: Any, published: list[dict[str, Any]], app: Celery
) -> None:
    make_task()
    app.send_task("feeds.load", ["a", 1, 2, 3])
    assert "exclusive" not in published[0]


@pytest.mark.proves("all ways to call")
def test_two_apps_of_one_process_share_what_is_in_one_store(make_app: Callable[..., Celery]) -> None:
    tasks = [by_function(install(make_app()), Unique()) for _ in range(2)]
    first = tasks[0].delay("a")
    assert tasks[1].delay("a").existing_id == first.id
    tasks[0].app._celery_exclusive.store.clear()


@pytest.mark.promise(
    "`send_task` works in a process where nothing has made the declared tasks yet, and with all arguments "
    "that Celery's own accepts by position",
    name="send_task",
    broke="the app is not finalized; three positions only",
)
def test_send_task_knows_what_is_declared_before_it_is_made_a_task(make_app: Any, sent: Any) -> None:
    app = install(make_app())

    @app.task(name="feeds.load", shared=False, unique=Unique())
    def load(n: int) -> None: ...

    assert not app.finalized
    first = app.send_task("feeds.load", (1,))
    assert app.send_task("feeds.load", (1,)).existing_id == first.id
    assert len(sent()) == 1
    app._celery_exclusive.store.clear()


@pytest.mark.proves("send_task")
def test_send_task_takes_by_its_place_what_celerys_own_takes(make_task: Any, sent: Any) -> None:
    app = make_task().app
    with app.producer_pool.acquire() as producer:
        result = app.send_task("feeds.load", ("a",), {}, None, None, "my id", producer)
    assert (result.id, result.outcome) == ("my id", "published")
    assert len(sent()) == 1
