"""Mistakes that nobody would notice, or whose error would not help: each gets one line that names the fix."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from functools import wraps
from typing import Any

import pytest
from celery import Celery, Task

import celery_exclusive
from celery_exclusive import Conflict, Exclusive, LockHeld, OptionError, Unique, lock


async def awaited(url: str) -> str:
    return url


def looped_over(url: str) -> Iterator[str]:
    yield url


async def both(url: str) -> AsyncIterator[str]:
    yield url


def returned(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a decorator makes of such a function, so that its kind is not seen."""

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that forgets `functools.wraps`."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def load(url: str, options: Any = None) -> str:
    return url


def declare(app: Celery, function: Callable[..., Any] = load, **options: Any) -> Any:
    task = app.task(name="feeds.load", shared=False, **options)(function)
    app.finalize()
    return app.tasks[task.name]


never_run = pytest.mark.parametrize("function", [awaited, looped_over, both])


@pytest.mark.promise(
    "Mistakes that pass unnoticed, or whose error would not help, get one line with the fix: a function "
    'whose body Celery never runs (`async def`, a generator), `key="url"` without braces, a wrapper that '
    "hides the parameters, `lock_state((1,))`, an option or a `lock()` as a decorator, `lock_state` of a "
    "task without options. A call of a task with `exclusive=` alone has an `outcome`, too",
    name="mistakes",
    broke="red before",
)
@never_run
@pytest.mark.parametrize("options", [{"exclusive": Exclusive()}, {"unique": Unique()}], ids=str)
def test_a_function_whose_body_celery_never_runs_is_refused(
    app: Celery, function: Callable[..., Any], options: dict[str, Any]
) -> None:
    with pytest.raises(OptionError, match=r"task feeds\.load: .* write a plain function that runs it"):
        declare(app, function, **options)


@pytest.mark.proves("mistakes")
@never_run
def test_a_task_does_not_succeed_with_a_body_that_has_not_run(
    app: Celery, function: Callable[..., Any]
) -> None:
    result = declare(app, returned(function), exclusive=Exclusive()).apply(("https://a",))
    assert result.state == "FAILURE"
    assert isinstance(result.result, OptionError)
    assert "Celery never runs the body" in str(result.result)


@pytest.mark.proves("mistakes")
@pytest.mark.parametrize("errors", [(LockHeld,), [OSError, Conflict]], ids=str)
def test_an_automatic_retry_of_the_conflict_of_a_task_is_refused(app: Celery, errors: Any) -> None:
    option = Exclusive(on_conflict="raise")
    with pytest.raises(OptionError, match=r"feeds\.load: autoretry_for .* give it on_conflict='reschedule'"):
        declare(app, exclusive=option, autoretry_for=errors)


class _Retrying(Task):
    abstract, autoretry_for = True, (LockHeld,)


class _Raising(Task):
    abstract, exclusive = True, Exclusive(on_conflict="raise")


@pytest.mark.proves("mistakes")
@pytest.mark.parametrize(
    ("options", "annotation"),
    [
        ({"base": _Retrying, "exclusive": _Raising.exclusive}, {}),
        ({"base": _Raising, "autoretry_for": _Retrying.autoretry_for}, {}),
        ({"base": _Retrying}, {"exclusive": _Raising.exclusive}),
        ({"base": _Raising}, {"autoretry_for": _Retrying.autoretry_for}),
    ],
    ids=["by its base", "an option of its base", "an option by annotation", "by annotation"],
)
def test_an_automatic_retry_is_refused_wherever_it_is_declared(
    app: Celery, options: dict[str, Any], annotation: dict[str, Any]
) -> None:
    app.conf.task_annotations = {"feeds.load": annotation}
    with pytest.raises(OptionError, match=r"feeds\.load: autoretry_for"):
        declare(app, **options)


@pytest.mark.proves("mistakes")
def test_an_automatic_retry_of_a_task_that_is_written_as_a_class_is_refused(app: Celery) -> None:
    class Load(_Retrying, _Raising):
        name, abstract = "feeds.load", False

        def run(self, url: str) -> None: ...

    with pytest.raises(OptionError, match=r"feeds\.load: autoretry_for"):
        app.register_task(Load())


@pytest.mark.parametrize(
    ("option", "errors"),
    [(Exclusive(), (LockHeld,)), (Exclusive(on_conflict="raise"), (Exception,))],
    ids=str,
)
def test_an_automatic_retry_of_errors_of_a_body_is_accepted(app: Celery, option: Any, errors: Any) -> None:
    assert declare(app, exclusive=option, autoretry_for=errors).autoretry_for == errors


def test_a_base_class_may_run_what_the_function_returns(app: Celery) -> None:
    class Awaiting(Task):
        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return asyncio.run(super().__call__(*args, **kwargs))

    assert declare(app, awaited, base=Awaiting, exclusive=Exclusive()).apply(("https://a",)).get() == (
        "https://a"
    )


@pytest.mark.promise(
    "A parameter of an option beside it, and a misspelt option, are refused at a decorated task; other "
    "attributes are the user's",
    name="options beside the option",
    broke="red before: accepted in silence",
)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"exclusive": Exclusive(), "on_conflict": "skip"},
            r"write exclusive=Exclusive\(on_conflict=\.\.\.\)",
        ),
        ({"exclusive": Exclusive(), "limit": 4}, r"limit=4 .* write exclusive=Exclusive\(limit="),
        ({"unique": Unique(), "until": "started"}, r"write unique=Unique\(until="),
        ({"uniqe": True}, "did you mean 'unique='"),
        ({"exclusiv": "url"}, "did you mean 'exclusive='"),
    ],
    ids=str,
)
def test_an_argument_of_a_task_s_decorator_that_has_no_effect_is_refused(
    app: Celery, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        declare(app, **options)


def test_a_task_has_the_attributes_that_its_base_reads(app: Celery) -> None:
    class Cached(Task):
        abstract, ttl = True, 60

    assert declare(app, base=Cached, exclusive=Exclusive(), ttl=300).ttl == 300


@pytest.mark.proves("options beside the option")
def test_a_task_has_whatever_other_attributes_its_owner_likes(app: Celery) -> None:
    class Load(Task):
        name, limit, key, exclusive = "feeds.load all", 3, "mine", Exclusive()

        def run(self, url: str) -> None: ...

    app.register_task(Load())
    assert declare(app, on_conflict="of another library", owner="billing", is_unique=True, max_retries=2)


@pytest.mark.proves("mistakes")
@pytest.mark.parametrize("key", ["url", "options.name"])
@pytest.mark.parametrize("kind", [Exclusive, Unique])
def test_a_key_that_is_the_name_of_a_parameter_is_refused(app: Celery, kind: Any, key: str) -> None:
    with pytest.raises(OptionError, match=rf"key='{key}'.*write key='\{{{key}\}}' for its value"):
        declare(app, **{kind.attribute: kind(key=key)})


@pytest.mark.parametrize("key", ["feeds", "feed:url", "urls", "url of {url}"])
def test_a_key_that_only_contains_such_a_name_is_accepted(app: Celery, key: str) -> None:
    assert declare(app, exclusive=Exclusive(key=key)).lock_state("a").key


@pytest.mark.proves("mistakes")
@pytest.mark.parametrize(
    "option",
    [Unique(), Unique("url"), Exclusive("*"), Exclusive("url"), Exclusive(key="feed:{url}")],
    ids=str,
)
def test_a_wrapper_that_hides_the_parameters_is_warned_of(app: Celery, option: Any) -> None:
    with pytest.warns(UserWarning, match=r"task 'feeds\.load'.*give its wrapper @functools\.wraps") as found:
        declare(app, unwrapped(load), **{option.attribute: option})
    assert [warning.filename for warning in found] == [__file__]


@pytest.mark.parametrize(
    "option", [Exclusive(), Exclusive(key="all feeds"), Unique(key=lambda *args, **kwargs: "feed")], ids=str
)
def test_a_wrapper_is_not_warned_of_where_no_parameter_matters(app: Celery, option: Any) -> None:
    with warnings.catch_warnings(record=True) as found:
        declare(app, unwrapped(load), **{option.attribute: option})
    assert not found


@pytest.mark.proves("mistakes")
@pytest.mark.parametrize("verb", ["lock_state", "release_lock", "restart"])
@pytest.mark.parametrize("arguments", [(("https://a",),), (("https://a",), {"options": 1}), ((),)], ids=str)
def test_arguments_that_are_written_as_for_apply_async_are_refused(
    app: Celery, verb: str, arguments: tuple[Any, ...]
) -> None:
    task = declare(app, exclusive=Exclusive("url"))
    with pytest.raises(TypeError, match=rf"task feeds\.load: {verb}\(\) takes .* not {verb}\(\(1,\)\)"):
        getattr(task, verb)(*arguments)


def test_a_tuple_among_other_arguments_is_an_argument(app: Celery) -> None:
    task = declare(app, exclusive=Exclusive("*"))
    assert task.lock_state(("a", "b"), "c").key == task.lock_state(["a", "b"], "c").key


@pytest.mark.proves("mistakes")
@pytest.mark.parametrize("option", [Exclusive("url"), Unique("url")], ids=str)
def test_an_option_is_no_decorator(option: Any) -> None:
    name = type(option).__name__
    with pytest.raises(OptionError, match=rf"{name}\(\): .*@app\.task\({option.attribute}={name}\('url'\)\)"):
        option(load)


@pytest.mark.proves("mistakes")
def test_a_lock_is_no_decorator() -> None:
    with pytest.raises(OptionError, match=r"lock\('repo:17'\): it is no decorator\. .*Exclusive\(key="):
        lock("repo:17")(load)  # type: ignore[arg-type]


@pytest.mark.proves("mistakes")
@pytest.mark.parametrize("kind", [Exclusive, Unique])
def test_an_option_without_parentheses_is_no_decorator_either(kind: Any) -> None:
    with pytest.raises(
        OptionError, match=rf"{kind.__name__}\(\): by= is a function\. .*@app\.task\({kind.attribute}="
    ):
        kind(load)


@pytest.mark.proves("mistakes")
@pytest.mark.parametrize("base", [Task, celery_exclusive.Task], ids=["of Celery", "ours"])
@pytest.mark.parametrize("name", ["lock_state", "release_lock", "restart"])
def test_a_task_without_options_says_why_it_has_no_lock(app: Celery, name: str, base: Any) -> None:
    task = declare(app, base=base)
    with pytest.raises(OptionError, match=r"task feeds\.load has neither exclusive= nor unique="):
        getattr(task, name)("https://a")


@pytest.mark.proves("mistakes")
@pytest.mark.parametrize("name", ["lease", "lock_state", "release_lock", "restart"])
def test_a_task_without_options_has_no_more_attributes_than_celery_gives_it(app: Celery, name: str) -> None:
    task = declare(app)
    assert not hasattr(task, name)
    setattr(task, name, "of the user")
    assert getattr(task, name) == "of the user"


@pytest.mark.proves("mistakes")
@pytest.mark.parametrize("way", ["delay", "apply", "by name", "switched off"])
def test_a_call_of_an_exclusive_task_has_an_outcome_too(app: Celery, way: str) -> None:
    task = declare(app, exclusive=Exclusive("url"))
    result = {
        "delay": lambda: task.delay("https://a"),
        "apply": lambda: task.apply(("https://a",)),
        "by name": lambda: app.send_task(task.name, ("https://a",)),
        "switched off": lambda: task.apply_async(("https://a",), exclusive=None),
    }[way]()
    assert (result.outcome, result.existing_id, result.key) == ("published", None, None)
