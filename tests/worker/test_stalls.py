"""A Redis that is broker and store stands still, or its answers are lost: nothing is sent twice."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from celery import chain

from celery_exclusive import StoreUnavailable
from tests.proxy import Proxy
from tests.servers import RedisServer
from tests.worker.lab import Lab, eventually
from tests.worker.versions import of_fast_part

SHOP = "tests.worker.shop_stalls"
LATE = {"task_acks_late": True, "task_reject_on_worker_lost": True}
STALL = 6
"""Seconds: longer than a store's client waits for an answer."""


def wait_until_idle(lab: Lab) -> None:
    """Wait until everything that was sent has ended, and no key is held."""
    eventually(lambda: lab.messages_at_the_broker() == 0, "the end of all messages")
    eventually(lambda: not list(lab.doors.scan_iter("cx2:{0}:l:*")), "free keys")


@pytest.mark.promise(
    "In one command: a request that is repeated, or comes late, sends nothing twice, also when its message "
    "has run: a lost answer, a server that stands still for 6 s with workers up, calls with and without a "
    "`task_id`, members of canvases, chains",
    name="one command, repeated",
    broke=(
        "red before: two runs each. Explorer: what a call sends leaves no mark; a repeated request takes a "
        "free key; one that is refused leaves no mark"
    ),
    also="the explorer",
)
def test_a_call_while_the_server_stands_still_is_sent_once_or_reported_as_unknown(
    make_lab: Callable[..., Lab], start_redis: Callable[..., RedisServer]
) -> None:
    server = start_redis()
    lab = make_lab(url=server.url, module=SHOP, **LATE)
    lab.start_worker("w1", 4)
    once, ordered = lab.task("once"), lab.task("one_by_one")

    def call(tag: str) -> Any:
        kwargs = {"key": tag, "tag": tag}
        try:
            if tag.startswith("given"):
                return once.apply_async(kwargs=kwargs, task_id=f"id of {tag}")
            if tag.startswith("member"):
                return once.apply_async(kwargs=kwargs, group_id="group")
            return (once if tag.startswith("plain") else ordered).apply_async(kwargs=kwargs)
        except StoreUnavailable as error:
            return error

    tags = [f"{how} {number}" for how in ("given", "member", "plain", "ordered") for number in range(3)]
    with ThreadPoolExecutor(len(tags)) as pool:
        list(pool.map(call, [f"{tag} before" for tag in tags]))  # whoever calls now has connections
        steps = [once.si(key=f"step {n}", tag=f"step {n}", seconds=2 if n == 0 else 0) for n in range(4)]
        chain(steps).apply_async()
        lab.journal.wait_for("start", tag="step 0")
        server.pause()
        calls = {tag: pool.submit(call, tag) for tag in tags}
        time.sleep(STALL)
        server.resume()
        results = {tag: future.result(60) for tag, future in calls.items()}
    lab.journal.wait_for("end", tag="step 3")
    wait_until_idle(lab)
    started = Counter(lab.journal.tags())
    assert max(started.values()) == 1
    assert [started[f"step {n}"] for n in range(4)] == [1] * 4
    for tag, result in results.items():
        if not isinstance(result, StoreUnavailable):
            assert started[tag] == 1
        elif started[tag] or result.task_id:
            assert f"[{result.task_id}] may have been sent" in str(result)
            assert [event["id"] for event in lab.journal.events("start", tag=tag)] in ([], [result.task_id])
    waiting = [tag for tag in tags if tag.startswith(("member", "ordered"))]
    assert not [tag for tag in waiting if not hasattr(results[tag], "id")]


PUSH, CONNECT = b"\r\nacquire_alone\r\n", b"\r\nEVAL\r\n"
"""Words in the request that sends a message with its key, and in the first one of a new connection."""


@pytest.fixture(params=[150])  # in which a message has run also where all cores are busy
def publisher(request: pytest.FixtureRequest, make_lab: Callable[..., Lab], network: Proxy) -> Lab:
    """A publisher behind the network, without a worker."""
    url = f"redis://127.0.0.1:{network.port}/0"
    return make_lab(
        module=SHOP,
        broker_url=url,
        exclusive_store=f"{url}?socket_timeout={request.param}",
        exclusive_broker_id="one server",
        task_ignore_result=True,
        **LATE,
    )


@pytest.fixture
def lab(publisher: Lab, redis_server: RedisServer) -> Lab:
    """The publisher, and a worker next to the server, with the queue "side"."""
    near = {"broker_url": redis_server.url, "exclusive_store": redis_server.url}
    publisher.start_worker("w1", 1, options=("-Q", "side"), **near)
    return publisher


@pytest.fixture
def network(redis_url: str, redis_server: RedisServer) -> Iterator[Proxy]:
    with Proxy(redis_server.port) as network:
        yield network


def call(lab: Lab, tag: str, **options: Any) -> Any:
    return lab.task("once").apply_async(kwargs={"key": tag, "tag": tag}, queue="side", **options)


@pytest.mark.proves("one command, repeated")
@pytest.mark.parametrize("given", [{}, {"task_id": "given"}], ids=["delay", "task_id"])
@of_fast_part
def test_a_request_that_is_repeated_when_its_message_has_run_sends_nothing(
    lab: Lab, network: Proxy, given: dict[str, str]
) -> None:
    """Its answer is lost, and connecting anew takes until then."""
    call(lab, "before")
    network.lose(PUSH)
    network.withhold(CONNECT)
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(call, lab, "a", **given)
        lab.journal.wait_for("end", tag="a")
        wait_until_idle(lab)
        eventually(lambda: CONNECT in network.met, "the new connection")
        network.deliver()
        result = calling.result(60)
    assert result.outcome == "published"
    wait_until_idle(lab)
    assert [event["id"] for event in lab.journal.events("start", tag="a")] == [result.id]


@pytest.mark.proves("one command, repeated")
def test_the_next_step_of_a_chain_whose_request_is_repeated_when_it_has_run_is_sent_once(
    lab: Lab, network: Proxy
) -> None:
    lab.start_worker("w2", 1)
    once = lab.task("once")
    once.apply_async(kwargs={"key": "before", "tag": "before"})
    lab.journal.wait_for("end", tag="before")
    first = once.si(key="first", tag="first", hold=True)
    chain(first, once.si(key="second", tag="second").set(queue="side")).apply_async()
    lab.journal.wait_for("start", tag="first")
    network.lose(PUSH)
    network.withhold(CONNECT)
    lab.open("first")
    lab.journal.wait_for("end", tag="second")
    eventually(lambda: CONNECT in network.met, "the new connection")
    network.deliver()
    wait_until_idle(lab)
    assert lab.journal.tags() == ["before", "first", "second"]


@pytest.mark.proves("one command, repeated")
@of_fast_part
def test_a_member_of_a_canvas_waits_for_the_broker_and_is_sent_once(lab: Lab, network: Proxy) -> None:
    """Two answers to the store's client are lost, and one to kombu's, which asks again."""
    call(lab, "before")
    network.lose(PUSH, times=3)
    network.withhold(PUSH)
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(call, lab, "a", group_id="group")
        eventually(lambda: len(network.met) == 4, "the fourth request")
        lab.journal.wait_for("end", tag="a")
        wait_until_idle(lab)
        network.deliver()
        result = calling.result(60)
    assert result.outcome == "published"
    wait_until_idle(lab)
    assert lab.journal.tags() == ["before", "a"]


@pytest.mark.promise(
    "In one command: a call without an answer says that it may have been sent, and by which id. If it was, "
    "the key stays with its message; if not, it never is sent",
    name="one command, no answer",
    broke=(
        "red before: the key was released, and the error said that trying again is safe. Explorer: a call "
        "that was sent is given up; one that was given up is sent later"
    ),
)
@pytest.mark.parametrize("publisher", [0.5], indirect=True)
@of_fast_part
def test_a_call_without_an_answer_says_that_it_may_have_been_sent_and_leaves_the_key_to_its_message(
    lab: Lab, network: Proxy
) -> None:
    """To call again, as for an outage of any other store, would run it twice."""
    call(lab, "before")
    network.drop(replies=True)
    kwargs = {"key": "a", "tag": "a", "hold": True}
    with pytest.raises(StoreUnavailable, match="may have been sent") as error:
        lab.task("once").apply_async(kwargs=kwargs, queue="side")
    network.restore()
    (start,) = lab.journal.wait_for("start", tag="a")
    assert start["id"] == error.value.task_id
    lab.app._celery_exclusive.releaser.drain()  # type: ignore[attr-defined]
    again = lab.task("once").apply_async(kwargs=kwargs, queue="side")
    assert (again.outcome, again.existing_id) == ("skipped", error.value.task_id)
    lab.open("a")
    wait_until_idle(lab)
    assert lab.journal.tags() == ["before", "a"]


@pytest.mark.proves("one command, no answer")
@pytest.mark.parametrize("publisher", [0.5], indirect=True)
@of_fast_part
def test_a_call_without_an_answer_whose_request_comes_later_is_not_sent(lab: Lab, network: Proxy) -> None:
    call(lab, "before")
    network.withhold(PUSH)
    with pytest.raises(StoreUnavailable, match="may have been sent"):
        call(lab, "a")
    lab.app._celery_exclusive.releaser.drain()  # type: ignore[attr-defined]
    network.deliver()
    eventually(lambda: not network.is_on_its_way, "the arrival of the request")
    assert call(lab, "a").outcome == "published"
    wait_until_idle(lab)
    assert lab.journal.tags() == ["before", "a"]


@pytest.mark.proves("one command, no answer")
def test_a_call_for_which_no_server_listens_was_not_sent(lab: Lab, network: Proxy) -> None:
    network.cut()
    with pytest.raises(StoreUnavailable) as error:
        call(lab, "a")
    assert error.value.task_id is None


@pytest.mark.proves("one command, no answer")
def test_a_call_that_the_server_refuses_was_not_sent(publisher: Lab) -> None:
    """No worker runs: Celery's ends when the Redis that is its broker has no memory."""
    publisher.doors.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreUnavailable, match="OOM") as error:
            call(publisher, "a")
    finally:
        publisher.doors.config_set("maxmemory", 0)
    assert error.value.task_id is None
    wait_until_idle(publisher)
    assert not publisher.doors.llen("side")
