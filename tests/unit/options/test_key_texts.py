"""The texts of keys are those of 1.0.0rc1: workers and publishers of different releases have to agree."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from celery_exclusive.options.declared import Debounce, Exclusive, Unique
from celery_exclusive.options.keys import key_of

NOON = datetime(2026, 1, 5, 12, tzinfo=timezone.utc)


def work(place: Any, part: int = 0, **more: Any) -> None: ...


CASES: dict[str, Any] = {
    "a task": (Exclusive(), ("a",), "x:feeds.work"),
    "a unique task": (Unique(), ("a",), "u:feeds.work:9e1e72025e28333405c0297a9bde48b1"),
    "a window": (
        Debounce("place", wait=1, max_wait=2),
        ("a",),
        "d:feeds.work:1c726c0075ee553478d9a82a9b7fd098",
    ),
    "all arguments": (Exclusive("*"), ("a", 1), "x:feeds.work:0f40f92c37774074260d483ff175ebf5"),
    "two arguments": (
        Exclusive(("place", "part")),
        ("a", 1),
        "x:feeds.work:9d51c514314bd8d4290463d4c54b8c77",
    ),
    "a string": (Exclusive("place"), ("Zürich\n",), "x:feeds.work:a25ec8b787378cadc51aae3745a71d69"),
    "an integer": (Exclusive("place"), (7,), "x:feeds.work:3d3c018bda88abce70f6cd3907a89f86"),
    "a float": (Exclusive("place"), (0.1,), "x:feeds.work:7d8090cc3467c3b209edec1135cd6a6e"),
    "no value": (Exclusive("place"), (None,), "x:feeds.work:82d3b4a09a7a29c7d0d7676e40b3dc12"),
    "a boolean": (Exclusive("place"), (True,), "x:feeds.work:e9d32cb5c69838572e1ae3a629717bc5"),
    "bytes": (Exclusive("place"), (b"\xff",), "x:feeds.work:08818369728332d70a8673e882d4d23a"),
    "a list": (Exclusive("place"), ([1, "a", None],), "x:feeds.work:918e406ab7a9ebf73454d6904dcb6398"),
    "a nested dict": (
        Exclusive("place"),
        ({"b": [1.5], "a": {"c": 2}},),
        "x:feeds.work:faf63787cb8b75da23fd93cbc01d2c34",
    ),
    "a datetime": (Exclusive("place"), (NOON,), "x:feeds.work:92e8ddba306625ce2c17ad4fcdd35da3"),
    "a date": (Exclusive("place"), (date(2026, 1, 5),), "x:feeds.work:90ef777c706b26b6b9d4180dc08d6323"),
    "a decimal": (Exclusive("place"), (Decimal("1.50"),), "x:feeds.work:5132eec5347228a01f4c1024e07c7d07"),
    "a UUID": (Exclusive("place"), (UUID(int=7),), "x:feeds.work:4838662a25061f635c586b9de481927d"),
    "a string that tasks share": (Exclusive(key="repo:17"), ("a",), "x=repo:17"),
    "a template": (Exclusive(key="repo:{place}:{part}"), ("a:b", 3), "x=repo:a^:b:3"),
    "a template with a space": (Unique(key="{place}"), ("a b/ü",), "u=a b/ü"),
    "a long string": (
        Exclusive(key="{place}"),
        ("x" * 300,),
        f"x={'x' * 167}~c2f093e41879e412280bfcc0ed6533e4",
    ),
    "a function": (Exclusive(key=lambda place, **_: f"site:{place}"), ("a",), "x=site:a"),
}


@pytest.mark.promise(
    "The text of a key is the one that 1.0.0rc1 made, for each kind of option and of value",
    broke="another digest; another kind of key; another spelling of a colon in a template",
)
@pytest.mark.parametrize("case", CASES)
def test_a_key_has_the_text_that_it_had_in_the_first_release(case: str) -> None:
    option, args, text = CASES[case]
    assert key_of("feeds.work", work, option, args, {}) == text
