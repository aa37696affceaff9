"""What the answer of a node says about a call."""

from __future__ import annotations

import pytest
from redis import exceptions

from celery_exclusive.stores.redis.node import Call


@pytest.mark.proves("moving slots")
@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("ASK 866 127.0.0.1:7001", exceptions.AskError),
        ("MOVED 866 127.0.0.1:7001", exceptions.MovedError),
        ("TRYAGAIN Multiple keys request during rehashing of slot", exceptions.TryAgainError),
        ("CLUSTERDOWN Hash slot not served", exceptions.ClusterDownError),
        ("MASTERDOWN Link with MASTER is down", exceptions.MasterDownError),
    ],
)
def test_a_redirect_that_redis_py_5_does_not_name_is_known_by_its_first_word(
    answer: str, kind: type[Exception]
) -> None:
    call = Call(("GET", "{17}epoch"))
    call.note(exceptions.ResponseError(answer))
    assert type(call.error) is kind
    assert call.is_open
    assert call.is_sent_on == (kind is exceptions.MovedError)


def test_any_other_refusal_ends_a_call() -> None:
    call = Call(("GET", "{17}epoch"))
    call.note(exceptions.ResponseError("ERR unknown command"))
    assert (str(call.error), call.is_open) == ("ERR unknown command", False)
