"""What `unique=Debounce(...)` may say, where a task is declared and in a call."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest
from celery import Celery

from celery_exclusive import Debounce, Exclusive, OptionError, Unique


def test_a_debounce_without_names_is_for_the_whole_task() -> None:
    option = Debounce(wait=5, max_wait=60)
    assert (option.names, option.held_until, option.refuses_duplicates) == (None, "window", False)


@pytest.mark.parametrize(
    "text",
    [
        "Debounce(wait=5, max_wait=60)",
        "Debounce('doc_id', wait=0.1, max_wait=0.1)",
        "Debounce(key='doc:{doc_id}', on_store_error='allow', wait=5, max_wait=60)",
    ],
)
def test_the_repr_of_an_option_is_the_code_that_makes_it(text: str) -> None:
    option = eval(text)
    assert repr(option) == text
    assert pickle.loads(pickle.dumps(option)) == option
    assert option.replace() == option
    assert option.replace(max_wait=90).max_wait == 90


@pytest.mark.promise(
    "A wrong `Debounce`, and a parameter of another option in it, is refused where it is written",
    broke="wait= in Unique() is an unknown option; the missing one is a TypeError of Python",
)
@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        (Debounce, {}, "Debounce(): wait=... and max_wait=... must be given by name."),
        (Debounce, {"wait": 5}, "max_wait=... must be given"),
        (Debounce, {"wait": 0, "max_wait": 60}, "wait=0 must be a number of seconds from 0.1"),
        (Debounce, {"wait": 5, "max_wait": "60"}, "max_wait='60' must be a number of seconds from 0.1"),
        (Debounce, {"wait": 5, "max_wait": None}, "max_wait=None must be a number of seconds from 0.1"),
        (Debounce, {"wait": None, "max_wait": 60}, "wait=None must be a number of seconds from 0.1"),
        (Debounce, {"wait": 5, "max_wait": 4}, "max_wait=4 is below wait=5"),
        (Debounce, {"wait": 5, "max_wiat": 60}, "no option 'max_wiat' (there are by, key, on_store_error, "),
        (Debounce, {"wait": 5, "max_wiat": 60}, "did you mean 'max_wait'?"),
        (Debounce, {"wait": 5, "max_wait": 60, "until": "started"}, "until= is for Unique()"),
        (Debounce, {"wait": 5, "max_wait": 60, "period": 9}, "period= is for Unique()"),
        (Debounce, {"wait": 5, "max_wait": 60, "recover": True}, "give it to exclusive="),
        (Debounce, {"wait": 5, "max_wait": 60, "by": "a", "key": "b"}, "by= and key="),
        (Debounce, {"wait": 5, "max_wait": 60, "by": ""}, "Leave it out for the whole task"),
        (Debounce, {"delay": 5, "max_wait": 60}, "delay= is wait= here, the pause after the last call"),
        (Unique, {"by": "doc_id", "wait": 5}, "wait= is for Debounce(wait=..., max_wait=...)"),
    ],
)
def test_a_wrong_option_is_refused_with_the_fix(kind: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=re.escape(said)):
        kind(**options)


def test_parameters_without_names_are_refused() -> None:
    with pytest.raises(OptionError, match="must be given by name"):
        Debounce("doc_id", 5, 60)  # type: ignore[call-arg, misc]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"exclusive": Debounce(wait=5, max_wait=60)}, "'exclusive=Debounce(...)': did you mean 'unique='?"),
        ({"unique": Exclusive()}, "unique=Exclusive("),
        ({"unique": Debounce(wait=5, max_wait=60), "max_wait": 9}, "write unique=Debounce(max_wait=...)"),
        ({"unique": Unique(), "wait": 9}, "write unique=Debounce(wait=...)"),
        (
            {"unique": Debounce("dok", wait=5, max_wait=60)},
            "no parameter 'dok' (there are doc): did you mean 'doc'",
        ),
    ],
)
def test_an_option_in_a_wrong_place_is_refused(app: Celery, options: dict[str, Any], said: str) -> None:
    def index(doc: str) -> None: ...

    with pytest.raises(OptionError, match=re.escape(said)):
        app.task(name="docs.index", shared=False, lazy=False, **options)(index)


def test_the_keys_of_debounce_are_no_keys_of_unique(app: Celery) -> None:
    def key(name: str, option: Any) -> str:
        @app.task(name=name, shared=False, unique=option)
        def index(doc: str) -> None: ...

        app.finalize()
        return str(app.tasks[name].lock_state("a").key)

    assert key("a", Debounce("doc", wait=5, max_wait=60)).startswith("d:a:")
    assert key("b", Debounce(wait=5, max_wait=60)) == "d:b"
    assert key("c", Debounce(key="doc:{doc}", wait=5, max_wait=60)) == "d=doc:a"
    assert key("e", Unique("doc")).startswith("u:e:")
