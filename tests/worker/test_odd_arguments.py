"""Arguments that cannot be compared: a retry with others is neither lost nor taken for the same call."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.worker.lab import Lab

DEADLINE = 60


@pytest.mark.promise(
    "A retry with arguments that cannot be compared (arrays, data frames, queries; under pickle) is sent, "
    "under the key of its arguments",
    broke="lists and dicts compared as a whole: the retry is dropped, or keeps its old key",
)
@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("kind", ["Array", "Query", "Loud"])
def test_a_retry_with_an_argument_that_cannot_be_compared_runs_under_its_own_key(
    make_lab: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch, kind: str, by_name: bool
) -> None:
    monkeypatch.setenv("C_FORCE_ROOT", "1")  # as root, Celery refuses pickle otherwise
    pickles = {"task_serializer": "pickle", "accept_content": ["json", "pickle"]}
    lab = make_lab(module="tests.worker.shop_odd", **pickles)
    worker = lab.start_worker("w1", 1)
    again = lab.task("again")
    from tests.worker.shop_odd import KINDS  # the one that the lab has imported

    value, other = KINDS[kind]("one"), KINDS[kind]("other")
    args, kwargs = ([], {"value": value}) if by_name else ([value], {})
    result = again.delay(*args, **kwargs, tag="odd", by_name=by_name)
    assert result.get(timeout=DEADLINE) == "other", worker.digest
    keys = [event["key"] for event in lab.journal.events("start")]
    assert keys == [again.lock_state(one, tag="odd", by_name=by_name).key for one in (value, other)]
