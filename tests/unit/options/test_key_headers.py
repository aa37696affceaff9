"""Headers of a message in the key of its call: what has one key, and what never has."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from celery import Celery
from hypothesis import assume, example, given
from hypothesis import strategies as st

from celery_exclusive.errors import OptionError
from celery_exclusive.messages.header import HEADER
from celery_exclusive.options.declared import Exclusive, Unique
from celery_exclusive.options.key_headers import RESERVED
from celery_exclusive.options.key_text import absolute_key
from celery_exclusive.options.keys import check, key_of, needs_headers
from celery_exclusive.options.settings import Settings

pytestmark = pytest.mark.proves("key headers")

TASK = "feeds.work"
TENANT = ("_schema_name",)
OPTIONS = [Exclusive(), Exclusive("a"), Exclusive("*"), Exclusive(key="k"), Exclusive(key="{a}"), Unique("a")]


def work(a: Any = None, b: Any = None) -> None: ...


def key(option: Any, headers: Any, *args: Any, in_key: tuple[str, ...] = TENANT, run: Any = work) -> str:
    return key_of(TASK, run, option, args, {}, headers, in_key)


@pytest.mark.parametrize("option", OPTIONS, ids=repr)
def test_every_kind_of_key_has_the_headers_that_the_setting_names(option: Any) -> None:
    headers = [None, {}, {"_schema_name": "acme"}, {"_schema_name": "zeta"}, {"_schema_name": ""}]
    keys = [key(option, each, "x") for each in headers]
    assert keys[0] == keys[1]
    assert len(set(keys)) == len(headers) - 1
    assert key(option, {"_schema_name": "acme", "other": 1}, "x") == keys[2]
    assert key_of(TASK, work, option, ("x",), {}) not in keys


@pytest.mark.parametrize("option", OPTIONS, ids=repr)
def test_without_the_setting_a_key_has_no_headers(option: Any) -> None:
    assert key(option, {"_schema_name": "acme"}, "x", in_key=()) == key_of(TASK, work, option, ("x",), {})


def test_values_of_headers_are_written_like_arguments() -> None:
    values: list[Any] = [None, "None", 1, "1", 1.0, True, ["1"], {"1": 1}, [], {}]
    keys = {key(Exclusive("a"), {"_schema_name": value}, "x") for value in values}
    assert len({*keys, key(Exclusive("a"), {}, "x")}) == len(values) + 1
    assert key(Exclusive(), {"_schema_name": (1, 2)}) == key(Exclusive(), {"_schema_name": [1, 2]})


def test_a_header_is_no_argument_of_its_name() -> None:
    def load(**kwargs: Any) -> None: ...

    by_argument = key_of(TASK, load, Exclusive("*"), (), {"_schema_name": "acme"}, {}, ())
    assert key(Exclusive("*"), {"_schema_name": "acme"}, run=load) != by_argument


texts = st.text(st.sampled_from("a =^_schema_namelc")) | st.sampled_from(
    ["x _schema_name=acme", "^", " _schema_name"]
)
tenants = st.none() | texts


@given(texts, tenants, tenants, texts, tenants, tenants)
@example("x", "acme", None, "x _schema_name=acme", None, None)
@example("x", "a locale=b", None, "x", "a", "b")
def test_no_two_texts_and_headers_make_one_shared_key(
    one: str, tenant: Any, locale: Any, other: str, other_tenant: Any, other_locale: Any
) -> None:
    assume((one, tenant, locale) != (other, other_tenant, other_locale))
    assume(one and other)

    def of(text: str, *values: Any) -> str:
        given = zip(("_schema_name", "locale"), values, strict=True)
        headers = {name: value for name, value in given if value is not None}
        return key(Exclusive(key="{a}"), headers, text, in_key=("_schema_name", "locale"))

    assert of(one, tenant, locale) != of(other, other_tenant, other_locale)


def test_a_shared_key_with_headers_is_a_text_that_people_can_write() -> None:
    option = Exclusive(key="repo:{a}")
    assert key(option, {"_schema_name": "acme"}, 17) == absolute_key("repo:17 _schema_name=acme")
    assert key(option, {}, 17) == absolute_key("repo:17 _schema_name")


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        (
            Exclusive("a"),
            object(),
            r"header '_schema_name' is of type object, which has no stable string form",
        ),
        (Exclusive(), {1, 2}, r"header '_schema_name' is of type set"),
        (Exclusive(), ["x"] * 6000, r"header '_schema_name' is too large for a key: send a short string"),
        (Exclusive(key="k"), ["x"], r"header '_schema_name' is a list, which a template cannot show: send"),
        (Exclusive(key="k"), "x" * 600_000, r"header '_schema_name' is a string of more than"),
    ],
    ids=["object", "set", "too large", "list in a text", "long text"],
)
def test_a_header_that_makes_no_key_is_refused(option: Any, value: Any, text: str) -> None:
    with pytest.raises(OptionError, match=rf"task 'feeds.work', exclusive=.*: {text}"):
        key(option, {"_schema_name": value}, "x")


# Functions


def by_tenant(a: Any, b: Any = None, *, headers: Any) -> str:
    assert type(headers) is dict
    return f"{a}:{headers.get('tenant')}:{sorted(headers)}"


class ByTenant:
    def __call__(self, a: Any, b: Any = None, *, headers: Any) -> str:
        return by_tenant(a, b, headers=headers)


def with_any(headers_too: str = "", **kwargs: Any) -> str:
    return f"{headers_too}{sorted(kwargs)}"


@pytest.mark.proves("looks at key headers")
@pytest.mark.parametrize(
    "function",
    [by_tenant, ByTenant(), partial(by_tenant), ByTenant().__call__],
    ids=["function", "object", "partial", "method"],
)
def test_a_function_may_take_the_users_headers_of_the_message(function: Any) -> None:
    option = Exclusive(key=function)
    check(TASK, work, option)
    assert needs_headers(option, work)
    of_celery = Celery(set_as_current=False).amqp.as_task_v2("id", TASK).headers
    headers = {**of_celery, HEADER: {"v": 1}, "compression": "zlib", "tenant": "acme"}
    assert key(option, headers, 1, in_key=()) == "x=1:acme:['tenant']"
    assert key(option, None, 1, in_key=()) == "x=1:None:[]"
    assert key(option, {"tenant": "acme", "_schema_name": "s"}, 1).endswith(" _schema_name=s")


def test_a_function_that_does_not_ask_for_headers_is_given_none() -> None:
    option = Exclusive(key=with_any)
    check(TASK, work, option)
    assert not needs_headers(option, work)
    assert key(option, {"tenant": "acme"}, 1, in_key=()) == "x=['a', 'b']"


def test_of_a_task_with_a_parameter_of_that_name_a_function_gets_the_argument() -> None:
    def fetch(a: Any, *, headers: Any) -> None: ...

    option = Exclusive(key=lambda a, *, headers: f"{a}:{headers}")
    check(TASK, fetch, option)
    assert not needs_headers(option, fetch)
    assert key_of(TASK, fetch, option, (1,), {"headers": "mine"}, {"tenant": "acme"}) == "x=1:mine"


def test_a_function_that_names_headers_wrongly_is_refused_when_the_task_is_declared() -> None:
    for function in (lambda a, b, headers: "", lambda a, b, *, header: ""):
        with pytest.raises(OptionError, match="does not accept them"):
            check(TASK, work, Exclusive(key=function))


# The setting


@pytest.mark.parametrize("names", [(), ["_schema_name"], ("_schema_name", "x-locale")])
def test_the_setting_takes_names_of_headers(names: Any) -> None:
    assert Settings(exclusive_key_headers=names).exclusive_key_headers == names


@pytest.mark.parametrize(
    "names",
    ["_schema_name", None, 7, {"a"}, ("",), (1,), ("a b",), ("a=b",), ("a", "a"), ("^",), ("a\n",)],
    ids=repr,
)
def test_a_setting_that_names_no_headers_is_refused(names: Any) -> None:
    expected = r"expected a tuple of names of headers, such as \('_schema_name',\)"
    with pytest.raises(OptionError, match=rf"^setting exclusive_key_headers is .*, {expected}\.$"):
        Settings(exclusive_key_headers=names)


@pytest.mark.proves("looks at key headers")
@pytest.mark.parametrize("name", ["id", "task", "retries", "eta", "lang", "shadow", HEADER])
def test_a_setting_that_names_headers_of_celery_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match=f"^setting exclusive_key_headers names '{name}', which Celery"):
        Settings(exclusive_key_headers=("_schema_name", name))


def test_a_misspelt_setting_is_refused_with_the_one_that_was_meant(app: Celery) -> None:
    app.conf.exclusive_key_header = ("_schema_name",)
    with pytest.raises(OptionError, match=r"exclusive_key_header is unknown .*'exclusive_key_headers'"):
        Settings.from_conf(app.conf)


@pytest.mark.proves("looks at key headers")
def test_headers_that_celery_puts_on_every_message_are_reserved() -> None:
    made = Celery(set_as_current=False).amqp.as_task_v2("id", TASK)
    assert made.headers.keys() <= RESERVED
    assert {HEADER, "compression"} <= RESERVED


def test_the_order_of_names_makes_no_other_key(make_app: Any) -> None:
    from celery_exclusive import install

    orders = [install(make_app(exclusive_key_headers=names)) for names in (("a", "b"), ("b", "a"))]
    assert len({app._celery_exclusive.key_headers for app in orders}) == 1
