"""How much a key may be made of, and that what is too much costs nothing."""

from __future__ import annotations

from dataclasses import make_dataclass
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from celery_exclusive import OptionError, Unique
from celery_exclusive.options.canonical import MOST_CHARACTERS
from celery_exclusive.options.declared import Exclusive
from celery_exclusive.options.key_text import absolute_key
from celery_exclusive.options.keys import key_of

pytestmark = pytest.mark.promise(
    "Arguments too large for a key are refused before they are looked at, with the largest, and cost a "
    "worker nothing but the task",
    name="large keys",
    broke=(
        "no bound of values, of characters, of strings; values counted one by one; fields of dataclasses "
        "not counted; the last argument named"
    ),
    figure="the largest key takes 4 to 25 ms (`make bench ROWS=keys`)",
)

MOST_VALUES = 5_000
Wide = make_dataclass("Wide", [f"field{number}" for number in range(100)])


def work(ids: Any, note: Any = "", *rest: Any, **more: Any) -> None: ...


def key(*args: Any, option: Any = Exclusive("*"), **kwargs: Any) -> str:  # noqa: B008 - it is frozen
    return key_of("feeds.work", work, option, args, kwargs)


class Counted:
    """A value that tells its key, and how often it was asked."""

    asked = 0

    def __exclusive_key__(self) -> int:
        type(self).asked += 1
        return 1


def laughs(levels: int) -> list[Any]:
    """A list of few objects and of very many values."""
    nested: list[Any] = ["ha"]
    for _ in range(levels):
        nested = [nested] * 10
    return nested


AT_MOST: dict[str, Any] = {
    "a list": [0] * MOST_VALUES,
    "lists in lists": [[0] * 49] * 100,
    "a dict": {f"k{number}": None for number in range(MOST_VALUES)},
    "dates, numbers and ids": [datetime.now(timezone.utc), Decimal(1), UUID(int=1), 1.5] * (MOST_VALUES // 4),
    "dataclasses": [Wide(*range(100))] * (MOST_VALUES // 101),
    "what kombu writes": [{"__type__": "date", "__value__": "2026-01-05"}] * MOST_VALUES,
    "a text": "t" * MOST_CHARACTERS,
    "bytes": b"b" * MOST_CHARACTERS,
    "a number": 1 << (4 * (MOST_CHARACTERS - 3)),
    "halves of characters": "\ud83d\ude00" * (MOST_CHARACTERS // 2),
}
TOO_MUCH: dict[str, tuple[Any, str]] = {
    "a list": ([0] * (MOST_VALUES + 1), "5,000 values"),
    "a tuple": ((0,) * (MOST_VALUES + 1), "5,000 values"),
    "lists in lists": ([[0] * 100] * 100, "5,000 values"),
    "a dict": (dict.fromkeys(range(MOST_VALUES + 1)), "5,000 values"),
    "dicts in a dict": ({"a": {f"k{number}": {} for number in range(MOST_VALUES)}}, "5,000 values"),
    "dataclasses": ([Wide(*range(100))] * 100, "5,000 values"),
    "the same again and again": (laughs(40), "5,000 values"),
    "a text": ("t" * (MOST_CHARACTERS + 1), "500,000 characters"),
    "many texts": (["t" * 1001] * 1000, "500,000 characters"),
    "a name in a dict": ({"t" * (MOST_CHARACTERS + 1): 1}, "500,000 characters"),
    "bytes": (b"b" * (MOST_CHARACTERS + 1), "500,000 characters"),
    "a number": (1 << (4 * MOST_CHARACTERS), "500,000 characters"),
    "numbers": ([10**600] * 1700, "500,000 characters"),
}


@pytest.mark.parametrize("what", AT_MOST)
def test_arguments_of_ordinary_size_have_a_key(what: str):
    assert key(AT_MOST[what]) != key(0)


@pytest.mark.parametrize("what", TOO_MUCH)
@pytest.mark.parametrize("option", [Exclusive("ids"), Exclusive("*"), Unique()], ids=repr)
def test_arguments_that_are_too_large_are_refused_with_the_largest_and_the_fix(what: str, option: Any):
    value, most = TOO_MUCH[what]
    with pytest.raises(OptionError) as caught:
        key(value, "note", option=option)
    name = option.attribute
    assert str(caught.value) == (
        f"task 'feeds.work', {name}={option!r}: argument ids is too large: a key is made of at most {most}; "
        "choose other arguments with by=, or name what is locked with key=."
    )


def test_arguments_that_are_too_large_together_are_refused_with_the_largest():
    half, rest = [0] * (MOST_VALUES // 2), {"more": [0] * 100}
    for args, kwargs, largest in [
        ((half, [*half, 0]), {}, "note"),
        (([*half, 0], half), {}, "ids"),
        (("", "", *half), {"rest": half, **rest}, "more"),
        ((rest, "", *half, *half), {}, "rest"),
    ]:
        with pytest.raises(OptionError, match=f"argument {largest} is too large"):
            key(*args, **kwargs)
        assert key(*args, option=Exclusive(key="k"), **kwargs) == "x=k"


def test_an_argument_that_is_too_large_is_refused_before_its_values_are_looked_at():
    with pytest.raises(OptionError, match="argument ids is too large"):
        key([Counted()] * (MOST_VALUES + 1))
    with pytest.raises(OptionError, match="argument ids is too large"):
        key({"many": {"values": [[Counted()], [Counted()] * MOST_VALUES]}})
    assert Counted.asked == 1


@pytest.mark.parametrize("template", ["{ids}", "{ids}:{note}", "{note}:{ids}"])
def test_a_text_that_is_too_long_for_a_template_is_refused(template: str):
    for note in ("", ":", "^"):
        most = "t" * (MOST_CHARACTERS - 3)
        assert len(key(most, note, option=Exclusive(key=template))) == 202
    with pytest.raises(OptionError) as caught:
        key("t" * (MOST_CHARACTERS + 1), option=Exclusive(key=template))
    assert (
        f"task 'feeds.work', exclusive=Exclusive(key='{template}'): argument ids is a string of more than "
        "500,000 characters, too large for a key: use another argument, or a part of it."
    ) in str(caught.value)


def test_an_absolute_text_that_is_too_long_is_refused():
    text = "t" * (MOST_CHARACTERS + 1)
    with pytest.raises(OptionError, match="cannot be a string of more than 500,000 characters: name what"):
        absolute_key(text)
    for option in (Exclusive(key=lambda *_, **__: text), Exclusive(key="{note}-{ids}-{note}")):
        with pytest.raises(
            OptionError, match=r"'feeds\.work'.* key= returned a string of more than 500,000 char"
        ):
            key("t" * (MOST_CHARACTERS // 2), "t" * (MOST_CHARACTERS // 2), option=option)
