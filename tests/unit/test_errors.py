"""The errors: one family, and words that survive the way to another process."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from celery import Celery

from celery_exclusive import Exclusive
from celery_exclusive.errors import (
    ExclusiveError,
    LeaseLost,
    NoLease,
    OptionError,
    StoreUnavailable,
    did_you_mean,
)


@pytest.mark.parametrize("kind", [OptionError, LeaseLost, StoreUnavailable])
def test_every_error_is_an_exclusive_error(kind: type[Exception]):
    assert issubclass(kind, ExclusiveError)


def test_an_option_error_is_a_value_error():
    assert issubclass(OptionError, ValueError)


@pytest.mark.parametrize("kind", [ExclusiveError, OptionError, LeaseLost, NoLease, StoreUnavailable])
def test_an_error_says_the_same_in_another_process(kind: type[Exception]):
    error = pickle.loads(pickle.dumps(kind("task 'a.b': the store is down")))
    assert type(error) is kind
    assert error.args == ("task 'a.b': the store is down",)


@pytest.mark.proves("missing lease")
def test_a_lease_that_is_missing_is_the_same_error_in_a_result(app: Celery):
    @app.task(name="bare", shared=False, exclusive=Exclusive())
    def bare() -> None: ...

    with pytest.raises(NoLease) as missing:
        bare.lease  # noqa: B018
    backend: Any = app.backend
    for serializer in ("json", "pickle"):
        told = backend.exception_to_python(backend.prepare_exception(missing.value, serializer))
        assert isinstance(told, ExclusiveError)
        assert isinstance(told, AttributeError)
        assert str(told) == str(missing.value)


@pytest.mark.parametrize(
    ("word", "end"), [("skp", ": did you mean 'skip'?"), ("watt", ": did you mean 'wait'?"), ("quit", ".")]
)
def test_a_word_is_suggested_only_when_it_resembles(word: str, end: str):
    assert did_you_mean(word, ["wait", "skip"]) == end
