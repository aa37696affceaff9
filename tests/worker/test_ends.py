"""The end of a run publishes what follows, whatever the store does, and whatever the arguments are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import chain, chord, group

from celery_exclusive import OptionError, StoreUnavailable
from tests.proxy import Proxy
from tests.servers import RedisServer
from tests.worker.lab import Lab, eventually

SHOP = "tests.worker.shop_ends"
TOO_MANY = list(range(6000))
"""More values than a key takes."""
DEADLINE = 60
SILENT = 600
"""The timeout of a store in seconds: whoever waits for its answer does so beyond the end of the test."""


@pytest.fixture
def make_apart(make_lab: Callable[..., Lab], acks: dict[str, Any]) -> Callable[..., Lab]:
    """Makes a lab whose store has this port, and is not the Redis of its broker."""
    return lambda port, timeout=SILENT, **conf: make_lab(
        module=SHOP, exclusive_store=f"redis://127.0.0.1:{port}/0?socket_timeout={timeout}", **acks, **conf
    )


def withhold(proxy: Proxy, word: bytes) -> None:
    for _ in range(20):
        proxy.withhold(word)


@pytest.mark.promise(
    "The end of a run is not refused: retries, next steps and bodies of chords are sent without their "
    "unique key or place, run once, and what has ended keeps its result, with the store down or silent and "
    "back later",
    broke='red before with `order="published"`: the retry lost, the first step FAILURE',
)
@pytest.mark.parametrize("away", ["down", "silent"])
@pytest.mark.parametrize("kind", ["ordered", "unique"])
def test_retries_next_steps_and_bodies_of_chords_run_though_the_store_is_away_when_they_are_published(
    make_apart: Callable[..., Lab], store: RedisServer, kind: str, away: str
) -> None:
    lab = make_apart(store.port)
    worker = lab.start_worker("w1", 4)
    plain, task = lab.task("plain"), lab.task(kind)
    retried = lab.send(f"{kind}_again", "a", "again")
    steps = chain(plain.si("first", hold=True), task.si("b", "second")).apply_async()
    body = chord([plain.si("1", hold=True), plain.si("2", hold=True)])(task.si("c", "body"))
    lab.journal.wait_for("start", 4)
    store.stop() if away == "down" else store.pause()
    lab.open("again", "first", "1", "2")
    for sent in (retried, steps, body):
        worker.wait_for_log(f"[{sent.id}] {'is sent' if kind == 'ordered' else 'continues'} without")
    eventually(lambda: steps.parent.state == "SUCCESS", "the report of the first step")
    eventually(lambda: retried.state == "RETRY", "the report of the retried run")
    store.restart() if away == "down" else store.resume()
    assert [result.get(timeout=DEADLINE) for result in (retried, steps, body)] == ["again", "second", "body"]
    assert sorted(lab.journal.tags()) == ["1", "2", "again", "again", "body", "first", "second"]


@pytest.mark.promise(
    "The end of a run is not held up: a silent store is asked once for a group of four and a callback, "
    "also by a task without options, and by the main process for three errbacks. Plain calls keep their "
    "error",
    name="silent store is asked once",
    broke=(
        "red before: the hard limit struck finished work, the main process stood still; breaks seen: no "
        "memory, no limit"
    ),
)
@pytest.mark.parametrize("parent", ["plain", "locked"])
@pytest.mark.parametrize("kind", ["ordered", "unique"])
def test_a_silent_store_is_asked_once_for_all_that_the_end_of_a_run_publishes(
    make_apart: Callable[..., Lab], proxy: Proxy, kind: str, parent: str
) -> None:
    """A group of four and a callback, within a hard time limit that would strike finished work."""
    lab = make_apart(proxy.port)
    lab.start_worker("w1", 1, options=("-Q", "lab"))
    members = group(lab.task(kind).si(f"{n}", f"{n}").set(queue="side") for n in range(4))
    callback = lab.task(kind).si("callback", "callback").set(queue="side")
    first = lab.task(parent).si("first", hold=True).set(time_limit=30, link=callback)
    steps = chain(first, members).apply_async()
    lab.journal.wait_for("start")
    withhold(proxy, b"%b:" % kind.encode())
    lab.open("first")
    eventually(lambda: steps.parent.state == "SUCCESS", "its report")
    assert lab.doors.llen("side") == 5
    assert len(proxy.met) == 1


@pytest.mark.proves("silent store is asked once")
def test_the_main_process_asks_a_silent_store_once_for_the_errbacks_of_a_lost_child(
    make_apart: Callable[..., Lab], proxy: Proxy
) -> None:
    lab = make_apart(proxy.port)
    lab.start_worker("w1", 2, options=("-Q", "lab"))
    errbacks = [lab.task("after").s(key=f"{n}").set(queue="side") for n in range(3)]
    lost = lab.task("killed").apply_async(("lost",), link_error=errbacks)
    lab.journal.wait_for("start")
    withhold(proxy, b"unique:")
    lab.open("lost")
    eventually(lambda: lab.doors.llen("side") == 3, "the errbacks")
    assert lab.send("plain", "beside", 1).get(timeout=DEADLINE) == 1
    assert lost.state == "FAILURE"
    assert len(proxy.met) == 1


@pytest.mark.proves("silent store is asked once")
def test_a_silent_store_is_remembered_for_members_of_a_canvas_and_not_for_plain_calls(
    make_apart: Callable[..., Lab], proxy: Proxy
) -> None:
    lab = make_apart(proxy.port, 1)
    assert lab.task("unique").unique
    withhold(proxy, b"unique:")
    group(lab.task("unique").si(f"{n}", f"{n}") for n in range(4)).apply_async()
    assert lab.doors.llen("lab") == 4
    assert len(proxy.met) == 1
    with pytest.raises(StoreUnavailable):
        lab.send("unique", "plain", "plain")
    assert len(proxy.met) == 2
    proxy.restore()
    lab.app._celery_exclusive.releaser.drain()  # type: ignore[attr-defined]


ERROR = "OptionError: task '{name}', {option}: argument ids is too large"
"""How the error of a task begins whose key cannot be made."""
NAMES = {
    "process": "unique=Unique()",
    "process_alone": "exclusive=Exclusive('ids')",
    "process_in_order": "unique=Unique()",
}


def failed(lab: Lab, name: str) -> str:
    """Wait until a task of this name has failed, and return its error."""
    (event,) = lab.journal.wait_for("failed", of=f"{SHOP}.{name}")
    return str(event["error"])


def error_of(name: str) -> str:
    return ERROR.format(name=f"{SHOP}.{name}", option=NAMES[name])


@pytest.fixture
def worker_lab(make_lab: Callable[..., Lab], acks: dict[str, Any]) -> Lab:
    lab = make_lab(module=SHOP, **acks)
    lab.start_worker("w1", 4)
    return lab


@pytest.mark.promise(
    "Arguments that make no key fail their own task with an error that names it, its option and the "
    "argument: next steps, callbacks, errbacks, members of groups, bodies of chords, replacements, "
    "retries. What has ended keeps its result. A plain call fails at its caller",
    name="arguments that make no key",
    broke="red before: the step that had done its work was FAILURE",
)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("parent", ["plain", "locked"])
def test_a_result_that_makes_no_key_fails_the_next_step_and_no_earlier_one(
    worker_lab: Lab, parent: str, name: str
) -> None:
    lab = worker_lab
    first = lab.task(parent).si("first", TOO_MANY)
    alarm, process = lab.task("alarm").s(), lab.task(name).s()
    steps = chain(first, process.on_error(alarm), lab.task("plain").s("last")).apply_async()
    assert failed(lab, name).startswith(error_of(name))
    assert steps.parent.parent.state == "SUCCESS"
    assert steps.parent.state == "FAILURE"
    linked = lab.task(parent).apply_async(("linked", TOO_MANY), link=process)
    lab.journal.wait_for("failed", 2, of=f"{SHOP}.{name}")
    assert linked.get(timeout=DEADLINE) == TOO_MANY
    assert lab.journal.tags() == ["first", "linked"]


@pytest.mark.proves("arguments that make no key")
@pytest.mark.parametrize("parent", ["plain", "locked"])
def test_the_body_of_a_chord_and_a_member_of_a_group_fail_alone_if_their_keys_cannot_be_made(
    worker_lab: Lab, parent: str
) -> None:
    lab = worker_lab
    member, process = lab.task(parent), lab.task("process").s().on_error(lab.task("alarm").s())
    body = chord([member.si("1", TOO_MANY), member.si("2")])(process)
    assert "argument ids is too large" in failed(lab, "process")
    assert body.state == "FAILURE"
    assert [result.state for result in body.parent.results] == ["SUCCESS"] * 2
    steps = chain(member.si("first", TOO_MANY), group(process, lab.task("plain").si("beside"))).apply_async()
    eventually(steps.ready, "the end of both members")
    assert [result.state for result in steps.results] == ["FAILURE", "SUCCESS"]
    assert steps.parent.state == "SUCCESS"
    assert lab.journal.tags().count("process") == 0


@pytest.mark.proves("arguments that make no key")
@pytest.mark.parametrize("how", ["one", "several"])
def test_a_replacement_whose_key_cannot_be_made_fails_in_place_of_its_task(worker_lab: Lab, how: str) -> None:
    lab = worker_lab
    replaced = lab.send("swap", "swap", how)
    assert failed(lab, "process").startswith(error_of("process"))
    if how == "one":
        eventually(replaced.ready, "its end")
        assert replaced.state == "FAILURE"
        assert not lab.task("swap").lock_state("swap", how).is_running
    else:
        lab.journal.wait_for("end", tag="beside")
    assert lab.journal.tags().count("process") == 0


@pytest.mark.proves("arguments that make no key")
def test_a_retry_whose_arguments_make_no_key_fails_with_their_error(worker_lab: Lab) -> None:
    lab = worker_lab
    retried = lab.task("grow").apply_async(([1],), link_error=lab.task("alarm").s())
    assert failed(lab, "grow").startswith(f"OptionError: task '{SHOP}.grow', unique=Unique(): argument ids ")
    assert retried.state == "FAILURE"
    eventually(lambda: lab.task("grow").lock_state([1]).unique_holder is None, "a free key")
    assert lab.journal.tags() == ["grow"]


@pytest.mark.proves("arguments that make no key")
@pytest.mark.parametrize("parent", ["plain", "locked"])
def test_a_function_as_key_that_raises_fails_the_next_step_and_no_earlier_one(
    worker_lab: Lab, parent: str
) -> None:
    lab = worker_lab
    process = lab.task("process_by_function").s().on_error(lab.task("alarm").s())
    steps = chain(lab.task(parent).si("first", 1), process).apply_async()
    assert "key= raised KeyError" in failed(lab, "process_by_function")
    assert steps.parent.state == "SUCCESS"


@pytest.mark.proves("arguments that make no key")
def test_an_errback_whose_key_cannot_be_made_leaves_the_failure_as_it_is(worker_lab: Lab) -> None:
    lab = worker_lab
    errback = lab.task("process_by_function").s().on_error(lab.task("alarm").s())
    failing = lab.task("failing").apply_async(("failing",), link_error=errback)
    assert "key= raised KeyError" in failed(lab, "process_by_function")
    assert failing.state == "FAILURE"
    assert isinstance(failing.result, KeyError)


@pytest.mark.proves("arguments that make no key")
def test_a_plain_call_whose_key_cannot_be_made_fails_at_its_caller(worker_lab: Lab) -> None:
    lab = worker_lab
    for options in ({}, {"task_id": "its own", "link": lab.task("plain").si("never")}):
        with pytest.raises(OptionError, match="argument ids is too large"):
            lab.send("process", TOO_MANY, options=options)
    lab.send("inside")
    (refused,) = lab.journal.wait_for("refused")
    assert "argument ids is too large" in refused["why"]
    assert lab.messages_at_the_broker() <= 1
    assert lab.journal.events("failed") == []
