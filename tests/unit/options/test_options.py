"""What a task may declare, and where a wrong declaration is reported."""

from __future__ import annotations

import copy
import json
import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from celery import Celery, Task, shared_task

from celery_exclusive.core.records import SECOND
from celery_exclusive.errors import OptionError
from celery_exclusive.options import option as option_module
from celery_exclusive.options.amounts import LONGEST, MOST
from celery_exclusive.options.declared import Debounce, Exclusive, Unique
from celery_exclusive.options.option import NOT_GIVEN


def by_project(project_id: int) -> str:
    return f"repo:{project_id}"


@pytest.fixture
def plain_app(monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    monkeypatch.setattr(option_module, "apps_with_locks", WeakKeyDictionary())
    app = Celery("plain", broker="memory://", set_as_current=False)
    yield app
    app.close()


@pytest.fixture
def app(plain_app: Celery) -> Celery:
    option_module.apps_with_locks[plain_app] = lambda *_: None  # all of `install` that an option sees
    return plain_app


# Values


def test_an_exclusive_without_arguments_locks_the_whole_task_for_one_and_lets_the_others_wait():
    option = Exclusive()
    assert (option.by, option.key, option.limit, option.ttl) == (None, None, 1, None)
    assert option.on_conflict == "wait"
    assert (option.max_waiting, option.on_full) == (None, "raise")
    assert option.skip_result is NOT_GIVEN


@pytest.mark.parametrize("by", ["a", ("a",), ["a"]])
def test_one_name_may_be_given_alone_or_in_a_list(by: Any):
    assert Exclusive(by) == Exclusive("a")
    assert Exclusive(by).by == ("a",)


def test_equal_options_are_equal_and_have_one_hash():
    one, other = Exclusive("a", limit=2, ttl=0.5), Exclusive(["a"], limit=2, ttl=0.5)
    assert one == other
    assert hash(one) == hash(other)
    assert one != Exclusive("a", limit=3, ttl=0.5)


def test_an_option_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        Exclusive().limit = 2  # type: ignore[misc]
    with pytest.raises((AttributeError, TypeError)):
        Exclusive().limmit = 2  # type: ignore[attr-defined]


def test_replace_makes_a_changed_and_checked_copy():
    option = Exclusive("a", limit=2, skip_result=None)
    assert option.replace(limit=3) == Exclusive("a", limit=3, skip_result=None)
    assert option.replace(by=None, key="k").key == "k"
    assert option.limit == 2
    with pytest.raises(OptionError, match=r"'limmit'.*did you mean 'limit'\?"):
        option.replace(limmit=3)
    with pytest.raises(OptionError, match=r"limit=0 must be a whole number from 1"):
        option.replace(limit=0)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        (Exclusive(), "Exclusive()"),
        (Exclusive("a", limit=4), "Exclusive('a', limit=4)"),
        (Exclusive(("a", "b"), on_conflict="skip"), "Exclusive(('a', 'b'), on_conflict='skip')"),
        (
            Exclusive(key="repo:{a}", ttl=9, skip_result=None),
            "Exclusive(key='repo:{a}', ttl=9, skip_result=None)",
        ),
        (Exclusive(key=by_project), "Exclusive(key=by_project)"),
        (Exclusive(max_waiting=1, on_full="skip"), "Exclusive(max_waiting=1, on_full='skip')"),
        (
            Exclusive(on_conflict="reschedule", give_up_after=9),
            "Exclusive(on_conflict='reschedule', give_up_after=9)",
        ),
        (Exclusive(on_store_error="allow"), "Exclusive(on_store_error='allow')"),
    ],
)
def test_an_option_shows_itself_as_it_would_be_written(option: Exclusive, text: str):
    assert repr(option) == text


@pytest.mark.parametrize("option", [Exclusive("a", limit=2, skip_result={"a": 1}), Exclusive(key=by_project)])
@pytest.mark.parametrize("through", [copy.deepcopy, lambda option: pickle.loads(pickle.dumps(option))])
def test_an_option_survives_copying_and_pickling(option: Exclusive, through: Callable[[Any], Any]):
    assert through(option) == option
    assert through(Exclusive()).skip_result is NOT_GIVEN


@pytest.mark.promise(
    "Wherever a time is given, a timedelta is the same as its seconds: in options, in calls, in settings and "
    "in `lock()`",
    name="timedelta",
    broke="red before: refused as no number",
)
def test_a_timedelta_is_as_good_as_its_seconds():
    quarter = timedelta(seconds=0.25)
    for kind, names in [
        (Exclusive, ["ttl", "give_up_after"]),
        (Unique, ["ttl", "queued_ttl"]),
        (Unique, ["period"]),
        (Debounce, ["wait", "max_wait"]),
    ]:
        given: Any = kind(**dict.fromkeys(names, quarter))
        assert given == kind(**dict.fromkeys(names, 0.25))
        assert given.replace(**dict.fromkeys(names, quarter)) == given
        assert json.loads(json.dumps(given.values)) == dict.fromkeys(names, 0.25)
    with pytest.raises(OptionError, match=r"ttl=0\.0 must be a number of seconds from 0\.1"):
        Unique(ttl=timedelta(0))
    with pytest.raises(OptionError, match=r"limit=datetime\.timedelta.* must be a whole number"):
        Exclusive(limit=quarter)  # type: ignore[arg-type]


def test_a_skipped_run_names_the_key_and_the_task_that_has_it():
    assert Exclusive().skipped("x:a", "id-1") == {"skipped": {"key": "x:a", "existing_id": "id-1"}}


@pytest.mark.parametrize("constant", [None, False, "busy", {"skipped": [1, 2.5]}])
def test_a_skipped_run_returns_the_constant_that_was_given(constant: object):
    assert Exclusive(skip_result=constant).skipped("x:a", "id-1") == constant


@pytest.mark.promise(
    "A bad option is refused with class, task, option and fix in the message",
    name="bad options",
)
@pytest.mark.promise(
    "Times and counts that no store can keep are refused with option, value and bound; the largest are "
    "kept by every store",
    name="bounds of times and counts",
    broke="no bound; a value that Python does not write; bounds of 2**63 s and 10**400 (Redis)",
)
@pytest.mark.proves("hints")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"on_conflit": "skip"}, ["'on_conflit'", "by, key, ttl", "did you mean 'on_conflict'?"]),
        ({"timeout": 9}, ["give_up_after= for the longest wait", "ttl= for", "time_limit="]),
        ({"expire": 9}, ["expire= is ttl= here"]),
        ({"wait": 9}, ["wait= is give_up_after= here"]),
        ({"blocking": False}, ["blocking= is on_conflict= here", "'skip'"]),
        ({"unique_on": "a"}, ["unique_on= is by= here"]),
        ({"concurrency": 4}, ["concurrency= is limit= here"]),
        ({"period": 60}, ["period= is about calls", "unique=Unique(...)"]),
        ({"limit": len}, ["limit=<built-in function len>", "exclusive=task.exclusive.replace(limit=2)"]),
        ({"on_conflict": "skp"}, ["'skp'", "'wait'", "did you mean 'skip'?"]),
        ({"on_conflict": ["skip"]}, ["['skip']", "'wait'", "'skip'", "'raise'", "'reschedule'"]),
        ({"order": "publish"}, ["order='publish'", "did you mean 'published'"]),
        ({"order": "published", "on_conflict": "skip"}, ["order='published'", "on_conflict='wait'"]),
        ({"order": "published", "max_waiting": 9}, ["order='published'", "max_waiting="]),
        ({"recover": "yes"}, ["recover='yes'", "exclusive_recover"]),
        ({"keep_on_retry": 60}, ["keep_on_retry=60", "True or False"]),
        (
            {"on_conflict": "skip", "give_up_after": 9},
            ["give_up_after=9", "'wait', 'latest', 'supersede' or 'reschedule'", "with 'skip' no task waits"],
        ),
        ({"on_give_up": "skip"}, ["on_give_up='skip'", "Add give_up_after=60"]),
        ({"give_up_after": 9, "on_give_up": "skp"}, ["on_give_up='skp'", "did you mean 'skip'?"]),
        ({"on_conflict": "latest", "max_waiting": 2}, ["max_waiting=2", "only the newest task waits"]),
        ({"on_conflict": "latest", "on_full": "skip"}, ["on_full='skip'", "only the newest task waits"]),
        ({"on_conflict": "latest", "order": "any"}, ["order='any'", "or use order='published'"]),
        ({"on_conflict": "supersede", "max_waiting": 2}, ["max_waiting=2", "only the newest task waits"]),
        ({"on_conflict": "supersede", "order": "any"}, ["order='any'", "or use order='published'"]),
        (
            {"on_conflict": "supersede", "order": "arrived"},
            ["order='arrived'", "that comes late could start"],
        ),
        ({"on_conflict": "supersede", "per": "a"}, ["on_conflict='supersede'", "Leave one of them out"]),
        ({"on_conflict": "supersede", "limit": 2}, ["limit=2", "or use on_conflict='latest'"]),
        ({"on_conflict": "supersede", "limit": None}, ["limit=None", "Leave limit= out"]),
        ({"on_conflict": "supersede", "grace": -1}, ["grace=-1", "seconds from 0", "or None"]),
        ({"on_conflict": "supersede", "grace": "9"}, ["grace='9'", "seconds from 0"]),
        ({"on_conflict": "latest", "grace": 9}, ["grace=9", "on_conflict='supersede'", "Leave it out"]),
        ({"on_conflict": "reschedule", "give_up_after": 0}, ["give_up_after=0", "above 0"]),
        ({"on_conflict": "reschedule", "give_up_after": "9"}, ["give_up_after='9'", "number of seconds"]),
        ({"on_conflict": "raise", "max_waiting": 2}, ["max_waiting=2", "with 'raise' there is no line"]),
        ({"by": "a", "key": "b"}, ["by= and key= are both given", "Use by="]),
        ({"by": True}, ["by=True", "Leave it out for the whole task"]),
        ({"by": ""}, ["by=''", "Leave it out for the whole task"]),
        ({"by": ()}, ["by=()", "Leave it out for the whole task"]),
        ({"by": ("a", 1)}, ["by=('a', 1)", "parameter of the task"]),
        ({"by": ("a", "*")}, ["by=('a', '*')", "'*' (identical arguments)"]),
        ({"by": ("a", "a")}, ["by=('a', 'a')", "Name each once"]),
        ({"by": "project.pk"}, ["by='project.pk'", "key='...{a.b}'"]),
        ({"key": ""}, ["key=''", "'repo:{project_id}'"]),
        ({"key": 3}, ["key=3", "function"]),
        ({"limit": 0}, ["limit=0", "whole number from 1"]),
        ({"limit": True}, ["limit=True", "whole number from 1"]),
        ({"limit": 1.5}, ["limit=1.5", "whole number from 1"]),
        ({"ttl": 0}, ["ttl=0", "seconds from 0.1", "exclusive_ttl"]),
        ({"ttl": "30"}, ["ttl='30'", "seconds from 0.1"]),
        ({"ttl": True}, ["ttl=True", "seconds from 0.1"]),
        ({"ttl": float("nan")}, ["ttl=nan", "seconds from 0.1"]),
        ({"ttl": float("inf")}, ["ttl=inf", "seconds from 0.1"]),
        ({"ttl": LONGEST + 1}, ["ttl=157766401", "from 0.1 to 157766400", "exclusive_ttl"]),
        ({"ttl": sys.maxsize}, ["ttl=9223372036854775807", "from 0.1 to 157766400"]),
        ({"ttl": 10**5000}, ["ttl=<int of many digits>", "from 0.1 to 157766400"]),
        ({"ttl": -(10**400)}, ["ttl=-1000", "…", "from 0.1 to 157766400"]),
        ({"limit": 10**9 + 1}, ["limit=1000000001", "from 1 to 1000000000"]),
        ({"limit": 10**5000}, ["limit=<int of many digits>", "from 1 to 1000000000"]),
        ({"max_waiting": sys.maxsize}, ["max_waiting=9223372036854775807", "from 1 to 1000000000"]),
        (
            {"on_conflict": "reschedule", "give_up_after": 1e300},
            ["give_up_after=1e+300", "above 0 and up to 157766400", "None for never"],
        ),
        ({"give_up_after": 10**5000}, ["give_up_after=<int of many digits>", "above 0 and up to 157766400"]),
        ({"max_waiting": 0}, ["max_waiting=0", "whole number from 1", "on_conflict='skip' if no task may"]),
        ({"max_waiting": 1.5}, ["max_waiting=1.5", "whole number from 1", "exclusive_max_waiting"]),
        ({"max_waiting": True}, ["max_waiting=True", "whole number from 1"]),
        ({"on_full": "rise"}, ["on_full='rise'", "'raise' (LockHeld)", "'skip'", "did you mean 'raise'?"]),
        ({"on_full": None}, ["on_full=None", "'raise'", "'skip'"]),
        ({"on_conflict": "lates"}, ["'lates'", "did you mean 'latest'?"]),
        ({"on_conflict": "skip", "max_waiting": 3}, ["max_waiting=3", "on_conflict='wait'", "no line"]),
        ({"on_conflict": "skip", "on_full": "skip"}, ["on_full='skip'", "on_conflict='wait'", "no line"]),
        ({"on_store_error": "alow"}, ["on_store_error='alow'", "'raise'", "did you mean 'allow'?"]),
        ({"skip_result": {1}}, ["skip_result=", "not a set", "Use None"]),
    ],
)
def test_a_wrong_option_is_refused_where_it_is_written(options: dict[str, Any], said: list[str]):
    with pytest.raises(OptionError) as caught:
        Exclusive(**options)
    assert all(words in str(caught.value) for words in ["Exclusive()", *said])


def test_the_largest_amounts_are_accepted():
    option = Exclusive(limit=MOST, ttl=LONGEST, max_waiting=MOST)
    assert (option.limit, option.ttl, option.max_waiting) == (10**9, 157_766_400, 10**9)
    assert Exclusive(give_up_after=LONGEST).gives_up_in == LONGEST * SECOND


def test_several_parameters_that_are_no_tuple_are_refused():
    with pytest.raises(OptionError, match=r"one tuple: Exclusive\(\('a', 'b'\)\)"):
        Exclusive("a", "b")  # type: ignore[arg-type]


# Declarations

Declare = Callable[[Celery, dict[str, Any]], Any]


def work() -> None: ...


def run(self: Any) -> None: ...


def by_decorator(app: Celery, options: dict[str, Any]) -> Any:
    app.task(name="feeds.work", shared=False, **options)(work)  # shared: with every other app of the process
    app.finalize()
    return app.tasks["feeds.work"]


def by_decorator_after_finalize(app: Celery, options: dict[str, Any]) -> Any:
    app.finalize()
    return by_decorator(app, options)


def by_shared_task(app: Celery, options: dict[str, Any]) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("celery._state._on_app_finalizers", set())  # or every later app would have it
        shared_task(name="feeds.work", **options)(work)
        app.finalize()
    return app.tasks["feeds.work"]


def by_class(app: Celery, options: dict[str, Any]) -> Any:
    cls = type("Work", (Task,), {"name": "feeds.work", "run": run, **options})
    return app.register_task(cls())


def by_base(app: Celery, options: dict[str, Any]) -> Any:
    base = type("Base", (Task,), {"abstract": True, **options})
    return by_decorator(app, {"base": base})


def by_subclass(app: Celery, options: dict[str, Any]) -> Any:
    cls = type("Work", (Task,), {"run": run, **options})
    return app.register_task(type("More", (cls,), {"name": "feeds.work"})())


every_way = pytest.mark.parametrize(
    "declare", [by_decorator, by_decorator_after_finalize, by_shared_task, by_class, by_base, by_subclass]
)


@every_way
def test_a_task_of_an_installed_app_keeps_its_option(app: Celery, declare: Declare):
    assert declare(app, {"exclusive": Exclusive("*")}).exclusive == Exclusive("*")


@pytest.mark.proves("bad options")
@every_way
def test_a_misspelt_task_option_is_refused(app: Celery, declare: Declare):
    with pytest.raises(OptionError) as caught:
        declare(app, {"lok": Exclusive()})
    assert str(caught.value) == (
        "task 'feeds.work' has option 'lok=Exclusive(...)': did you mean 'exclusive='?"
    )


@pytest.mark.proves("bad keys and settings")
@every_way
def test_a_task_of_an_app_without_install_is_refused(plain_app: Celery, declare: Declare):
    with pytest.raises(OptionError) as caught:
        declare(plain_app, {"exclusive": Exclusive()})
    for words in ("task 'feeds.work'", "exclusive=...", "celery_exclusive.install(app)"):
        assert words in str(caught.value)


@pytest.mark.parametrize("options", [{"exclusive": Exclusive()}, {"lok": Exclusive()}])
def test_a_refused_option_is_refused_at_each_use(plain_app: Celery, options: dict[str, Any]):
    task = plain_app.task(name="feeds.work", shared=False, **options)(work)
    for _ in range(2):
        with pytest.raises(OptionError):
            task.delay()


@pytest.mark.promise(
    "An option in an app without locks, where other apps have them, is a warning at the line of its task",
    broke="the line of this library named",
)
def test_a_copy_of_a_task_in_another_app_without_install_is_a_warning(app: Celery):
    other = Celery("other", broker="memory://", set_as_current=False)
    with pytest.warns(
        UserWarning, match=r"task 'feeds.work' .*other.* has no locks: .*install\(app\)"
    ) as found:
        by_class(other, {"exclusive": Exclusive()})
    assert [warning.filename for warning in found] == [__file__]  # where the body of the task is
    other.close()


def test_a_task_without_a_name_is_called_by_its_class(plain_app: Celery):
    cls = type("Nameless", (Task,), {"exclusive": Exclusive(), "__module__": "feeds"})
    with pytest.raises(OptionError, match=r"task 'feeds\.Nameless' declares"):
        plain_app.register_task(cls())


def test_none_in_a_subclass_switches_the_option_off(plain_app: Celery):
    cls = type("Work", (Task,), {"exclusive": Exclusive(), "run": run})
    plain_app.register_task(type("Free", (cls,), {"name": "free", "exclusive": None})())


def test_none_in_a_subclass_does_not_excuse_a_misspelt_option(app: Celery):
    cls = type("Work", (Task,), {"lok": Exclusive(), "run": run})
    with pytest.raises(OptionError, match=r"task 'free' has option 'lok=Exclusive"):
        app.register_task(type("Free", (cls,), {"name": "free", "exclusive": None})())


@pytest.mark.parametrize("decorate", [classmethod, staticmethod])
def test_an_on_bound_of_the_task_itself_is_still_called(app: Celery, decorate: Callable[[Any], Any]):
    bound: list[object] = []
    by_class(app, {"exclusive": Exclusive(), "on_bound": decorate(lambda *args: bound.append(args[-1]))})
    assert bound == [app]


def test_an_on_bound_of_a_base_class_is_still_called(app: Celery):
    bound: set[object] = set()
    base = type("Base", (Task,), {"on_bound": classmethod(lambda cls, app: bound.add((cls.name, app)))})
    by_decorator(app, {"base": base, "exclusive": Exclusive()})
    assert bound == {("feeds.work", app)}


def test_an_option_in_a_class_that_is_no_task_does_nothing():
    assert not hasattr(type("Defaults", (), {"lok": Exclusive()}), "on_bound")
