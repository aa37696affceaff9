"""The options of the packages' task classes: what becomes of them, what is refused, what is told."""

from __future__ import annotations

import copy
import linecache
import pickle
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, ClassVar
from uuid import UUID

import pytest
from celery import Celery, Task, shared_task

from celery_exclusive import DuplicateTask, Exclusive, OptionError, Unique
from celery_exclusive.compat import CompatWarning
from celery_exclusive.compat.heimdall import AlreadyQueuedError, HeimdallTask
from celery_exclusive.compat.once import AlreadyQueued, QueueOnce
from celery_exclusive.compat.singleton import DuplicateTaskError, Singleton, clear_locks

NAME = "feeds.load"


@pytest.fixture
def declare(app: Celery) -> Iterator[Callable[..., Any]]:
    """Declares `load(url, n=0)` with a base and options."""

    def declare(base: Any, **options: Any) -> Any:
        @app.task(name=NAME, base=base, shared=False, **options)
        def load(url: str, n: int = 0) -> str:
            return url

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CompatWarning)
            app.finalize()
        return app.tasks[NAME]

    yield declare
    app._celery_exclusive.store.clear()  # type: ignore[attr-defined]


@pytest.mark.promise(
    "Options of the packages become ours; a declaration of ours is kept; settings of the packages are used",
    name="old options",
    broke="ours overwritten; options of the base",
)
@pytest.mark.parametrize(
    ("base", "old", "new"),
    [
        (QueueOnce, {"once": {"keys": []}}, Unique(key=NAME, on_conflict="raise")),
        (
            QueueOnce,
            {"once": {"keys": [], "timeout": 60, "unlock_before_run": True}},
            Unique(key=NAME, on_conflict="raise", until="started", queued_ttl=60),
        ),
        (Singleton, {}, Unique()),
        (Singleton, {"unique_on": "url", "lock_expiry": 60}, Unique("url", queued_ttl=60)),
        (Singleton, {"unique_on": ["url", "n"]}, Unique(("url", "n"))),
        (Singleton, {"unique_on": []}, Unique(key=NAME)),
        (Singleton, {"unique_on": ""}, Unique(key=NAME)),
        (Singleton, {"raise_on_duplicate": True}, Unique(on_conflict="raise")),
        (HeimdallTask, {}, None),
        (HeimdallTask, {"heimdall": {"unique": True}}, Unique()),
        (HeimdallTask, {"heimdall": {"unique": True, "key": "a{b}"}}, Unique(key="a{{b}}")),
        (
            HeimdallTask,
            {"heimdall": {"unique": True, "unique_raises": True, "unique_timeout": 60}},
            Unique(on_conflict="raise", queued_ttl=60),
        ),
        (HeimdallTask, {"heimdall": {"unique": True, "unique_wait_for_expiry": True}}, Unique(period=3600)),
    ],
)
def test_old_options_become_one_of_ours(declare: Callable[..., Any], base: Any, old: Any, new: Any) -> None:
    task = declare(base, **old)
    assert getattr(task, "unique", None) == new


@pytest.mark.proves("old options")
@pytest.mark.parametrize("base", [QueueOnce, Singleton])
def test_settings_of_the_packages_are_used(app: Celery, declare: Callable[..., Any], base: Any) -> None:
    app.conf.update(
        ONCE={"settings": {"default_timeout": 60}},
        singleton_lock_expiry=60,
        singleton_raise_on_duplicate=True,
    )
    task = declare(base)
    assert task.new_spelling(task.unique) == Unique(on_conflict="raise", queued_ttl=60)


@pytest.mark.proves("old options")
@pytest.mark.parametrize("base", [QueueOnce, Singleton])
@pytest.mark.parametrize("declared", [None, "an option"])
def test_a_declaration_of_ours_is_kept(declare: Callable[..., Any], base: Any, declared: Any) -> None:
    exclusive, unique = declared and Exclusive("n"), declared and Unique("n")
    task = declare(base, exclusive=exclusive, unique=unique)
    assert (task.exclusive, task.unique) == (exclusive, unique)


@pytest.mark.proves("old options")
def test_a_subclass_of_a_task_class_has_options_of_its_own(app: Celery) -> None:
    class One(Singleton):
        name, lock_expiry = "feeds.one", 1

        def run(self) -> None: ...

    class Two(One):
        name, lock_expiry = "feeds.two", 2

    with pytest.warns(CompatWarning) as warned:
        ttls = [app.register_task(task()).unique.queued_ttl for task in (One, Two)]
    assert ttls == [1, 2]
    assert {line_of(warning) for warning in warned} == {"def run(self) -> None: ..."}


@pytest.mark.promise(
    "A misspelt old option is refused each time; a change is reported once, at the line of the user's task "
    "or call, with the new spelling",
    name="misspelt old options",
    broke="its second use succeeds; told at each binding",
)
@pytest.mark.parametrize(
    ("base", "old", "text"),
    [
        (QueueOnce, {"once": {"gracefull": True}}, "no option 'gracefull'.*did you mean 'graceful'"),
        (QueueOnce, {"once": {"keys": ["uri"]}}, "no parameter 'uri'.*did you mean 'url'"),
        (Singleton, {"lock_expirey": 60}, "no option 'lock_expirey'.*did you mean 'lock_expiry'"),
        (Singleton, {"unique_on": ["uri"]}, "no parameter 'uri'.*did you mean 'url'"),
        (HeimdallTask, {"heimdall": {"uniqe": True}}, "no option 'uniqe'.*did you mean 'unique'"),
        (HeimdallTask, {"heimdall": {"times": 5, "per": 60}}, "no rate limiter"),
    ],
)
def test_an_option_that_is_misspelt_or_has_no_counterpart_is_refused_each_time(
    app: Celery, base: Any, old: Any, text: str
) -> None:
    @app.task(name=NAME, base=base, shared=False, **old)
    def load(url: str) -> None: ...

    for _ in range(2):
        with pytest.raises(OptionError, match=f"task '?{NAME}'?.*{text}"):
            load.delay("https://a")


@pytest.mark.promise("An overridden method that nothing calls any more is refused", broke="not looked for")
@pytest.mark.parametrize(
    ("base", "method", "text"),
    [
        (QueueOnce, "get_key", r"write unique=Unique\(key="),
        (QueueOnce, "once_backend", "exclusive_store"),
        (Singleton, "generate_lock", r"write unique=Unique\(key="),
        (Singleton, "on_duplicate", "outcome"),
        (HeimdallTask, "setup_redis", "exclusive_store"),
    ],
)
def test_a_method_that_nothing_calls_any_more_is_refused(
    app: Celery, base: Any, method: str, text: str
) -> None:
    own = type("Own", (base,), {"abstract": True, method: lambda self, *args: "mine"})

    @app.task(name=NAME, base=own, shared=False)
    def load(url: str) -> None: ...

    with pytest.raises(OptionError, match=f"task {NAME}: {method} is of no use.*{text}"):
        app.finalize()


@pytest.mark.proves("misspelt old options")
@pytest.mark.parametrize(
    ("base", "old", "texts"),
    [
        (QueueOnce, {"once": {"timeout": 60}}, ["compat.once", "timeout", "unique=Unique(", "queued_ttl=60"]),
        (QueueOnce, {"once": {"graceful": True}}, ["outcome 'skipped'", "unique=Unique()"]),
        (QueueOnce, {"once": {"keys": ["url"]}}, ["unique=Unique('url', on_conflict='raise')"]),
        (Singleton, {"lock_expiry": 60}, ["compat.singleton", "lock_expiry", "queued_ttl=60"]),
        (
            HeimdallTask,
            {"heimdall": {"unique": True}},
            ["compat.heimdall", "unique_timeout", "unique=Unique("],
        ),
        (
            HeimdallTask,
            {"heimdall": {"unique": True, "key": lambda _, kwargs: str(kwargs)}},
            ["unique=Unique(key=lambda url: ...)"],
        ),
    ],
)
def test_a_changed_option_is_warned_of_once_with_the_new_spelling(
    app: Celery, base: Any, old: Any, texts: list[str]
) -> None:
    @app.task(name=NAME, base=base, shared=False, **old)
    def load(url: str) -> None: ...

    with pytest.warns(CompatWarning) as raised:
        app.finalize()
    (warning,) = raised
    assert NAME in str(warning.message)
    assert not [part for part in texts if part not in str(warning.message)]
    assert line_of(warning) == "@app.task(name=NAME, base=base, shared=False, **old)"


def line_of(warning: warnings.WarningMessage) -> str:
    """Return the line of code that it names."""
    return linecache.getline(warning.filename, warning.lineno).strip()


def test_a_backend_of_celery_once_is_told(app: Celery) -> None:
    app.conf.ONCE = {
        "backend": "celery_once.backends.Redis",
        "settings": {"url": "redis://", "default_timeout": 9},
    }

    @app.task(name=NAME, base=QueueOnce, shared=False)
    def load(url: str) -> None: ...

    with pytest.warns(CompatWarning, match="backend of the setting ONCE is not used, write exclusive_store="):
        app.finalize()


@pytest.mark.promise(
    "Errors, options of calls and keys of the packages are understood",
    name="calls of the packages",
    broke="always skipped; arguments by place only; released by force",
)
@pytest.mark.proves("errors of the packages")
@pytest.mark.parametrize(
    ("base", "old", "error"),
    [
        (QueueOnce, {}, AlreadyQueued),
        (Singleton, {"raise_on_duplicate": True}, DuplicateTaskError),
        (HeimdallTask, {"heimdall": {"unique": True, "unique_raises": True}}, AlreadyQueuedError),
    ],
)
def test_a_duplicate_raises_the_error_of_its_package(
    app: Celery, declare: Callable[..., Any], base: Any, old: Any, error: Any
) -> None:
    task = declare(base, queued_for=None, **old)
    first = task.delay("https://a")
    with pytest.raises(error) as raised:
        task.delay(url="https://a")
    names = {AlreadyQueued: "countdown", DuplicateTaskError: "remaining", AlreadyQueuedError: "expires_in"}
    pickled = pickle.loads(pickle.dumps(raised.value))
    for duplicate in (raised.value, pickled, _as_result(app, raised.value)):
        assert type(duplicate) is error
        assert (duplicate.existing_id, duplicate.key) == (first.id, first.key)
        assert f"unique key {first.key} is held by {first.id}" in str(duplicate)
        assert 0 < duplicate.remaining == getattr(duplicate, names[error]) <= 86400
    assert task.delay("https://b").outcome == "published"


@pytest.mark.promise(
    "A duplicate of another task, which an eager body publishes, is not reported as one of the task around "
    "it",
    broke="keys not compared",
)
def test_a_duplicate_that_an_eager_body_publishes_stays_a_duplicate_of_the_other_task(
    app: Celery,
) -> None:
    @app.task(name="other", shared=False, unique=Unique(on_conflict="raise"))
    def other(url: str) -> None: ...

    @app.task(name="member", shared=False, base=Singleton, raise_on_duplicate=True)
    def member(url: str) -> None: ...

    @app.task(name=NAME, shared=False, base=QueueOnce)
    def load(url: str, inner: str) -> None:
        app.conf.task_always_eager = False
        app.tasks[inner].delay(url)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompatWarning)
        app.finalize()
    for inner, error in (("other", DuplicateTask), ("member", DuplicateTaskError)):
        first = app.tasks[inner].delay("https://a")
        app.conf.update(task_always_eager=True, task_eager_propagates=True)
        with pytest.raises(DuplicateTask) as raised:
            app.tasks[NAME].delay("https://a", inner)
        assert type(raised.value) is error
        assert (raised.value.existing_id, raised.value.key) == (first.id, first.key)
    app._celery_exclusive.store.clear()  # type: ignore[attr-defined]


@pytest.mark.proves("calls of the packages")
@pytest.mark.parametrize(("base", "error"), [(QueueOnce, AlreadyQueued), (Singleton, None)])
def test_a_duplicate_that_others_wait_for_is_sent_unless_its_caller_gets_an_error(
    declare: Callable[..., Any], base: Any, error: Any
) -> None:
    task = declare(base)
    task.delay("https://a")
    for awaited in ({"task_id": "of its own"}, {"link": task.si("https://b")}):
        with pytest.raises(error) if error else nullcontext():
            assert task.apply_async(("https://a",), **awaited).outcome == "published"
    assert task.apply_async(("https://a",), group_id="a member").outcome == "published"


def _as_result(app: Celery, error: Exception) -> Any:
    """It, from a result backend."""
    return app.backend.exception_to_python(app.backend.prepare_exception(error, "json"))


@pytest.mark.promise(
    "Errors of the packages are made as the packages make them, and survive pickle and a result backend",
    name="errors of the packages",
    broke="the arguments of our own errors; `args` of the base: from a result the key is lost",
)
@pytest.mark.parametrize(
    ("error", "text", "attributes"),
    [
        (AlreadyQueued(30), "Expires in 30 seconds", {"countdown": 30, "holder": "", "remaining": 30}),
        (AlreadyQueued(countdown=30), "Expires in 30 seconds", {"countdown": 30, "key": ""}),
        (AlreadyQueued(30), "Expires in 30 seconds", {"message": "Expires in 30 seconds"}),
        (DuplicateTaskError("m", task_id="x"), "m", {"task_id": "x", "existing_id": "x", "remaining": 0}),
        (DuplicateTaskError("m", "x"), "m", {"task_id": "x"}),
        (AlreadyQueuedError(), "", {"likely_culprit": None, "expires_in": None, "remaining": 0}),
        (
            AlreadyQueuedError(likely_culprit="x", expires_in=30),
            "",
            {"likely_culprit": "x", "expires_in": 30, "holder": "x"},
        ),
    ],
    ids=repr,
)
def test_an_error_is_made_as_its_package_makes_it(
    app: Celery, error: Exception, text: str, attributes: dict[str, Any]
) -> None:
    for made in (error, pickle.loads(pickle.dumps(error)), copy.copy(error), _as_result(app, error)):
        assert type(made) is type(error)
        assert text in str(made)
        assert {name: getattr(made, name) for name in attributes} == attributes


@pytest.mark.proves("calls of the packages")
@pytest.mark.promise(
    "To `compat.once.QueueOnce` arguments with the same text are the same, as to celery-once, and none is "
    "too large",
    name="texts of arguments",
    broke="red before: two keys; an error of the call",
)
def test_arguments_with_the_same_text_are_the_same_to_celery_once(declare: Callable[..., Any]) -> None:
    id = UUID("2d5a4a35-3d2a-4a5c-9d6e-6a1f0e8e4b11")
    large: dict[str, Any] = {"rows": list(range(6_000)), "text": "a" * 600_000}
    task = declare(QueueOnce, once={"keys": ["url"], "graceful": True})
    for one, same in [(7, "7"), (id, str(id)), ((1, 2), [1, 2]), (large, {**large}), ("a" * 600_000,) * 2]:
        first = task.delay(one)
        assert (first.outcome, task.delay(same).existing_id) == ("published", first.id)
    assert task.delay([7]).outcome == task.delay(["7"]).outcome == "published"
    with pytest.raises(OptionError, match=f"task '{NAME}': an argument is of type object, which has no"):
        task.delay(object())


@pytest.mark.proves("texts of arguments")
def test_all_arguments_of_a_call_count_if_celery_once_has_no_keys(declare: Callable[..., Any]) -> None:
    task = declare(QueueOnce, once={"graceful": True})
    first = task.delay("https://a", n=7)
    assert task.delay(url="https://a", n="7").existing_id == first.id
    assert task.delay("https://a", n=8).outcome == "published"


def test_a_call_may_have_options_of_celery_once(declare: Callable[..., Any]) -> None:
    task = declare(QueueOnce)
    first = task.apply_async(("https://a",), once={"timeout": 60})
    assert 0 < task.lock_state("https://a").unique_holder.remaining <= 60
    assert task.apply_async(("https://a",), once={"graceful": True}).id == first.id
    with pytest.raises(OptionError, match="no option 'keys'"):
        task.apply_async(("https://a",), once={"keys": []})


def test_an_option_of_a_call_to_a_task_that_is_not_unique_does_nothing(declare: Callable[..., Any]) -> None:
    task = declare(QueueOnce, unique=None)
    calls = [task.apply_async(("https://a",), once={"graceful": True}) for _ in range(2)]
    assert calls[0].id != calls[1].id


@pytest.mark.proves("calls of the packages")
def test_a_key_of_celery_heimdall_gets_the_arguments_by_place_and_by_name(
    declare: Callable[..., Any],
) -> None:
    key = {"key": lambda args, kwargs: f"{args[0]} {kwargs['n']}", "unique": True}
    task = declare(HeimdallTask, heimdall=key)
    assert task.delay("https://a", n=7).key == task.delay(url="https://a", n=7).key == "u=https://a 7"


@pytest.mark.proves("calls of the packages")
def test_a_key_of_celery_singleton_is_released_by_the_arguments_of_a_call(
    declare: Callable[..., Any],
) -> None:
    task = declare(Singleton)
    first = task.delay("https://a", n=1)
    task.release_lock(["https://a"], {"n": 1})
    assert task.delay("https://a", n=1).id != first.id


@pytest.mark.proves("release queued keys")
@pytest.mark.parametrize("unique_on", [None, []], ids=["all arguments", "none"])
def test_clear_locks_releases_the_keys_of_what_has_not_begun(
    app: Celery, declare: Callable[..., Any], unique_on: list[str] | None
) -> None:
    first = declare(Singleton, unique_on=unique_on).delay("https://a")
    with pytest.warns(CompatWarning, match=r"clear_locks\(.*has released 1 key.*celery purge") as warned:
        clear_locks(app)
    assert line_of(warned[0]) == "clear_locks(app)"
    assert app.tasks[NAME].delay("https://a").id != first.id


@pytest.mark.promise(
    "A leftover option that no base reads is reported, at the line of its task",
    name="leftover options",
    broke="told of what is read; the line of this library named",
)
@pytest.mark.parametrize(
    ("option", "value"),
    [("once", {}), ("unique_on", "url"), ("lock_expiry", 7), ("heimdall", {})],
)
@pytest.mark.parametrize("ours", [{}, {"unique": Unique()}])
def test_an_option_that_nothing_reads_is_told(app: Celery, option: str, value: Any, ours: Any) -> None:
    @shared_task(name=NAME, **{option: value}, **ours)
    def load(url: str) -> None: ...

    told = f"task {NAME}: {option}=.* does nothing.*celery_exclusive.compat"
    with pytest.warns(UserWarning, match=told) as warned:
        app.finalize()
    assert {warning.filename for warning in warned} == {__file__}


@pytest.mark.proves("leftover options")
def test_an_option_that_a_base_reads_is_not_told(app: Celery) -> None:
    class Reader(Task):
        abstract = True
        once: ClassVar[Any] = {}

    @app.task(name=NAME, base=Reader, once={"graceful": True}, shared=False)
    def load(url: str) -> None: ...

    app.finalize()
    assert app.tasks[NAME]


def test_an_attribute_that_only_has_the_name_of_an_old_option_is_not_told(app: Celery) -> None:
    @app.task(name=NAME, once=True, heimdall="Asgard", shared=False)
    def load(url: str) -> None: ...

    app.finalize()
    assert app.tasks[NAME]
