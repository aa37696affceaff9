"""Which calls compete with each other, and which arguments cannot say so."""

from __future__ import annotations

import gc
import json
import re
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from inspect import signature
from types import SimpleNamespace
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from celery import Celery
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kombu.utils.json import dumps, loads

from celery_exclusive.errors import OptionError
from celery_exclusive.options import canonical
from celery_exclusive.options.declared import Exclusive
from celery_exclusive.options.key_text import absolute_key
from celery_exclusive.options.keys import bind, check, key_of
from celery_exclusive.options.preview import preview

MONDAY = datetime(2026, 1, 5)  # noqa: DTZ001 - as many tasks are called


class Color(str, Enum):
    RED = "red"
    TYPE = "__type__"


class Size(IntEnum):
    SMALL = 1


class Ratio(float, Enum):
    HALF = 0.5


class Name(str):
    __slots__ = ()


class Plain(Enum):
    A = "a"


class AsJson:
    def __json__(self) -> object:
        return {"at": MONDAY}


class Tenant:
    __module__ = "tests"

    def __init__(self, id: object) -> None:
        self.id = id

    def __exclusive_key__(self) -> object:
        return self.id


class Broken:
    def __exclusive_key__(self) -> object:
        raise RuntimeError("no id yet")


class Model:
    _meta = SimpleNamespace(label_lower="sites.page")

    def __init__(self, pk: object) -> None:
        self.pk = pk


@dataclass
class Point:
    x: int
    y: int
    cache: object = field(default=None, compare=False)


class Pair(NamedTuple):
    a: Any
    b: Any


def work(feed_url: Any, full: Any = False, *rest: Any, depth: Any = 1) -> None: ...
def open_ended(a: Any, **options: Any) -> None: ...
def no_parameters() -> None: ...


def key(*args: Any, by: Any = "*", run: Any = work, **kwargs: Any) -> str:
    return key_of("feeds.work", run, Exclusive(by), args, kwargs)


def text(template: Any, *args: Any, **kwargs: Any) -> str:
    return key_of("feeds.work", work, Exclusive(key=template), args, kwargs)


def refusal(call: Callable[..., object], *args: Any, **kwargs: Any) -> str:
    with pytest.raises(OptionError) as caught:
        call(*args, **kwargs)
    assert "task 'feeds.work', exclusive=Exclusive(" in str(caught.value)
    assert " at 0x" not in str(caught.value)
    return str(caught.value)


def raises(error: Exception) -> Callable[..., str]:
    def function(*_: Any, **__: Any) -> str:
        raise error

    return function


any_text = st.text(st.characters())  # lone surrogates too
zones = st.timezones() | st.none() | st.just(timezone(timedelta(hours=2, seconds=7)))
json_scalars = st.none() | st.booleans() | st.integers() | st.floats() | any_text
scalars = json_scalars | st.one_of(
    st.sampled_from([Color.RED, Size.SMALL, Ratio.HALF, Name("n\n"), AsJson()]),
    st.binary(),
    st.uuids(),
    st.decimals(),
    st.datetimes(timezones=zones),
    st.dates(),
    st.times(timezones=zones),
)
dict_keys = (
    any_text | st.integers() | st.floats() | st.booleans() | st.none() | st.sampled_from([*Color, *Size])
)


def containers(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(values, max_size=4)
    return (
        lists
        | lists.map(tuple)
        | st.builds(Pair, values, values)
        | st.dictionaries(dict_keys, values, max_size=4)
    )


values = st.recursive(scalars, containers, max_leaves=12)
json_values = st.recursive(json_scalars, containers, max_leaves=6)
for strategy in (values, json_values):
    strategy.validate()  # it reads this file, which may be another one when the first test begins


# Arguments of the task


def test_the_whole_task_has_one_key_whatever_its_arguments():
    assert key_of("feeds.work", work, Exclusive(), ("a",), {}) == "x:feeds.work"


def test_a_key_by_arguments_is_the_task_and_a_hash_of_them():
    assert re.fullmatch(r"x:feeds\.work:[0-9a-f]{32}", key("a"))
    assert key("a") != key_of("feeds.other", work, Exclusive("*"), ("a",), {})


def test_a_call_has_one_key_however_it_is_written():
    assert len({key(1), key(feed_url=1), key(1, False), key(1, full=False, depth=1)}) == 1


def test_only_the_chosen_arguments_count_in_any_order_of_names():
    assert key("a", 1, by="feed_url") == key("a", 2, by="feed_url") != key("b", 1, by="feed_url")
    assert key("a", 1, by=("feed_url", "full")) == key("a", 1, by=("full", "feed_url"))
    assert key("a", "a", by="feed_url") != key("a", "a", by="full")
    assert key("a", "b", by=("feed_url", "full")) != key("b", "a", by=("feed_url", "full"))


def test_further_arguments_count_in_identical_arguments():
    assert len({key(1, 2), key(1, 2, 3), key(1, 2, 3, 4), key(1, 2, 3, depth=2)}) == 4
    assert key(1, run=open_ended, b=2, c=3) == key(1, run=open_ended, c=3, b=2) != key(1, run=open_ended, b=2)


def test_an_absent_keyword_of_an_open_ended_task_counts_as_none():
    assert key(1, by="b", run=open_ended) == key(1, by="b", run=open_ended, b=None)
    assert key(1, by="b", run=open_ended) != key(1, by="b", run=open_ended, b=2)


@pytest.mark.parametrize("options", [{}, {"bind": True}, {"bind": True, "autoretry_for": (OSError,)}])
def test_the_task_itself_is_no_argument(options: dict[str, Any]):
    def bound(self: Any, a: Any, b: Any = 2) -> None: ...
    def free(a: Any, b: Any = 2) -> None: ...

    with Celery("keys", set_as_current=False) as app:
        app.task(name="t", shared=False, **options)(bound if options else free)
        run = app.tasks["t"].run
        assert key(1, run=run) == key(a=1, b=2, run=free)
        assert key(app, 1, run=bound, by="a") == key(1, run=run, by="a")  # not taken for the method
        assert "there are a, b" in refusal(check, "feeds.work", run, Exclusive("self"))


def no_arguments() -> None: ...
def by_place_alone(a: Any, b: Any = 2, /, c: Any = 3) -> None: ...
def by_name_alone(a: Any, *, b: Any, c: Any = 3) -> None: ...
def with_defaults(a: Any, b: Any = 2, *, c: Any = 3) -> None: ...
def with_rest(a: Any, *rest: Any, b: Any = 2, **others: Any) -> None: ...


@pytest.mark.promise(
    "The arguments of a call are bound without `inspect`, as Python binds them",
    broke="the fast way for all arguments alone; one that accepts too few, too many, unknown or doubled ones",
)
@settings(max_examples=400)
@given(
    st.sampled_from([no_arguments, by_place_alone, by_name_alone, with_defaults, with_rest]),
    st.none() | st.lists(st.integers(), max_size=4),
    st.none() | st.dictionaries(st.sampled_from("abcd"), st.integers()),
)
@example(with_defaults, [1], {"a": 2})
def test_arguments_are_bound_as_python_binds_them(run: Any, args: Any, kwargs: Any):
    try:
        bound = signature(run).bind(*args or (), **kwargs or {})
    except TypeError:
        with pytest.raises(TypeError):
            bind(run, args, kwargs)
    else:
        bound.apply_defaults()
        assert bind(run, args, kwargs) == bound
        assert [*bind(run, args, kwargs).arguments] == [*bound.arguments]


def test_arguments_that_do_not_fit_are_pythons_type_error():
    for call in (key, text):
        with pytest.raises(TypeError, match="got an unexpected keyword argument 'feed'"):
            call("{feed_url}", "a", feed=1)


# Values


@pytest.mark.promise("The key of a value is the key of its JSON round trip")
@settings(max_examples=400)
@given(values)
@example("\ud83d\ude00")  # two halves of one character
@example({"__type__": "uuid", "__value__": {"hex": "7" * 32}})
def test_the_key_of_a_value_is_the_key_of_its_json_round_trip(value: Any):
    assert key(value) == key(loads(dumps(value)))


@settings(max_examples=400)
@given(json_values, json_values)
def test_two_values_share_a_key_only_if_json_cannot_tell_them_apart(one: Any, other: Any):
    texts = [json.dumps(json.loads(json.dumps(value)), sort_keys=True) for value in (one, other)]
    assert (key(one) == key(other)) == (texts[0] == texts[1])


scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text())


@given(st.dictionaries(st.text(), scalars, max_size=canonical._FEW))
def test_a_few_short_values_have_the_key_that_they_have_among_others(arguments: dict[str, Any]):
    def text(find: Any) -> bytes | None:
        try:
            parts = find(arguments)
        except UnicodeEncodeError:  # no name of a parameter
            return None
        return b"".join(parts)

    assert text(canonical._short_parts) == text(canonical._parts)


def test_values_that_look_alike_have_keys_of_their_own():
    dates = [MONDAY, "2026-01-05T00:00:00", date(2026, 1, 5), "2026-01-05", time()]
    numbers = ["1", 1, 1.0, True, b"1", Decimal(1), Model(1), 0.0, -0.0, None, "None"]
    lists = [[1], [[1]], [[1], 2], [[1, 2]], {"1": 1}, {"x": 1, "y": 1}, Point(1, 1)]
    others = [UUID(int=1), str(UUID(int=1)), {"__type__": "unknown", "__value__": 1}]
    alike = dates + numbers + lists + others
    assert len({key(value) for value in alike}) == len(alike)


def test_the_order_of_a_list_makes_another_key_and_the_order_of_a_dict_does_not():
    assert key({"a": 1, "b": [1, 2]}) == key(OrderedDict(b=[1, 2], a=1)) != key({"a": 1, "b": [2, 1]})


def test_a_date_as_kombu_writes_it_is_the_date_in_a_template():
    assert text("{feed_url}", json.loads(dumps(date(2026, 1, 2)))) == "x=2026-01-02"


@pytest.mark.promise(
    "A number has one key wherever it is made",
    broke="as many decimals as Python lets this process write",
)
def test_a_number_of_any_length_has_one_key_in_processes_that_may_write_more_or_fewer_digits():
    before = sys.get_int_max_str_digits()
    numbers = [10**639, 10**640, 10**650, 10**4000, 10**5000, 10**5000 + 1]
    keys = []
    try:
        for most in (640, 4300, 0):
            sys.set_int_max_str_digits(most)
            keys.append([*map(key, numbers), *(text("{feed_url}", number) for number in numbers)])
    finally:
        sys.set_int_max_str_digits(before)
    assert keys[0] == keys[1] == keys[2]
    assert len(set(keys[0])) == 2 * len(numbers)


def test_a_value_may_tell_its_own_key():
    assert key(Tenant("acme")) == key("acme") == key(Tenant(Tenant("acme")))
    assert text("t:{feed_url}", Tenant("acme")) == "x=t:acme"


def test_a_model_is_its_label_and_primary_key():
    assert key(Model(1)) == key(Model(1)) != key(Model("1"))
    assert text("page:{feed_url}", Model(UUID(int=7))) == f"x=page:{UUID(int=7)}"


def test_a_dataclass_is_what_it_is_compared_by():
    assert key(Point(1, 2, cache=object())) == key(Point(1, 2)) != key(Point(2, 1))


def test_a_lazy_translation_is_its_text():
    from django.utils.functional import lazystr

    assert key(lazystr("a")) == key("a")
    assert text("{feed_url}", lazystr("a")) == "x=a"


@pytest.mark.promise(
    "Arguments that cannot be a key, a missing `install` and misspelt settings are refused with the fix",
    name="bad keys and settings",
)
@pytest.mark.proves("argument that is no key")
@pytest.mark.parametrize(
    ("value", "said"),
    [
        (
            {"a": [0, {"since": {1}}]},
            "argument feed_url[...][1][...] is of type set, which has no stable string form",
        ),
        (
            object(),
            "argument feed_url is of type object, which has no stable string form for a key: choose other ar",
        ),
        ([Plain.A], "argument feed_url[0] is of type test_keys.Plain, which"),
        (Point(1, lambda: 1), "argument feed_url['y'] is of type function"),
        (Model, "argument feed_url is of type type"),
        ({10**700: 1}, "argument feed_url has an int of more than 600 digits among the keys of a dict: make"),
        (
            {(1, 2): 3},
            "argument feed_url has a tuple among the keys of a dict, which JSON cannot express: make it a",
        ),
        (
            Model(None),
            "argument feed_url is an unsaved sites.page (its pk is None), which has no key yet: save",
        ),
        (Broken(), "whose key could not be computed (RuntimeError): correct its __exclusive_key__()"),
    ],
)
def test_a_value_without_a_text_of_its_own_is_refused_with_its_place_and_the_fix(value: Any, said: str):
    assert said in refusal(key, value).replace(f"{__name__}.", "test_keys.")


def test_a_value_that_contains_itself_is_refused():
    loop: dict[str, Any] = {}
    loop["a"] = [loop]
    own = Tenant(None)
    own.id = own
    gc.collect()
    gc.disable()  # a finalizer of another test's garbage would find no room on the stack
    try:
        refusals = [refusal(key, value) for value in (loop, own)]
    finally:
        gc.enable()
    assert all("argument feed_url contains itself, or is nested too deeply: choose" in it for it in refusals)


# Absolute keys


@pytest.mark.parametrize(
    ("template", "value", "expected"),
    [
        ("repo:{feed_url}", 17, "repo:17"),
        ("{full}/{{{feed_url}}}", "é", "False/{é}"),
        ("{feed_url.pk}-{feed_url.pk.real}", Model(3), "3-3"),
        ("nightly", 1, "nightly"),
        ("{feed_url}", Color.RED, "red"),
        ("{feed_url}", Size.SMALL, "1"),
        ("{feed_url}", None, "None"),
        ("{feed_url}", 0.5, "0.5"),
        ("{feed_url}", Decimal("1.50"), "1.50"),
        ("{feed_url}", MONDAY, "2026-01-05T00:00:00"),
    ],
)
def test_a_template_is_filled_with_plain_values(template: str, value: Any, expected: str):
    assert text(template, value) == f"x={expected}" == absolute_key(expected)


@given(scalars.filter(lambda value: not isinstance(value, (bytes, AsJson))))
def test_a_template_gives_the_same_text_before_and_after_a_json_round_trip(value: Any):
    assert text("a:{feed_url}", value) == text("a:{feed_url}", loads(dumps(value)))


def test_a_function_is_called_like_the_task():
    assert (
        text(lambda feed_url, full, *rest, depth: f"{feed_url}{full}{rest}{depth}", 1, depth=3)
        == "x=1False()3"
    )


def test_an_absolute_key_is_the_text_as_it_is_up_to_200_bytes():
    assert absolute_key("é" * 100) == "x=" + "é" * 100


def test_a_longer_text_is_cut_between_characters_and_distinguished_by_a_hash():
    one, other = absolute_key("é" * 100 + "a"), absolute_key("é" * 100 + "b")
    assert one != other
    assert re.fullmatch("x=é+~[0-9a-f]{32}", one)
    assert len(one.encode()) == 2 + 199


@given(any_text.filter(bool))
def test_every_text_makes_a_key_that_a_store_can_write(name: str):
    assert len(absolute_key(name).encode()) <= 202


@pytest.mark.parametrize(
    ("template", "value", "said"),
    [
        ("{feed_url}", b"a", "argument feed_url is a bytes, which a template cannot show"),
        (
            "{feed_url.pk.no}",
            Model(1),
            "argument feed_url.pk is a int without a readable .no (AttributeError): correct",
        ),
        ("{feed_url}", Model(None), "argument feed_url is an unsaved sites.page"),
        (
            "{feed_url}",
            "",
            "key= returned an empty string. It must return a string that names what is locked, like 'repo",
        ),
        (lambda *args, depth: 3, 1, "key= returned a int. It must return a string"),
        (lambda *args, depth: "", 1, "key= returned an empty string. It must"),
        (
            lambda *args, depth: args[9],
            1,
            "key= raised IndexError. Correct the function.",
        ),
    ],
)
def test_an_argument_that_makes_no_absolute_key_is_refused_with_the_fix(template: Any, value: Any, said: str):
    assert said in refusal(text, template, value)


@pytest.mark.promise(
    "A function as `key=` that cannot be called as the task is names the reason, and one that raises shows "
    "its error's type without the text, in which an argument may be",
    broke="no text at all; the text of every TypeError",
)
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (raises(ValueError("hunter")), "key= raised ValueError. Correct the function."),
        (raises(TypeError("hunter")), "key= raised TypeError. Correct the function."),
        (iter, "key= raised TypeError: "),
    ],
)
def test_an_error_of_a_function_shows_no_argument(body: Any, said: str):
    shown = refusal(text, body, "hunter")
    assert said in shown
    assert "hunter" not in shown


def test_a_lock_without_a_name_is_refused():
    with pytest.raises(OptionError, match="empty string: name what is locked, like 'repo:17'"):
        absolute_key("")


# Checks when a task is registered


@pytest.mark.parametrize(
    ("option", "run"),
    [
        (Exclusive(), no_parameters),
        (Exclusive("*"), no_parameters),
        (Exclusive(("feed_url", "depth", "rest")), work),
        (Exclusive("anything"), open_ended),
        (Exclusive(key="{a}:{b.c}"), open_ended),
        (Exclusive(key="{feed_url.pk}"), work),
        (Exclusive(key=lambda *args, **kwargs: "k"), work),
        (Exclusive(key=str), no_parameters),
    ],
)
def test_an_option_that_fits_the_parameters_passes(option: Exclusive, run: Any):
    check("feeds.work", run, option)


@pytest.mark.proves("bad options")
@pytest.mark.parametrize(
    ("option", "run", "said"),
    [
        (Exclusive("feed"), work, "'feed' (there are feed_url, full, rest, depth): did you mean 'feed_url'?"),
        (Exclusive(("full", "a")), work, "no parameter 'a' (there are feed_url, full, rest, depth)"),
        (Exclusive("a"), no_parameters, "no parameter 'a' (the task takes none)"),
        (
            Exclusive(key="{feed.pk}"),
            work,
            "no parameter 'feed' (there are feed_url, full, rest, depth): did",
        ),
        (Exclusive(key=lambda feed_url: "k"), work, "is called with the arguments of the task, (feed_url"),
    ],
)
def test_an_option_that_does_not_fit_the_parameters_is_refused(option: Exclusive, run: Any, said: str):
    assert said in refusal(check, "feeds.work", run, option)


@pytest.mark.parametrize(
    "template",
    ["{", "}", "{}", "{0}", "{a!r}", "{a:>9}", "{a.}", "{.a}", "{a:{b}}", "{a b}", "\ud83d{a}"],
)
def test_a_template_that_is_none_is_refused_with_an_example(template: str):
    said = refusal(check, "feeds.work", open_ended, Exclusive(key=template))
    assert f"key={template!r} " in said
    assert "put names of parameters into braces, as in 'repo:{project_id}'" in said


@pytest.mark.promise(
    "The hint of a refused option names what helps: a template into a dict or a list leads to a function "
    "that works, and `on_give_up` alone to `give_up_after`",
    name="hints",
    broke="red before: an attribute of a dict, and `max_waiting`",
)
@pytest.mark.parametrize(
    ("template", "value", "of"),
    [
        ("{feed_url[id]}", {"id": 7}, check),
        ("{feed_url['id']}", {"id": 7}, check),
        ("{feed_url[0]}", [7], check),
        ("{feed_url}", [7], key_of),
        ("{feed_url}", {"id": 7}, key_of),
        ("{feed_url.id}", {"id": 7}, key_of),
    ],
)
def test_a_template_into_a_dict_or_a_list_is_refused_with_a_function_that_works(
    template: str, value: Any, of: Any
):
    def load(feed_url: Any, full: Any = False) -> None: ...

    call = ([value], {}) if of is key_of else ()
    said = refusal(of, "feeds.work", load, Exclusive(key=template), *call)
    _, _, function = said.partition("use a function as key=, such as ")
    option = Exclusive(key=eval(function.rstrip(".")))
    check("feeds.work", load, option)
    assert key_of("feeds.work", load, option, [value], {}) == "x=...7"


@pytest.mark.proves("templates")
@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{a}{b}", "has nothing between two values, so that ('ab', 'c') and ('a', 'bc') would be the same"),
        ("{a}:{b}{a}", "has nothing between two values"),
        ("{a}^{b}", "has '^' between two values, the escape character of the values"),
        ("{a}: ^:{b}", "has '^' between two values"),
    ],
)
def test_a_template_whose_values_could_not_be_distinguished_is_refused(template: str, why: str):
    said = refusal(check, "feeds.work", open_ended, Exclusive(key=template))
    assert f"key={template!r} {why}" in said
    assert "as in '{owner}:{repo}'" in said


# Previews


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (Exclusive(), ""),
        (Exclusive("feed_url"), "feed_url='https://a'"),
        (Exclusive(("full", "depth")), "full=False, depth=<tests.Tenant>"),
        (Exclusive("*"), "feed_url='https://a', full=False, rest=(), depth=<tests.Tenant>"),
        (Exclusive(key="a:{feed_url}:{feed_url}"), "feed_url='https://a'"),
    ],
)
def test_a_preview_shows_the_arguments_that_count(option: Exclusive, expected: str):
    assert preview(work, option, ("https://a",), {"depth": Tenant(1)}) == expected


@pytest.mark.promise(
    "Log lines and commands hide the values of arguments, and of items of dicts in them, whose names look "
    "like secrets to Django or Sentry",
    name="secret arguments",
    broke="red before: password='hunter2'",
)
@pytest.mark.parametrize(
    "name",
    [
        "password",
        "PASSWD",
        "db_pwd",
        "passphrase",
        "secret",
        "clientSecret",
        "token",
        "x-auth-token",
        "auth",
        "oauth_state",
        "apikey",
        "api-key",
        "s3_key",
        "access_keys",
        "session",
        "sessionid",
        "csrfmiddlewaretoken",
        "HTTP_COOKIE",
        "signature",
        "credentials",
        "Authorization",
    ],
)
def test_a_preview_hides_what_looks_like_a_secret(name: str):
    for value in ({name: "hunter2"}, [{"a": {name: "hunter2"}}], (OrderedDict({name: "hunter2"}),)):
        assert "hunter2" not in preview(work, Exclusive("*"), (value,), {}, 400)
    assert preview(open_ended, Exclusive("*"), (1,), {name: "hunter2"}) == f"a=1, options={{{name!r}: **}}"
    if name.isidentifier():
        assert preview(open_ended, Exclusive(("a", name)), (1,), {name: "hunter2"}) == f"a=1, {name}=**"
        assert preview(open_ended, Exclusive(key=f"{{{name}}}"), (1,), {name: "hunter2"}) == f"{name}=**"


@pytest.mark.proves("secret arguments")
@pytest.mark.parametrize("name", ["author", "rapid", "keyword", "passenger", "passed", "url", "key", "keys"])
def test_a_preview_shows_what_does_not_look_like_a_secret(name: str):
    assert preview(open_ended, Exclusive(name), (1,), {name: "shown"}) == f"{name}='shown'"


@given(st.lists(values, max_size=3), values, st.integers(0, 90))
@example(["a"], Name("two\nlines"), 80)
def test_a_preview_is_short_printable_and_never_raises(args: list[Any], value: Any, limit: int):
    shown = preview(work, Exclusive("*"), args, {"depth": value}, limit)
    assert len(shown) <= max(limit, 1)
    assert shown.isprintable()
    assert preview(work, Exclusive("feed_url"), (Broken(), object()), {"no": 10**5000}) == ""
