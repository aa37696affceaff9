"""Keys that tasks share: what has one key, and what never has."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from celery_exclusive.errors import OptionError
from celery_exclusive.options.canonical import utf8
from celery_exclusive.options.declared import Exclusive, Unique
from celery_exclusive.options.key_text import absolute_key, own_key
from celery_exclusive.options.keys import check, key_of
from tests.unit.options.test_keys import AsJson, scalars

HASH = "0123456789abcdef" * 2
TASK = "feeds.work"


def work(a: Any, b: Any = None, c: Any = None) -> None: ...


def key(template: Any, *args: Any, kind: Any = Exclusive) -> str:
    return key_of(TASK, work, kind(key=template), args, {})


# Texts and tasks


@pytest.mark.promise(
    "No text is the key of a task, no task has the key of another, and the hashed form of a long text "
    "cannot be spelt",
    name="keys of tasks and texts",
    broke="`x:` for texts; names of any length, or that end like a hash; short texts used as they are",
)
@pytest.mark.parametrize("kind", [Exclusive, Unique])
@pytest.mark.parametrize("call", ["{a}", lambda a, b, c: a])
def test_no_text_is_the_key_of_a_task(kind: Any, call: Any):
    own = [key_of(TASK, work, kind("a"), (1,), {}), own_key(TASK, kind.kind)]
    texts = [*own, *(text[2:] for text in own), "x=a", "u=a", f"\n{TASK}", f"{TASK}\0"]
    shared = {key(call, text, kind=kind) for text in texts}
    assert len(shared) == len(texts)
    assert not shared & set(own)
    assert shared == {absolute_key(text, kind.kind) for text in texts}


def test_one_text_for_an_exclusive_and_a_unique_makes_two_keys():
    assert (key("{a}", "k"), key("{a}", "k", kind=Unique)) == ("x=k", "u=k")


@pytest.mark.proves("keys of tasks and texts")
def test_a_task_that_is_named_like_the_key_of_another_has_a_key_of_its_own():
    by_argument = key_of(TASK, work, Exclusive("a"), (1,), {})
    for name in (by_argument[2:], f"{TASK}~{HASH}"):
        assert own_key(name) != f"x:{name}"
        assert own_key(name).startswith(f"x:{TASK}")
    assert own_key(f"{TASK}:{HASH}:") == f"x:{TASK}:{HASH}:"


names = st.text(st.characters(), min_size=1) | st.text("é~:0a", min_size=1, max_size=300)


@pytest.mark.proves("keys of tasks and texts")
@given(names, names)
@example("n" * 168, "n" * 169)
@example("\ud83d", "\ud83e")
def test_two_tasks_never_have_one_key(one: str, other: str):
    keys = [f"{own_key(name)}{end}" for name in (one, other) for end in ("", f":{HASH}")]
    if utf8(one) != utf8(other):
        assert len(set(keys)) == 4
    for written in keys:
        assert len(written.encode()) <= 202


@pytest.mark.proves("keys of tasks and texts")
@given(names.map(lambda name: name * 3), st.text(max_size=3))
@example("t" * 300, "")
@example("\ud83d", "")
def test_the_hashed_form_of_a_text_cannot_be_spelt_by_another(text: str, more: str):
    written = absolute_key(text)
    if written != f"x={text}":
        assert absolute_key(written[2:]) != written
        assert absolute_key(absolute_key(written[2:])[2:]) not in (written, absolute_key(written[2:]))
    assert (absolute_key(text + more) == written) == (utf8(text + more) == utf8(text))


def test_a_text_that_ends_with_a_hash_of_its_own_is_used_as_it_is():
    assert absolute_key(f"file:{HASH}") == f"x=file:{HASH}"
    assert absolute_key(f"file~{HASH.upper()}") == f"x=file~{HASH.upper()}"


# Templates


@pytest.mark.proves("templates")
@pytest.mark.parametrize(
    ("template", "values", "expected"),
    [
        ("{a}:{b}", ("owner", "repo"), "owner:repo"),
        ("{a}:{b}", ("a", "b:c"), "a:b:c"),
        ("{a}:{b}", ("a:b", "c"), "a^:b:c"),
        ("{a}:{b}", ("a^", "b"), "a^^:b"),
        ("{a}:{b}", ("a", "^b:c^"), "a:^b:c^"),
        ("{a}:{b}", ("", "b"), ":b"),
        ("{a}:{b}", ("b", ""), "b:"),
        ("{a}:{b}:", (":", ":"), "^::::"),
        ("{a} - {b}", ("New York", "x"), "New York - x"),
        ("{a} - {b}", ("New York -", "x"), "New^ York^ - - x"),
        ("{a}--{b}", ("x-", "y"), "x^---y"),
        ("{a}--{b}", ("x-y", "z"), "x-y--z"),
        ("{a}{{{b}", ("{", "}"), "^{{}"),
        ("{a}😀{b}", ("\ud83d\ude00", "\ud83d\ude00"), "^😀😀😀"),
        ("feed:{a}", ("https://planet.example/a^b?c=d:e%20f",), "feed:https://planet.example/a^b?c=d:e%20f"),
        ("{a}\n{b}/{c}", ("1\n", "2/", "3\0"), "1^\n\n2^//3\0"),
    ],
)
def test_a_value_is_escaped_only_where_the_text_behind_it_is_in_it(
    template: str, values: tuple[str, ...], expected: str
):
    assert key(template, *values) == f"x={expected}"


@pytest.mark.proves("templates")
def test_a_template_shows_texts_so_17_is_the_text_17_and_the_lock_of_that_name():
    keys = {key("repo:{a}", value) for value in (17, "17")}
    assert keys == {absolute_key("repo:17")}
    assert key_of(TASK, work, Exclusive("a"), (17,), {}) != key_of(TASK, work, Exclusive("a"), ("17",), {})
    assert key("{a}", None) == key("{a}", "None") != key("{a}", "none")


shown_values = scalars.filter(lambda value: not isinstance(value, (bytes, AsJson)))
odd = st.text("^:-a\ud83d\ude00😀", max_size=5)
between = st.text(":-ab {}\n😀", min_size=1, max_size=3)


@st.composite
def templates_and_values(draw: Any) -> tuple[str, int]:
    """A template, and how many values it has."""
    texts = [draw(between) for _ in range(draw(st.integers(1, 2)))]
    ends = draw(st.text("^:a", max_size=2)), draw(st.text("^:a", max_size=2))
    escaped = [text.replace("{", "{{").replace("}", "}}") for text in texts]
    fields = zip(("{a}", "{b}", "{c}"), [*escaped, ""], strict=False)
    return ends[0] + "".join(field + text for field, text in fields) + ends[1], len(texts) + 1


@pytest.mark.promise(
    "Different values give a key template different texts, whatever they contain, and ordinary ones look "
    "as they are",
    name="templates",
    broke=(
        "nothing escaped; the escape not escaped, or last; all escaped; halves of a character not joined; "
        "two values side by side, or `^` between them"
    ),
)
@given(templates_and_values(), st.data())
def test_different_values_give_different_texts_whatever_they_contain(made: tuple[str, int], data: Any):
    template, count = made
    calls = [[data.draw(odd | shown_values) for _ in range(count)] for _ in range(2)]
    shown = [[key("={a}", value) for value in values] for values in calls]
    keys = [key(template, *values) for values in calls]
    assert (keys[0] == keys[1]) == (shown[0] == shown[1])


@pytest.mark.proves("templates")
@given(templates_and_values(), st.lists(st.text("xyz/%^&=", max_size=5), min_size=3, max_size=3))
def test_a_value_that_needs_no_escape_looks_as_in_an_f_string(made: tuple[str, int], values: list[str]):
    template, count = made
    assume(not any("^" in value for value in values[: count - 1]))
    filled = template.format(a=values[0], b=values[1], c=values[2])
    assert key(template, *values[:count]) == absolute_key(filled)


# Functions


def by_any_name(**kwargs: Any) -> str:
    return f"{kwargs['a']} {kwargs['b']}"


def by_one_name(b: Any, **kwargs: Any) -> str:
    return f"{kwargs['a']} {b}"


def by_keyword(*, a: Any, b: Any, **kwargs: Any) -> str:
    return f"{a} {b}"


@pytest.mark.promise(
    "A function as `key=` may name only the parameters that it uses",
    broke="called by place",
)
@pytest.mark.parametrize("function", [by_any_name, by_one_name, by_keyword])
def test_a_function_with_kwargs_may_name_the_parameters_that_it_uses(function: Any):
    option = Exclusive(key=function)
    check(TASK, work, option)
    assert {key_of(TASK, work, option, (1,), {"b": 2}), key_of(TASK, work, option, (), {"a": 1, "b": 2})} == {
        "x=1 2"
    }


def test_a_function_gets_what_is_in_the_kwargs_of_the_task_by_name():
    def run(a: Any, **kwargs: Any) -> None: ...

    assert key_of(TASK, run, Exclusive(key=by_any_name), (1,), {"b": 2}) == "x=1 2"


def test_a_function_that_accepts_the_arguments_neither_by_place_nor_by_name_is_refused():
    with pytest.raises(OptionError, match="does not accept them"):
        check(TASK, work, Exclusive(key=lambda a, d, e, f, **kwargs: a))
