"""Workers that are told to go: what they run, and what waits for it, goes on elsewhere; no key stays held."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import celery
import pytest
from celery import signals

from celery_exclusive import Exclusive
from celery_exclusive.core.operations import Release
from celery_exclusive.leases import releaser
from celery_exclusive.messages import courier
from celery_exclusive.worker import heartbeat, reaper, steps
from tests.proxy import Proxy
from tests.servers import RedisServer
from tests.worker.embedded import embedded, memory_app
from tests.worker.lab import Lab, Worker, assert_renewed, disconnect, eventually, wait_until_gone
from tests.worker.message import consume
from tests.worker.stage import Stage, on_stages
from tests.worker.test_endings_outside import (
    OUTSIDE,
    assert_never_two,
    end_of,
    hold,
    hold_plain,
    line_up,
    now,
    received,
    start_of,
)
from tests.worker.versions import leave_out_before, needs_celery

SAYS = {signal.SIGTERM: "Warm shutdown", signal.SIGINT: "Hitting Ctrl+C again"}
WAYS = {
    "warm": [signal.SIGTERM],
    "cold": [signal.SIGQUIT],
    "cold-after-warm": [signal.SIGTERM, signal.SIGQUIT],
    "interrupted-twice": [signal.SIGINT, signal.SIGINT],
    "soft": [signal.SIGQUIT],
}
SOFT = 5
Busy = tuple[Worker, Any, Any]
UNCUT = ("warm", "goes-on")


def busy_workers(stage: Stage, lab: Lab, *ways: str, is_stubborn: bool = False) -> dict[str, Busy]:
    """A worker for each way, and its two bodies: one has the key, after a wait; its twin wants no lock."""
    soft = {"worker_soft_shutdown_timeout": SOFT}
    workers = {
        way: stage.start_worker(
            lab, way, 3, options=("-Q", way), ready=False, **(soft if way == "soft" else {})
        )
        for way in ways
    }
    busy = {}
    for way, worker in workers.items():
        worker.wait_ready()
        name = "brief" if way in UNCUT else "wait"
        hold(lab, f"{way}-before", key=way, queue=way)
        holder = lab.send(name, way, way, True, is_stubborn, options={"queue": way})
        lab.wait_for_line(1, "wait", way)
        lab.open(f"{way}-before")
        lab.journal.wait_for("alive", tag=way)
        busy[way] = (worker, holder, hold_plain(lab, f"{way}-twin", queue=way, is_stubborn=is_stubborn))
    return busy


def prefetch(lab: Lab, worker: Worker, way: str) -> None:
    """Fill its last slot, and let it have two more that want the key: one may not run yet."""
    hold(lab, f"{way}-other", key=f"{way}-other", queue=way)
    tasks = [
        lab.send("wait", way, f"{way}-prefetched", options={"queue": way}),
        lab.send("wait", way, f"{way}-later", options={"queue": way, "countdown": 5}),
    ]
    eventually(lambda: all(received(worker, task) for task in tasks), "both, prefetched")


def tell(worker: Worker, *signals: signal.Signals, says: Mapping[signal.Signals, str] = SAYS) -> int:
    """Send these one after the other; returns when the last was sent."""
    for number in signals[:-1]:
        worker.process.send_signal(number)
        worker.wait_for_log(says[number])
    at = now()
    worker.process.send_signal(signals[-1])
    return at


def assert_each_ran(
    stage: Stage, lab: Lab, way: str, runs: int, holder: Any, twin: Any, *others: str
) -> None:
    """The holder as often as its twin, with Celery's state, and the others once."""
    expected = {way: runs, **{f"{way}-{what}": 1 for what in ("before", *others)}}
    lab.journal.wait_for("start", sum(expected.values()), key=way)
    lab.journal.wait_for("start", runs, tag=f"{way}-twin")
    eventually(lambda: stage.messages_at_the_broker(lab, way) == 0, f"nothing in {way}")
    assert Counter(lab.journal.tags("start", key=way)) == expected
    assert lab.journal.tags("start").count(f"{way}-twin") == runs
    # A retry that nobody sends, or a worker lost: which of them is a race in Celery.
    ends = {"SUCCESS"} if runs == 2 or way in UNCUT else {"RETRY", "FAILURE"}
    eventually(lambda: {holder.state, twin.state} <= ends, f"{ends} after {way}")


@pytest.mark.promise(
    "After a warm, cold or soft shutdown keys go on and tasks run elsewhere; a body that goes on through a "
    "cold one keeps its key",
    name="shutdown",
    broke="locks stopped first; `done` when cut off; the main process releases nothing",
)
@pytest.mark.proves("renewal while the body runs")
@pytest.mark.each_part
@needs_celery("5.5", "soft shutdown, and a cold one that gives back what it cuts off")
@on_stages("prefork")
def test_keys_go_on_and_tasks_run_elsewhere_after_each_way_to_shut_a_worker_down(stage: Stage) -> None:
    lab = stage.make_lab(OUTSIDE, exclusive_ttl=600)
    other = stage.start_worker(lab, "other", 6)
    ways = WAYS if stage.broker == "redis" else ("warm", "cold", "soft")
    busy = busy_workers(stage, lab, *ways)
    for way, (worker, *_) in busy.items():
        prefetch(lab, worker, way)
        line_up(lab, f"{way}-next", key=way)
        consume(lab, other, way)
    told = {way: tell(busy[way][0], *WAYS[way]) for way in ways}
    lab.open("soft-other")  # in time
    for way in sorted({*ways} - {"warm"}):
        bodies = [way, f"{way}-twin", *[f"{way}-other"][: way != "soft"]]
        cut, *_ = [lab.journal.wait_for("told", tag=tag)[0] for tag in bodies]
        lab.open(*bodies)  # for their second runs
        started = start_of(lab, f"{way}-next")["at"]
        row, since = ("soft-shutdown", cut["at"]) if way == "soft" else ("cold-shutdown", told[way])
        stage.note(row, since, started)
    lab.assert_kept("brief", "warm")
    lab.open("warm", "warm-twin", "warm-other")
    stage.note("warm-shutdown", end_of(lab, "warm"), start_of(lab, "warm-next")["at"])
    for way, (worker, *results) in busy.items():
        worker.process.wait(60)
        runs = 2 if stage.late and way != "warm" else 1
        assert_each_ran(stage, lab, way, runs, *results, "next", "prefetched", "later")
        lab.journal.wait_for("start", 1 if way == "soft" else runs, tag=f"{way}-other")
    assert lab.journal.tags("start").count("soft-other") == 1
    stage.assert_nothing_is_left(lab)
    assert_never_two(lab, *ways, *(f"{way}-other" for way in ways))


@pytest.mark.proves("shutdown")
@pytest.mark.each_part
@needs_celery("5.5", "a cold shutdown that may be hurried")
@on_stages("prefork", brokers=("redis",))
def test_a_body_that_goes_on_through_a_cold_shutdown_keeps_its_key_until_it_ends_or_is_killed(
    stage: Stage,
) -> None:
    lab = stage.make_lab(OUTSIDE, exclusive_ttl=600)
    other = stage.start_worker(lab, "other", 4)
    ways = ("goes-on", "killed")
    busy = busy_workers(stage, lab, *ways, is_stubborn=True)
    for way in ways:
        line_up(lab, f"{way}-next", key=way)
        consume(lab, other, way)
        tell(busy[way][0], signal.SIGQUIT)
        lab.journal.wait_for("told", tag=way)
        lab.journal.wait_for("told", tag=f"{way}-twin")
    lab.assert_kept("brief", "goes-on")
    lab.open("goes-on", "goes-on-twin")
    start_of(lab, "goes-on-next")
    killed = busy["killed"][0]
    tell(killed, signal.SIGQUIT)
    killed.wait_for_log("Waiting gracefully")
    stage.note("cold-shutdown", tell(killed, signal.SIGQUIT), start_of(lab, "killed-next")["at"])
    bodies = [
        event["pid"] for tag in ("killed", "killed-twin") for event in lab.journal.events("told", tag=tag)
    ]
    wait_until_gone(*bodies)
    lab.open("killed", "killed-twin")  # for their second runs
    for way, (worker, *results) in busy.items():
        worker.process.wait(60)
        runs = 2 if stage.late and way == "killed" else 1
        assert_each_ran(stage, lab, way, runs, *results, "next")
    stage.assert_nothing_is_left(lab)
    assert_never_two(lab, *ways)


@pytest.mark.promise(
    "A worker with threads that gets a second signal while it waits for them keeps their keys (Python 3.11 "
    "and 3.13)",
    broke="red before on both: the heartbeat ended; Python 3.11 ended the body, too",
)
@pytest.mark.proves("shutdown")
@on_stages("threads", "gevent", "solo", brokers=("redis",), lates=(True,))
def test_in_a_pool_of_one_process_too_a_worker_that_goes_lets_its_keys_go_on(stage: Stage) -> None:
    if stage.pool == "gevent":
        leave_out_before("5.5", "a warm shutdown that gives back nothing that has finished")
    # No thread can be ended: Celery waits for it. Before 5.5 it does not interrupt a solo body either.
    is_awaited = stage.pool == "threads" or (stage.pool == "solo" and celery.VERSION < (5, 5))
    lab = stage.make_lab(OUTSIDE, exclusive_ttl=600)
    other = stage.start_worker(lab, "other", 1)
    told = {}
    # A signal that comes while Celery waits for the threads ends the wait.
    waits = {signal.SIGTERM: "Stopping Pool"}
    colds = ("cold", "cold-after-warm") if stage.pool == "threads" else ("cold",)
    for way in ("warm", *colds):
        worker = stage.start_worker(lab, way, options=("-Q", way, "-l", "DEBUG"))
        hold(lab, way, name="brief" if is_awaited or way == "warm" else "wait", key=way, queue=way)
        line_up(lab, f"{way}-next", key=way)
        consume(lab, other, way)
        told[way] = tell(worker, *WAYS[way], says=waits)
    for way in colds:
        if is_awaited:
            lab.assert_kept("brief", way)
        else:
            lab.journal.wait_for("told", tag=way)
        lab.open(way)
        began = end_of(lab, way) if is_awaited else told[way]
        stage.note("cold-shutdown", began, start_of(lab, f"{way}-next")["at"])
    lab.assert_kept("brief", "warm")
    lab.open("warm")
    stage.note("warm-shutdown", end_of(lab, "warm"), start_of(lab, "warm-next")["at"])
    stage.assert_nothing_is_left(lab)
    assert lab.journal.tags("start", key="warm") == ["warm", "warm-next"]
    assert_never_two(lab, "warm", *colds)


@pytest.fixture
def make_embedded_app() -> Iterator[Callable[..., Any]]:
    """Makes an app for embedded workers, with these settings."""
    apps: list[Any] = []

    def make(**conf: Any) -> Any:
        app = memory_app("embedded", **conf)
        apps.append(app)
        return app

    yield make
    for app in apps:
        disconnect(app)
        app.close()


@pytest.mark.promise(
    "A worker that is embedded in a process that goes on, as `celery.contrib.testing` starts it, ends its "
    "heartbeat and reaper when it stops (threads, solo)",
    broke="red before: both went on until the process ended, and asked the store of the next test",
)
@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_an_embedded_worker_that_is_stopped_talks_to_the_store_no_more(
    start_redis: Callable[..., RedisServer], make_embedded_app: Callable[..., Any], pool: str
) -> None:
    server = start_redis()
    app = make_embedded_app(exclusive_store=server.url, exclusive_reap_period=0.1)

    @app.task(shared=False, exclusive=Exclusive("key"))
    def echo(key: str) -> str:
        return key

    with server.client() as client:
        with embedded(app, pool):
            assert echo.delay("k").get(timeout=60) == "k"
            assert len(client.client_list()) > 1
        eventually(lambda: len(client.client_list()) == 1, "no client but this one")
        assert not client.keys("cx2:{0}:l:*")


@pytest.mark.promise(
    "A worker that stops waits once for its threads, the store and the broker together, and not again when "
    "its process ends",
    name="one farewell",
    broke="red before: up to 10 s for each, and 10 s more at its end",
)
def test_a_worker_that_stops_has_one_farewell_for_all_that_it_waits_for(
    store: RedisServer,
    proxy: Proxy,
    make_embedded_app: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for part in (heartbeat, reaper, releaser, courier):
        monkeypatch.setattr(part, "_FAREWELL", 600)
    monkeypatch.setattr(steps, "_FAREWELL", 0.1)
    url = f"redis://127.0.0.1:{proxy.port}/0?socket_timeout=600"
    app = make_embedded_app(exclusive_store=url, exclusive_reap_period=0.1)

    @app.task(shared=False, exclusive=Exclusive())
    def echo() -> None: ...

    with embedded(app, "threads"):
        echo.delay().get(timeout=60)
        proxy.drop(replies=True)
        app._celery_exclusive.releaser.add(("x=k", Release("id/1", "t", ending="open")))
    proxy.restore()
    eventually(lambda: not app._celery_exclusive.releaser._runs, "the end of the releaser")


@pytest.mark.promise(
    "A task in a thread that outlives its embedded worker keeps its key until it ends; then the heartbeat "
    "and reaper of that worker end, and the next worker's go on",
    broke="the heartbeat stopped with the worker; the next worker's heartbeat stopped",
)
def test_an_embedded_worker_keeps_the_key_of_a_task_that_outlives_it_and_ends_with_it_beside_the_next(
    start_redis: Callable[..., RedisServer], make_embedded_app: Callable[..., Any]
) -> None:
    server, keys = start_redis(), ("first", "second")
    doors, began = ({key: threading.Event() for key in keys} for _ in range(2))
    app = make_embedded_app(exclusive_store=server.url, exclusive_ttl=3)

    @app.task(shared=False, exclusive=Exclusive("key"))
    def hold(key: str) -> None:
        began[key].set()
        assert doors[key].wait(60)

    def run(key: str) -> None:
        hold.delay(key)
        assert began[key].wait(60)

    def assert_kept(key: str) -> None:
        assert_renewed(lambda: hold.lock_state(key).holders[0].remaining)

    with embedded(app, "threads"):
        run("first")
    with embedded(app, "threads"):
        assert_kept("first")
        doors["first"].set()
        eventually(lambda: not _ending(), "its end")
        run("second")
        assert_kept("second")
        doors["second"].set()
    with server.client() as client:
        eventually(lambda: not client.keys("cx2:{0}:l:*"), "free keys")
        eventually(lambda: len(client.client_list()) == 1, "no client but this one")


@pytest.mark.promise(
    "The next embedded worker may begin while the last one of the app still ends",
    broke="red before: the end of the first took the heartbeat from the second",
)
def test_a_worker_that_begins_while_the_last_one_still_ends_renews_its_leases(
    start_redis: Callable[..., RedisServer],
    make_embedded_app: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, keys = start_redis(), ("first", "second")
    doors, began = ({key: threading.Event() for key in keys} for _ in range(2))
    ends, goes_on = threading.Event(), threading.Event()
    app = make_embedded_app(exclusive_store=server.url, exclusive_ttl=3)

    @app.task(shared=False, exclusive=Exclusive("key"))
    def hold(key: str) -> None:
        began[key].set()
        assert doors[key].wait(60)

    def close_slowly() -> None:  # as if the broker took its time
        ends.set()
        assert goes_on.wait(60)

    def run(key: str) -> None:
        hold.delay(key)
        assert began[key].wait(60)

    with embedded(app, "threads") as end:
        run("first")
        end()
        with monkeypatch.context() as patch:
            patch.setattr(app._celery_exclusive.courier, "close", close_slowly)
            doors["first"].set()
            assert ends.wait(60)
        with embedded(app, "threads"):
            goes_on.set()
            eventually(lambda: not _ending(), "the end of the first")
            run("second")
            assert_renewed(lambda: hold.lock_state("second").holders[0].remaining)
            doors["second"].set()


def _ending() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "exclusive-stop"]


@pytest.mark.promise(
    "A task that begins after the end of its embedded worker, and whose key is granted late, keeps it, "
    "also when other workers of the app have come and gone meanwhile",
    broke="red before: the heartbeat ended while it waited for the store",
)
@pytest.mark.parametrize("others", [0, 2])
def test_a_task_that_begins_after_the_end_of_its_embedded_worker_keeps_its_key(
    start_redis: Callable[..., RedisServer], make_embedded_app: Callable[..., Any], others: int
) -> None:
    """And so it does when other workers of its app have come and gone meanwhile."""
    server = start_redis()
    door, began, ended, prefetched = (threading.Event() for _ in range(4))
    app = make_embedded_app(exclusive_store=server.url, exclusive_ttl=3)

    @app.task(shared=False)
    def plain() -> None:
        assert door.wait(60)

    @app.task(shared=False, exclusive=Exclusive())
    def hold() -> None:
        began.set()
        assert ended.wait(60)

    def note(sender: Any, request: Any, **_: Any) -> None:
        if request.name == hold.name:
            prefetched.set()

    signals.task_received.connect(note)
    with server.client() as client, embedded(app, "threads") as end:
        plain.delay()
        hold.delay()
        assert prefetched.wait(60)
        end()
        for _ in range(others):
            with embedded(app, "threads"):
                pass
        client.client_pause(2000)  # while it acquires its key, it holds none
        door.set()
        assert began.wait(60)
        assert_renewed(lambda: hold.lock_state().holders[0].remaining)
        ended.set()
        signals.task_received.disconnect(note)
        eventually(lambda: not client.keys("cx2:{0}:l:*"), "a free key")
        eventually(lambda: len(client.client_list()) == 1, "no client but this one")
