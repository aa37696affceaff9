"""The errors: one family, and words that survive the way to another process."""

from __future__ import annotations

import pickle

import pytest

from celery_exclusive.errors import ExclusiveError, LeaseLost, OptionError, StoreUnavailable, did_you_mean


@pytest.mark.parametrize("kind", [OptionError, LeaseLost, StoreUnavailable])
def test_every_error_is_an_exclusive_error(kind: type[Exception]):
    assert issubclass(kind, ExclusiveError)


def test_an_option_error_is_a_value_error():
    assert issubclass(OptionError, ValueError)


@pytest.mark.parametrize("kind", [ExclusiveError, OptionError, LeaseLost, StoreUnavailable])
def test_an_error_says_the_same_in_another_process(kind: type[Exception]):
    error = pickle.loads(pickle.dumps(kind("task 'a.b': the store is down")))
    assert type(error) is kind
    assert error.args == ("task 'a.b': the store is down",)


@pytest.mark.parametrize(
    ("word", "end"), [("skp", ": did you mean 'skip'?"), ("watt", ": did you mean 'wait'?"), ("quit", ".")]
)
def test_a_word_is_suggested_only_when_it_resembles(word: str, end: str):
    assert did_you_mean(word, ["wait", "skip"]) == end
