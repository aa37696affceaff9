"""A skipped run: without its body, but otherwise an ordinary success, and never against itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError

from celery_exclusive import LockHeld
from tests.worker.lab import Lab, Worker, eventually

DEADLINE = 60


@pytest.fixture
def held(make_lab: Callable[..., Lab], acks: dict[str, Any]) -> Lab:
    """One worker of four, and the key "k" taken."""
    lab = make_lab(module="tests.worker.shop_canvas", **acks)
    lab.worker = lab.start_worker("w1", 4)  # type: ignore[attr-defined]
    lab.holder = lab.send("hold", "k")  # type: ignore[attr-defined]
    lab.journal.wait_for("start", tag="holder")
    return lab


@pytest.fixture
def free(make_lab: Callable[..., Lab], acks: dict[str, Any]) -> Lab:
    """Two workers of two, and no key taken."""
    lab = make_lab(module="tests.worker.shop_canvas", **acks)
    lab.start_worker("w1", 2, ready=False)
    lab.start_worker("w2", 2)
    return lab


def skipped_by(id: str) -> dict[str, Any]:
    return {"skipped": {"key": "x=shared:k", "existing_id": id}}


@pytest.mark.promise(
    "A skip has no body and is a SUCCESS; its result reaches `.get()`, the next step and the chord body; "
    "one INFO line has key, holder and age",
    name="skip",
    broke="a skip that enters the body",
)
def test_a_skipped_task_succeeds_without_its_body_and_names_the_holder(held: Any) -> None:
    result = held.task("maybe").delay(key="k", tag="skipped")
    assert result.get(timeout=DEADLINE) == skipped_by(held.holder.id)
    assert result.state == "SUCCESS"
    assert held.journal.tags("start") == ["holder"]


@pytest.mark.proves("skip")
@pytest.mark.parametrize(("name", "key"), [("maybe", "k"), ("own_call", "k")])
def test_the_log_names_the_holder_of_the_key_once_and_for_how_long(held: Any, name: str, key: str) -> None:
    result = held.send(name, key=key, tag="skipped")
    result.get(timeout=DEADLINE)
    worker: Worker = held.worker
    worker.wait_for_log(f"[{result.id}] succeeded")
    (line,) = [line for line in worker.log.splitlines() if "skipped: " in line]
    assert "INFO/" in line
    assert f"{held.task(name).name}[{result.id}]" in line
    assert re.search(rf"lock x=shared:k .*held by {held.holder.id} for \d+\.\d+s", line)


def test_a_constant_can_be_the_result_of_a_skipped_run(held: Any) -> None:
    result = held.send("constant", "k", tag="skipped")
    assert result.get(timeout=DEADLINE) == "somebody else does it"
    assert held.journal.tags("start") == ["holder"]


def test_a_skipped_run_of_a_task_with_a_call_of_its_own_does_not_enter_that(held: Any) -> None:
    result = held.send("own_call", "k", tag="skipped")
    assert result.get(timeout=DEADLINE) == skipped_by(held.holder.id)
    assert not held.journal.events("call")


@pytest.mark.proves("skip")
def test_the_next_step_of_a_chain_gets_the_skip_result(held: Any) -> None:
    maybe, constant, following = (held.task(name) for name in ("maybe", "constant", "unlocked_list"))
    with pytest.raises(LockHeld):  # no result is named for the next step
        chain(maybe.s(key="k"), following.s()).apply_async().get(timeout=DEADLINE)
    result = chain(constant.s("k"), following.s()).apply_async()
    assert result.get(timeout=DEADLINE) == "somebody else does it"


def test_a_link_gets_the_skip_result(held: Any) -> None:
    held.task("constant").apply_async(("k",), link=held.task("unlocked_list").s().set(task_id="linked"))
    linked = held.app.AsyncResult("linked")
    assert linked.get(timeout=DEADLINE) == "somebody else does it"


@pytest.mark.proves("skip")
def test_the_body_of_a_chord_gets_the_skip_result_among_the_others(held: Any) -> None:
    maybe, constant = held.task("maybe"), held.task("constant")
    members = [maybe.s(key="other", tag="ran"), constant.s("k")]
    result = chord(members)(held.task("unlocked_list").s())
    assert result.get(timeout=DEADLINE) == ["ran", "somebody else does it"]
    with pytest.raises((LockHeld, ChordError)):
        chord([maybe.s(key="k"), constant.s("k")])(held.task("unlocked_list").s()).get(timeout=DEADLINE)


def test_a_group_of_skipped_members_completes(held: Any) -> None:
    result = group(held.task("constant").s("k") for _ in range(5)).apply_async()
    assert result.get(timeout=DEADLINE) == ["somebody else does it"] * 5


def test_a_task_runs_again_when_the_holder_has_ended(held: Any) -> None:
    held.open("holder")
    held.holder.get(timeout=DEADLINE)
    eventually(lambda: not held.task("maybe").lock_state(key="k").is_running, "a free key")
    assert held.send("maybe", key="k", tag="ran").get(timeout=DEADLINE) == "ran"


def test_a_child_published_inside_the_body_is_skipped(free: Any) -> None:
    result = free.send("parent", "k")
    child = free.app.AsyncResult(result.get(timeout=DEADLINE))
    assert child.get(timeout=DEADLINE) == skipped_by(result.id)
    assert free.journal.tags("start") == ["parent"]


@pytest.mark.promise(
    "A run is never skipped for an earlier run of its own task",
    name="no skip against oneself",
    broke="own id conflicts; `next` is not marked",
)
def test_a_retry_is_not_skipped_against_its_own_earlier_run(free: Any) -> None:
    result = free.task("maybe_again").delay(key="k", tag="try", linger=True)
    assert result.get(timeout=DEADLINE) == 2
    assert free.journal.tags("start") == ["try0", "try1", "try2"]


@pytest.mark.proves("no skip against oneself")
def test_the_next_step_of_a_chain_is_not_skipped_against_the_step_before(free: Any) -> None:
    maybe = free.task("maybe")
    steps = [maybe.s(key="k", tag=tag, linger=tag != "c") for tag in "abc"]
    assert chain(steps).apply_async().get(timeout=DEADLINE) == "c"
    assert free.journal.tags("start") == ["a", "b", "c"]


@pytest.mark.proves("no skip against oneself")
def test_a_link_is_not_skipped_against_the_task_that_sent_it(free: Any) -> None:
    maybe = free.task("maybe")
    link = maybe.s(key="k", tag="linked").set(task_id="linked")
    maybe.apply_async(kwargs={"key": "k", "tag": "first", "linger": True}, link=link)
    assert free.app.AsyncResult("linked").get(timeout=DEADLINE) == "linked"
    assert free.journal.tags("start") == ["first", "linked"]


@pytest.mark.proves("no skip against oneself")
def test_the_body_of_a_chord_is_not_skipped_against_its_last_member(free: Any) -> None:
    maybe = free.task("maybe")
    members = [maybe.s(key="k", tag="a"), maybe.s(key="k", tag="b", linger=True)]
    first = chain(members[0], free.task("unlocked_list").s())
    assert first.apply_async().get(timeout=DEADLINE) == "a"
    result = chord([members[1]], maybe.s(key="k", tag="body"))()
    assert result.get(timeout=DEADLINE) == "body"
    assert free.journal.tags("start", key="k") == ["a", "b", "body"]


def test_the_body_of_a_chord_of_two_is_not_skipped_against_its_last_member(free: Any) -> None:
    maybe = free.task("maybe")
    members = [maybe.s(key="other", tag="a"), maybe.s(key="k", tag="b", hold=True, linger=True)]
    result = chord(members, maybe.s(key="k", tag="body"))()
    counted = f"[{result.parent[0].id}] succeeded"  # before that, it may be the last one
    eventually(
        lambda: any(counted in log.read_text() for log in free.folder.glob("*.log")), "the first's end"
    )
    free.journal.wait_for("start", tag="b")
    free.open("b")
    assert result.get(timeout=DEADLINE) == "body"
