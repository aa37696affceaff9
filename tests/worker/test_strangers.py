"""What comes from elsewhere: arguments, headers and ids that this library did not make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery

from celery_exclusive import OptionError
from tests.worker.lab import Lab

DEADLINE = 60
SLASHED = "tenant/42"


def send_by_name(publisher: Celery, *args: Any, **options: Any) -> Any:
    """Publish the shop's task `wait` without knowing it; `tag` and `hold` are its arguments."""
    kwargs = {name: options.pop(name) for name in ("tag", "hold") if name in options}
    return publisher.send_task("tests.worker.shop.wait", args, kwargs, **options)


@pytest.mark.promise("Arguments that do not fit are refused, never run without a lock")
@pytest.mark.parametrize("publisher", ["an installed app", "a stranger"])
def test_a_call_whose_arguments_do_not_fit_fails_without_its_body(
    make_lab: Callable[..., Lab], acks: dict[str, Any], stranger: Celery, publisher: str
) -> None:
    lab = make_lab(module="tests.worker.shop_canvas", **acks)
    lab.start_worker("w1", 2)
    if publisher == "an installed app":
        result = lab.send("in_session", "k")
    else:
        result = stranger.send_task(lab.task("in_session").name, ["k"])
    with pytest.raises(TypeError, match="key"):
        result.get(timeout=DEADLINE)
    assert result.state == "FAILURE"
    assert not lab.journal.events()


TOO_LARGE: dict[str, Any] = {
    "too many values": [0] * 300_000,
    "many lists in many": {"a": [[0] * 100] * 3_000},
    "too long a text": "t" * 2_000_000,
}


@pytest.mark.proves("large keys")
@pytest.mark.parametrize("what", TOO_LARGE)
def test_arguments_too_large_for_a_key_fail_without_the_body_and_the_worker_goes_on(
    make_lab: Callable[..., Lab], acks: dict[str, Any], stranger: Celery, what: str
) -> None:
    lab = make_lab(**acks)
    lab.start_worker("w1", 2)
    result = send_by_name(stranger, TOO_LARGE[what], tag="too large")
    after = send_by_name(stranger, "k", tag="after")
    with pytest.raises(
        OptionError, match=r"wait', exclusive=Exclusive\('key'\): argument key is too large: a key"
    ):
        result.get(timeout=DEADLINE)
    assert result.state == "FAILURE"
    assert after.get(timeout=DEADLINE) == "after"
    assert lab.journal.tags("start") == ["after"]
    with pytest.raises(OptionError, match="argument key is too large"):
        lab.send("wait", TOO_LARGE[what])


@pytest.mark.promise(
    "A message from a publisher without the library is exclusive, and two of them with one task id both run",
)
def test_two_messages_by_name_with_one_task_id_both_run(lab: Lab, stranger: Celery) -> None:
    lab.start_worker("w1", 2)
    send_by_name(stranger, "k", tag="first", hold=True, task_id="import")
    lab.journal.wait_for("start", tag="first")
    send_by_name(stranger, "k", tag="second", task_id="import")
    lab.wait_for_line(1, "wait", "k")
    lab.open("first")
    lab.journal.wait_for("end", tag="second")
    assert lab.journal.tags("end") == ["first", "second"]
    assert lab.journal.most_open() == 1


def test_a_retry_under_an_id_with_a_slash_is_not_skipped_against_its_own_earlier_run(
    make_lab: Callable[..., Lab], acks: dict[str, Any]
) -> None:
    lab = make_lab(module="tests.worker.shop_canvas", **acks)
    lab.start_worker("w1", 2)
    result = lab.send("maybe_again", key="k", tag="try", linger=True, options={"task_id": SLASHED})
    assert result.get(timeout=DEADLINE) == 2
    assert lab.journal.tags("start") == ["try0", "try1", "try2"]


def test_an_id_with_a_slash_is_whole_in_the_lock_state_and_in_a_skip_result(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(module="tests.worker.shop_canvas", task_acks_late=True)
    worker = lab.start_worker("w1", 2)
    lab.send("hold", "k", options={"task_id": SLASHED})
    lab.journal.wait_for("start", tag="holder")
    (holder,) = lab.task("hold").lock_state("k").holders
    assert holder.task_id == SLASHED
    skipped = lab.send("maybe", key="k").get(timeout=DEADLINE)
    assert skipped["skipped"]["existing_id"] == SLASHED
    assert f"held by {SLASHED} for" in worker.wait_for_log("skipped: ")


MALFORMED = {
    "a version alone": {"v": 1},
    "no key": {"v": 1, "id": "a"},
    "a number as id": {"v": 1, "id": 7, "exclusive": "k"},
    "a list as key": {"v": 1, "id": "a", "exclusive": ["k"]},
    "a number as epoch": {"v": 1, "id": "a", "exclusive": "k", "promoted": 5},
    "no dictionary": ["v", 1],
}


@pytest.mark.promise("A header that is not ours neither stops the consumer nor switches the lock off")
@pytest.mark.parametrize("what", MALFORMED)
def test_a_message_with_a_malformed_header_runs_under_the_lock_of_its_arguments(
    lab: Lab, stranger: Celery, what: str
) -> None:
    lab.start_worker("w1", 2)
    headers = {"exclusive": MALFORMED[what]}
    result = send_by_name(stranger, "k", tag="malformed", hold=True, headers=headers)
    lab.journal.wait_for("start", tag="malformed")
    (holder,) = lab.task("wait").lock_state("k").holders
    assert holder.task_id == result.id
    lab.send("wait", "k", tag="next")
    lab.wait_for_line(1, "wait", "k")
    lab.open("malformed")
    lab.journal.wait_for("end", tag="next")
    assert lab.journal.most_open() == 1
