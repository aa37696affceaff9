"""What becomes of a signal that lands while a store is asked."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from celery.exceptions import SoftTimeLimitExceeded

from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.leases.attempts import Attempts


def raising(*errors: BaseException) -> Callable[[], str]:
    """A call that raises these, one after another, and returns then."""
    left = list(errors)

    def call() -> str:
        if left:
            raise left.pop(0)
        return "answer"

    return call


def test_a_call_that_a_soft_limit_interrupts_is_made_again_and_the_limit_returned():
    attempts = Attempts()
    assert attempts.make(raising(SoftTimeLimitExceeded())) == "answer"
    assert type(attempts.interruption) is SoftTimeLimitExceeded
    assert not attempts.is_repeated


@pytest.mark.promise(
    "A soft time limit that arrives while the store is asked reaches the body, also if the store does not "
    "answer then",
    name="soft limit reaches the body",
    broke="not noted at the error",
)
def test_a_soft_limit_is_not_lost_when_the_store_does_not_answer_after_it():
    with pytest.raises(StoreUnavailable) as found:
        Attempts().make(raising(SoftTimeLimitExceeded(), StoreUnavailable("it is away")))
    assert isinstance(found.value.interruption, SoftTimeLimitExceeded)


def test_an_exit_of_the_process_goes_before_the_error_of_the_store():
    with pytest.raises(SystemExit):
        Attempts().make(raising(SystemExit(), StoreUnavailable("it is away")))


def test_call_is_repeated_after_an_error_as_often_as_allowed_and_says_so() -> None:
    away = StoreUnavailable("it is away")
    attempts = Attempts(2)
    assert attempts.make(raising(away)) == "answer"
    assert attempts.is_repeated
    with pytest.raises(StoreUnavailable):
        Attempts(2).make(raising(away, away))


def test_soft_limit_of_the_first_attempt_is_kept_by_the_second() -> None:
    attempts = Attempts(2)
    away = StoreUnavailable("it is away")
    assert attempts.make(raising(SoftTimeLimitExceeded(), away)) == "answer"
    assert type(attempts.interruption) is SoftTimeLimitExceeded
