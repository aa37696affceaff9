"""When the store goes away in the midst of the calls for one delivery: no work is lost, and no key stays."""

from __future__ import annotations

import pytest

from celery_exclusive.stores.base import open_store
from tests.proxy import Proxy
from tests.servers import RedisServer
from tests.worker.journal import is_alive
from tests.worker.lab import Lab, eventually
from tests.worker.message import park_behind, stop_consuming
from tests.worker.stage import Stage, on_stages
from tests.worker.test_unique import ONCE, SHOP, hold

DEADLINE = 90
OFTEN = 100
"""More than a worker repeats a call in any of these tests."""


def away(proxy: Proxy, timeout: float = 1) -> str:
    """The URL of the store behind a network."""
    return f"redis://127.0.0.1:{proxy.port}/0?socket_timeout={timeout}"


def withhold(proxy: Proxy, word: str, times: int = OFTEN) -> None:
    """Keep requests with this word among their arguments; those that come after a cut are not kept."""
    for _ in range(times):
        proxy.withhold(b"\r\n%b\r\n" % word.encode())


def unique_key_of(lab: Lab, name: str) -> str:
    return str(lab.task(name).lock_state("k").key.replace("x:", "u:", 1))


def wait_until_expired(store: RedisServer, key: str) -> None:
    near = open_store(store.url)
    eventually(lambda: not near.inspect(key).holders, f"no lease on {key}")
    near.close()


@pytest.mark.promise(
    "A task whose lease expired before its body could begin, since the store was away, is not taken for an "
    "old copy of itself, and does not begin beside the next holder",
    name="lease expired before the body began",
    broke=(
        "red before: dropped, and two bodies; explorer: it asks anew like the first time, or does not ask "
        "anew, or keeps its unique key from its own copy"
    ),
    also="the explorer",
)
@on_stages("prefork", brokers=("redis",), lates=(False,))
def test_an_acknowledged_task_whose_lease_expired_before_its_body_could_begin_runs(
    stage: Stage, proxy: Proxy, store: RedisServer, redis_server: RedisServer
) -> None:
    """It had waited in line. The store goes away after the grant, and comes back before the broker does."""
    with Proxy(redis_server.port) as network:
        lab = stage.make_lab(
            SHOP,
            broker_url=f"redis://127.0.0.1:{network.port}/0",
            exclusive_store=store.url,
            exclusive_store_wait=6,
            exclusive_ttl=6,
            task_publish_retry_policy={"max_retries": 1, "interval_start": 0.1, "interval_max": 0.1},
            task_ignore_result=True,
        )
        worker = lab.start_worker("w1", 2, exclusive_store=away(proxy, 20))
        hold(lab, "latest")
        waits = lab.send("latest", "k", "waits")
        worker.wait_for_log(f"[{waits.id}] parked: ")
        withhold(proxy, waits.key)
        lab.open("holder")
        eventually(lambda: proxy.met, "the call after the grant of the lock")
        eventually(lambda: stage.messages_at_the_broker(lab) == 0, "its acknowledgement")
        withhold(network, "LPUSH")
        proxy.cut()
        wait_until_expired(store, lab.task("latest").lock_state("k").key)
        eventually(lambda: network.met, "an attempt to publish it again")
        proxy.restore()
        network.cut()
        worker.wait_for_log(f"task {waits.id} could not be published again and keeps waiting")
        network.restore()
        lab.journal.wait_for("end", tag="waits")
        with store.client() as client:
            stage.assert_nothing_is_left(lab, client)
    assert lab.journal.tags() == ["holder", "waits"]


@pytest.mark.proves("lease expired before the body began")
@pytest.mark.parametrize("name", ["latest", "both"])
@on_stages("prefork", brokers=("redis",))
def test_a_body_does_not_begin_with_a_lease_that_has_expired_while_it_waited_for_its_store(
    stage: Stage, proxy: Proxy, store: RedisServer, name: str
) -> None:
    """Meanwhile another worker, which has not lost the store, runs the next call."""
    lab = stage.make_lab(SHOP, exclusive_store=store.url, exclusive_ttl=6, exclusive_recover=False)
    worker = stage.start_worker(lab, "away", exclusive_store=away(proxy, 20))
    key = lab.task(name).lock_state("k").key
    unique_key = unique_key_of(lab, name)
    withhold(proxy, unique_key)
    first = lab.send(name, "k", "first")
    assert first.key == unique_key
    eventually(lambda: proxy.met, "the call after the grant of the lock")
    stop_consuming(lab, worker, "lab")
    proxy.cut()
    wait_until_expired(store, key)
    stage.start_worker(lab, "near")
    hold(lab, name, "second", unique=None)
    proxy.restore()
    worker.wait_for_log(f"[{first.id}] parked: ")
    lab.open("second")
    lab.journal.wait_for("end", tag="first")
    with store.client() as client:
        stage.assert_nothing_is_left(lab, client)
    assert lab.journal.tags() == ["second", "first"]
    assert lab.journal.most_open(key="k") == 1


@pytest.mark.proves("copies of a superseded run")
@ONCE
def test_a_copy_of_a_run_does_not_begin_after_its_retry_if_the_store_stalls_when_that_begins(
    stage: Stage, proxy: Proxy, store: RedisServer
) -> None:
    lab = stage.make_lab(SHOP, exclusive_store=store.url, exclusive_ttl=600)
    worker = stage.start_worker(lab, slots=3, exclusive_store=away(proxy))
    result = lab.send("slow_end", "k", "tag", True)
    lab.journal.wait_for("start", tag="tag")
    park_behind(result.id, lab, worker)
    lab.open("tag")
    lab.journal.wait_for("sent", tag="retry")
    withhold(proxy, "superseded", times=2)
    lab.app.control.add_consumer("later", reply=True, timeout=60, limit=1)
    lab.journal.wait_for("start", 2, tag="tag")
    proxy.cut()
    proxy.restore()
    lab.open("tag")
    assert result.get(timeout=DEADLINE) == "tag"
    lab.open("end")
    with store.client() as client:
        stage.assert_nothing_is_left(lab, client)
    assert len(lab.journal.events("start")) == 2


@pytest.mark.promise(
    "A child that is replaced releases what the store has not answered before it ends, and leaves to its "
    "parent what the parent owes",
    name="replaced child releases",
    broke=(
        "red before: the key of a skipped run stayed for `queued_ttl`; the child waits for its parent's "
        "releases"
    ),
)
@ONCE
def test_a_child_that_is_replaced_releases_what_the_store_has_not_answered_yet(
    stage: Stage, proxy: Proxy, store: RedisServer
) -> None:
    """The unique key of what was skipped would be held for a day: nothing has begun."""
    lab = stage.make_lab(SHOP, exclusive_store=store.url, exclusive_ttl=600)
    url = away(proxy)
    worker = stage.start_worker(lab, options=("--max-tasks-per-child", "1"), exclusive_store=url)
    hold(lab, "fussy", unique=None)
    (start,) = lab.journal.events("start")
    (other,) = (pid for pid in worker.children if pid != start["pid"])
    key = unique_key_of(lab, "fussy")
    withhold(proxy, key)
    skipped = lab.send("fussy", "k", "skipped")
    assert skipped.key == key
    assert "skipped" in skipped.get(timeout=DEADLINE)
    worker.wait_for_log(f"unique key {key} could not be released; the release is retried")
    before = len(proxy.met)
    eventually(lambda: len(proxy.met) > before + 2 or not is_alive(other), "a second try, or an end")
    proxy.cut()
    proxy.restore()
    eventually(lambda: lab.task("fussy").lock_state("k").unique_holder is None, "a free key")
    lab.open("holder")
    lab.journal.wait_for("end", tag="holder")
    with store.client() as client:
        stage.assert_nothing_is_left(lab, client)


@pytest.mark.promise(
    "A release that the store refuses, since a copy waits, does not count as a success because its answer "
    "was lost: the copy is dropped at the end of its run",
    name="refused release with a lost answer",
    broke="red before, on Redis and on database servers: two bodies",
)
@ONCE
def test_a_copy_is_dropped_though_the_answer_to_the_end_of_its_run_is_lost(
    stage: Stage, proxy: Proxy, store: RedisServer
) -> None:
    """The store refuses that release, since a copy waits: its repetition must not be taken for a success."""
    lab = stage.make_lab(SHOP, exclusive_store=store.url, exclusive_ttl=6)
    worker = stage.start_worker(lab, slots=3, exclusive_store=away(proxy))
    holder = hold(lab, "once")
    park_behind(holder.id, lab, worker)
    proxy.lose(b"\r\nif_no_copy\r\n")
    lab.open("holder", "holder")
    assert holder.get(timeout=DEADLINE) == "holder"
    eventually(lambda: lab.task("once").lock_state("k").unique_holder is None, "a free key")
    with store.client() as client:
        stage.assert_nothing_is_left(lab, client)
    assert proxy.met
    assert lab.journal.tags() == ["holder"]


@pytest.mark.promise(
    "A message that is requeued, since the store did not answer, leaves no run behind that it would wait for",
    broke="red before: it waited for `ttl`; explorer: its unique key is left to no task",
    also="the explorer",
)
@pytest.mark.parametrize("name", ["once", "both"])
@on_stages("prefork", brokers=("redis",))
def test_a_message_that_goes_back_for_want_of_an_answer_does_not_wait_for_a_run_that_has_not_begun(
    stage: Stage, proxy: Proxy, store: RedisServer, name: str
) -> None:
    """The store has granted the unique key to the delivery that was given up."""
    lab = stage.make_lab(SHOP, exclusive_store=store.url, exclusive_ttl=600)
    conf = {"exclusive_store": away(proxy), "exclusive_store_wait": 2}
    worker = stage.start_worker(lab, **conf)
    unique_key = unique_key_of(lab, name)
    for _ in range(OFTEN):
        proxy.lose(b"\r\n%b\r\n" % unique_key.encode())
    sent = lab.send(name, "k", "sent")
    assert sent.key == unique_key
    worker.wait_for_log(f"[{sent.id}] goes back to the broker")
    proxy.restore()
    assert sent.get(timeout=DEADLINE) == "sent"
    with store.client() as client:
        stage.assert_nothing_is_left(lab, client)
    assert lab.journal.tags() == ["sent"]
