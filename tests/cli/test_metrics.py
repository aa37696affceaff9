"""`celery -A proj locks metrics`: what Prometheus scrapes, and the alert rules and dashboard for it."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from threading import Event
from typing import Any
from urllib.request import urlopen

import pytest
import yaml
from celery.signals import worker_process_init, worker_ready
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from celery_exclusive import Debounce, Exclusive, Unique
from celery_exclusive.contrib.prometheus import LockCollector, count_outcomes
from celery_exclusive.core.key_state import OFFERS_IN_LINE
from celery_exclusive.core.operations import Release
from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.signals import LockOutcome, lock_outcome
from tests.cli.conftest import Desk
from tests.cli.test_terminal import message
from tests.servers import RedisServer
from tests.worker.journal import eventually
from tests.worker.lab import Lab, command

ROOT = Path(__file__).parents[2]
FILES = ROOT / "docs/operating"
NAME = re.compile(r"celery_exclusive_\w+")
Values = dict[tuple[str, ...], float]
"""Values by the name of the metric without its prefix, and the labels `task` and `state`."""


def values(text: str) -> Values:
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {
        (sample.name.removeprefix("celery_exclusive_"), *_labels(sample.labels)): sample.value
        for sample in samples
    }


def _labels(labels: dict[str, str]) -> list[str]:
    return [labels[name] for name in ("task", "state") if name in labels]


def printed(desk: Desk) -> Values:
    done = desk.run("metrics")
    assert done.exit_code == 0, done.output
    return values(done.stdout)


@contextmanager
def listening(lab: Lab) -> Iterator[Callable[[], Values]]:
    """`locks metrics --listen` on a free port; yields a function that scrapes it."""
    words = ("locks", "metrics", "--listen", "127.0.0.1:0")
    with subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", lab.module, *words],
        env=lab.environment,
        cwd=lab.folder,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr
        try:
            lines = iter(process.stderr.readline, "")
            url = next(found[0] for line in lines if (found := re.search(r"http://\S+/metrics", line)))
            yield lambda: values(urlopen(url, timeout=60).read().decode())
        finally:
            process.terminate()


@pytest.mark.promise(
    "Prometheus sees the holders, the waiting tasks, the longest line and the oldest wait of each task, and "
    "when a worker last swept; without --listen one scrape is printed",
    name="metrics",
    broke="aside counted as waiting; the sum of lines as the longest; no sweep seen as a new one: each red",
)
def test_prometheus_scrapes_what_workers_hold_and_what_waits(make_lab: Callable[..., Lab]):
    lab = make_lab(task_acks_late=True, task_reject_on_worker_lost=True)
    lab.start_worker()
    first = lab.send("wait", "k", tag="first", hold=True)
    lab.journal.wait_for("start", tag="first")
    lab.send("wait", "k", tag="second")
    lab.wait_for_line(1, "wait", "k")
    task = "tests.worker.shop.wait"
    with listening(lab) as scrape:
        seen = scrape()
        assert seen["up",] == 1
        assert seen["holders", task, "running"] == 1
        assert seen["waiting_tasks", task] == seen["longest_line_tasks", task] == 1
        assert seen["aside_tasks", task] == seen["dead_holders", task] == seen["damaged_keys", task] == 0
        assert 0 < seen["oldest_wait_seconds", task] < math.inf
        assert 0 <= seen["last_sweep_age_seconds",] < math.inf
        assert seen["waiting_tasks", "tests.worker.shop.skip"] == 0
        once = command(lab, "locks", "metrics")
        assert once.returncode == 0, once.stderr
        assert values(once.stdout).keys() == seen.keys()
        lab.open("first", "second")
        assert first.get(timeout=60) == "first"
        eventually(lambda: scrape()["holders", task, "running"] == 0, "a free key")


@pytest.mark.promise(
    "A scrape of a store that is down or hangs is answered with celery_exclusive_up 0 and no other value, "
    "and later ones go on when it is back",
    name="metrics without a store",
    broke="the last values are kept; the error of the store is raised: each red",
)
@pytest.mark.parametrize("trouble", ["down", "silent"])
def test_a_scrape_says_that_the_store_does_not_answer(
    make_lab: Callable[..., Lab], start_redis: Callable[..., RedisServer], trouble: str
):
    server = start_redis()
    lab = make_lab(exclusive_store=server.url)
    with listening(lab) as scrape:
        assert scrape()["up",] == 1
        server.kill() if trouble == "down" else server.pause()
        assert scrape() == {("up",): 0}
        server.restart() if trouble == "down" else server.resume()
        assert scrape()["up",] == 1


@pytest.mark.promise(
    "A scrape says whether the store grants locks, which a full one does not, and has another epoch when the "
    "store has lost its data",
    broke="writable without a trial; no epoch: each red",
)
def test_a_scrape_tells_a_full_store_and_one_that_has_lost_its_data(
    make_desk: Callable[..., Desk], start_redis: Callable[..., RedisServer]
):
    server = start_redis()
    desk = make_desk(exclusive_store=server.url)
    well = printed(desk)
    assert (well["up",], well["writable",]) == (1, 1)
    with server.client() as client:
        client.config_set("maxmemory", 1)
        full = printed(desk)
        assert (full["up",], full["writable",]) == (1, 0)
        client.config_set("maxmemory", 0)
        again = printed(desk)
        assert (again["writable",], again["epoch",]) == (1, well["epoch",])
        assert list(desk.store.scan()) == [], "the lock that was tried"
        client.flushall()
    assert printed(desk)["epoch",] != well["epoch",]


@pytest.mark.promise(
    "The processes of an app count the outcomes of its tasks for Prometheus; the rare ones begin at 0",
    broke="a label for each name; no 0: each red",
)
@pytest.mark.usefixtures("no_receivers")
def test_outcomes_are_counted_by_the_tasks_of_the_app(desk: Desk):
    @desk.app.task(name="desk.load", shared=False, exclusive=Exclusive())
    def load() -> None: ...

    registry = CollectorRegistry()
    count_outcomes(desk.app, registry)
    load.apply()
    for name in ("desk.forged", None):
        lock_outcome.send(name, outcome=LockOutcome("lost", name, "id", "x:k"))

    def counted(task: str, kind: str) -> float | None:
        labels = {"task": task, "outcome": kind}
        return registry.get_sample_value("celery_exclusive_outcomes_total", labels)

    assert [counted("desk.load", kind) for kind in ("acquired", "released", "recovered")] == [1, 1, 0]
    assert [counted(task, "lost") for task in ("desk.load", "other", "-")] == [0, 1, 1]
    assert counted("desk.forged", "lost") is None


@pytest.mark.promise(
    "Calls that wait since a rate is used up are counted for Prometheus, and no others",
    broke="the reason of a call that its publisher puts into the line: red, in line; each wait counted: red",
)
@pytest.mark.usefixtures("no_receivers")
def test_calls_that_wait_for_a_rate_are_counted(desk: Desk):
    rated = Exclusive(limit=None, rate="1/h", order="published")

    @desk.app.task(name="desk.load", shared=False, exclusive=rated)
    def load() -> None: ...

    @desk.app.task(name="desk.sync", shared=False, exclusive=Exclusive(order="published"))
    def sync() -> None: ...

    registry = CollectorRegistry()
    count_outcomes(desk.app, registry)
    desk.acquire(load.lock_state().key, "run", limit=rated.most, rates=rated.rates)
    desk.acquire(sync.lock_state().key, "run")
    for task in (load, sync, load):
        task.delay()

    def counted(task: str) -> float | None:
        return registry.get_sample_value("celery_exclusive_rate_waits_total", {"task": task})

    assert (counted("desk.load"), counted("desk.sync")) == (2, 0)


@pytest.mark.promise(
    "The rare outcomes of each task with options are 0 as soon as its worker has started, so that the first "
    "is an increase for Prometheus",
    broke="red before: the zeros came with the first outcome",
)
@pytest.mark.usefixtures("no_receivers")
@pytest.mark.parametrize("has_started", [worker_ready, worker_process_init])
def test_rare_outcomes_are_zero_when_a_worker_has_started(
    desk: Desk, has_started: Any, monkeypatch: pytest.MonkeyPatch
):
    @desk.app.task(name="desk.load", shared=False, exclusive=Exclusive())
    def load() -> None: ...

    for signal in (worker_ready, worker_process_init):
        monkeypatch.setattr(signal, "receivers", [])
    registry = CollectorRegistry()
    count_outcomes(desk.app, registry)
    has_started.send(None)
    for kind in ("recovered", "lost", "unprotected", "given_up"):
        labels = {"task": "desk.load", "outcome": kind}
        assert registry.get_sample_value("celery_exclusive_outcomes_total", labels) == 0


@pytest.mark.proves("metrics without a store")
def test_one_scrape_is_printed_though_the_store_is_down(make_desk: Callable[..., Desk]):
    assert printed(make_desk(exclusive_store="redis://127.0.0.1:1")) == {("up",): 0}


@pytest.mark.proves("metrics")
def test_each_state_of_a_key_is_counted_by_its_task(desk: Desk):
    @desk.app.task(name="desk.load", shared=False, exclusive=Exclusive("url", limit=2))
    def load(url: str) -> None: ...

    @desk.app.task(name="desk.idle", shared=False, unique=Unique())
    def idle() -> None: ...

    @desk.app.task(name="desk.render", shared=False, unique=Debounce("doc", wait=600, max_wait=3600))
    def render(doc: int) -> None: ...

    assert printed(desk)["last_sweep_age_seconds",] == math.inf
    hash_a, hash_b = "a" * 32, "b" * 32
    desk.store.reap()
    desk.acquire(f"x:desk.load:{hash_a}", "1/p", limit=2)
    desk.acquire(f"x:desk.load:{hash_a}", "2/p", limit=2)
    desk.pass_time(5)
    for id in ("3/p", "4/p"):
        desk.acquire(f"x:desk.load:{hash_a}", id, limit=2, message=message(id, "x:desk.load"))
    desk.acquire(f"x:desk.load:{hash_b}", "5/p", limit=1)
    desk.acquire(f"x:desk.load:{hash_b}", "6/p", limit=1, message=message("6/p", "x:desk.load"))
    desk.acquire("x=repo:17", "lock:web1:812")
    desk.acquire("x:other.app", "7/p")
    render.delay(1)
    desk.pass_time(7)
    seen = printed(desk)
    assert seen["holders", "desk.load", "running"] == 3
    assert seen["waiting_tasks", "desk.load"] == 3
    assert seen["longest_line_tasks", "desk.load"] == 2
    assert seen["oldest_wait_seconds", "desk.load"] == 7
    assert seen["waiting_tasks", "desk.render"] == 1
    assert seen["oldest_wait_seconds", "desk.render"] == 0, "an open window waits for calls"
    assert seen["holders", "-", "running"] == seen["holders", "other", "running"] == 1
    assert seen["holders", "desk.idle", "queued"] == 0
    assert seen["last_sweep_age_seconds",] == 12


@pytest.mark.proves("metrics")
def test_tasks_aside_and_dead_holders_are_counted_apart(desk: Desk):
    desk.acquire("x:k", "a/p")
    for id in ("b/p", "c/p"):
        desk.acquire("x:k", id, message=message(id[0], "x:k"))
    desk.store.apply("x:k", Release("a/p", "token"))
    for _ in range(OFFERS_IN_LINE):
        desk.pass_time(700)
        desk.store.reap()
    desk.acquire("x:dead", "d/p", recovers=True, at_once=True, message=message("d", "x:dead"))
    desk.pass_time(601)
    seen = printed(desk)
    assert (seen["waiting_tasks", "other"], seen["aside_tasks", "other"]) == (1, 1)
    assert (seen["dead_holders", "other"], seen["holders", "other", "running"]) == (1, 1)


@pytest.mark.promise(
    "Prometheus sees how many keys are paused or held back, idle ones, too",
    broke="red before; a lower limit counted as a pause: red",
)
def test_paused_keys_and_keys_that_are_held_back_are_counted(desk: Desk):
    assert printed(desk)["paused_keys",] == 0
    desk.acquire("x=held", "1/p")
    for words in (("pause", "x=idle"), ("hold", "x=held", "30s"), ("limit", "x=other", "4")):
        assert desk.run(*words).exit_code == 0
    assert printed(desk)["paused_keys",] == 2
    desk.pass_time(31)
    assert printed(desk)["paused_keys",] == 1
    desk.run("resume", "x=idle")
    assert printed(desk)["paused_keys",] == 0


@pytest.mark.proves("metrics")
def test_a_damaged_key_is_counted_beside_the_others(
    make_desk: Callable[..., Desk], redis_server: RedisServer, redis_url: str
):
    desk = make_desk(exclusive_store=redis_url)
    desk.acquire("x:fine", "1/p")
    with redis_server.client() as client:
        client.hset("cx2:{0}:l:x:odd", mapping={"": "no numbers"})
    seen = printed(desk)
    assert (seen["damaged_keys", "other"], seen["holders", "other", "running"]) == (1, 1)


@pytest.mark.promise(
    "Labels are names of the app's tasks, at most 200 of them: those with the most waiting calls. Names that "
    "other programs wrote are counted as one, after all own tasks",
    name="labels of metrics",
    broke="each name a label; the first 200 by name; forged names before idle tasks: each red",
)
@pytest.mark.parametrize("name", ['a"} 1\nforged{x="', "a;touch${IFS}x;", "\udcff", "{}", "other"])
def test_a_hostile_name_is_no_label(desk: Desk, name: str):
    desk.acquire(f"x:{name}", "1/p")
    seen = printed(desk)
    assert {key[1] for key in seen if key[0] == "holders"} == {"other"}
    assert seen["holders", "other", "running"] == 1
    assert {key[0] for key in seen} == {name.removeprefix("celery_exclusive_") for name in exported()}


@pytest.mark.proves("labels of metrics")
def test_of_more_than_two_hundred_tasks_those_with_the_fewest_waiting_are_counted_as_one(desk: Desk):
    def body() -> None: ...

    for number in range(250):
        desk.app.task(body, name=f"task{number:03}", shared=False, exclusive=Exclusive())
        desk.acquire(f"x:task{number:03}", "1/p")
        desk.acquire(f"x:forged{number:03}", "1/p")
        desk.acquire(f"x:forged{number:03}", "2/p", message=message("2/p", "x:forged"))
    desk.acquire("x:task249", "2/p", message=message("2/p", "x:task249"))
    seen = printed(desk)
    running = {key[1]: value for key, value in seen.items() if key[0] == "holders" and key[2] == "running"}
    assert len(running) == 201
    assert running["other"] == 50 + 250
    assert sum(running.values()) == 500
    assert seen["waiting_tasks", "task249"] == 1


@pytest.mark.promise(
    "Scrapes at once take one look at the keys, which serves the next seconds, too: for nine times as "
    "long as it has taken. Whether the store answers is asked for each",
    broke="no lock; a look for each scrape; up of the last look: each red",
)
def test_scrapes_at_once_take_one_look(desk: Desk):
    looks, has_begun, may_end = [], Event(), Event()
    scan = desk.store._store.scan

    def slow_scan() -> Iterator[str]:
        looks.append(list(scan()))
        has_begun.set()
        assert may_end.wait(60)
        return iter(looks[-1])

    desk.store._store.scan = slow_scan
    collector = LockCollector(desk.app)
    with ThreadPoolExecutor(4) as pool:
        scrapes = [pool.submit(collector.collect) for _ in range(4)]
        assert has_begun.wait(60)
        eventually(lambda: waiting_for(collector) == 3, "three scrapes wait")
        desk.acquire("x:late", "1/p")
        may_end.set()
        assert all("other" not in tasks_in(scrape.result(60)) for scrape in scrapes)
    assert looks == [[]]
    collector._pause_until = 0
    assert "other" in tasks_in(collector.collect())
    desk.store._store.scan = away
    collector._pause_until = 0
    found = collector.collect()
    assert "other" in tasks_in(found), "what the last look has found goes on"
    assert [it.samples[0].value for it in found if it.name == "celery_exclusive_scanned_ratio"] == [0]
    collector._pause_until, collector._looked = 0, -math.inf
    assert not tasks_in(collector.collect()), "and no longer than ten minutes"
    collector._pause_until = math.inf
    desk.store._store.times = away
    (up,) = collector.collect()
    assert [sample.value for sample in up.samples] == [0]


def away() -> None:
    raise StoreUnavailable("away")


def waiting_for(collector: LockCollector) -> int:
    """How many threads have asked, and wait for the lock of the collector."""
    frames = sys._current_frames().values()
    return sum(frame.f_code is LockCollector.collect.__code__ for frame in frames)


def tasks_in(families: list[object]) -> set[str]:
    samples = (sample for family in families for sample in family.samples)  # type: ignore[attr-defined]
    return {sample.labels["task"] for sample in samples if "task" in sample.labels}


def test_a_process_with_metrics_of_its_own_registers_the_collector_without_a_look(desk: Desk):
    from prometheus_client import CollectorRegistry, generate_latest

    registry, looks = CollectorRegistry(), []
    scan = desk.store._store.scan
    desk.store._store.scan = lambda: (looks.append(1), scan())[1]
    registry.register(LockCollector(desk.app))
    assert not looks
    assert values(generate_latest(registry).decode())["up",] == 1
    assert looks == [1]


def test_without_prometheus_client_the_command_names_the_extra(desk: Desk, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    done = desk.run("metrics")
    assert done.exit_code == 1
    assert "pip install 'celery-exclusive[prometheus]'" in done.stderr


def test_a_store_that_cannot_list_its_keys_has_no_metrics(make_desk: Callable[..., Desk]):
    done = make_desk(exclusive_store="memcached://127.0.0.1:1").run("metrics")
    assert done.exit_code == 1
    assert "cannot list its locks" in done.stderr


@pytest.mark.parametrize("address", ["9809", "localhost", "localhost:http", "::1:9809", "localhost:65536"])
def test_a_wrong_address_is_wrong_usage(desk: Desk, address: str):
    done = desk.run("metrics", "--listen", address)
    assert done.exit_code == 2
    assert "HOST:PORT" in done.stderr


def test_an_address_in_use_is_named(desk: Desk, redis_server: RedisServer):
    done = desk.run("metrics", "--listen", f"127.0.0.1:{redis_server.port}")
    assert done.exit_code == 1
    assert f"--listen 127.0.0.1:{redis_server.port}" in done.stderr


@pytest.mark.promise(
    "The alert rules and the dashboard that come with the library use the names of its metrics, and each "
    "metric is in one of them",
    name="alert rules",
    broke="a metric renamed: red",
    figure="by hand: `promtool check rules` of Prometheus 2.42 finds no fault",
)
def test_alert_rules_and_dashboard_use_exported_metrics():
    alerts = yaml.safe_load((FILES / "alerts.yml").read_text())
    rules = [rule for group in alerts["groups"] for rule in group["rules"]]
    assert all({"alert", "expr", "for", "labels", "annotations"} == rule.keys() for rule in rules)
    board = json.loads((FILES / "grafana.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    used = set(NAME.findall(" ".join([*(rule["expr"] for rule in rules), *queries])))
    assert used - {"celery_exclusive_outcomes_total"} == exported()


@pytest.mark.promise(
    "The manifests of the docs are YAML: their probes tell a worker that sends heartbeats from one that does "
    "not, and their queries use the names of the metrics",
    broke="a probe without its quotes: red; a metric renamed: red",
)
def test_manifests_of_the_docs_work(tmp_path: Path):
    found: dict[str, Any] = {}
    for page in ("kubernetes", "monitor"):
        text = (ROOT / f"docs/how-to/{page}.md").read_text()
        blocks = re.findall(r"^(?: {4}.+\n)+", text, re.MULTILINE)
        for block in (it for it in blocks if re.match(r" {4}\w+:\s", it)):
            found |= yaml.safe_load(dedent(block))
    assert found.keys() == {
        "readinessProbe", "livenessProbe", "command", "terminationGracePeriodSeconds", "triggers",
        "scrape_configs",
    }  # fmt: skip
    assert isinstance(found["terminationGracePeriodSeconds"], int)
    assert {type(value) for trigger in found["triggers"] for value in trigger["metadata"].values()} == {str}
    queries = [trigger["metadata"].get("query", "") for trigger in found["triggers"]]
    assert set(NAME.findall(" ".join(queries))) < exported()
    alive = tmp_path / "alive"

    def lives() -> bool:
        *shell, script = found["livenessProbe"]["exec"]["command"]
        return subprocess.run([*shell, script.replace("/tmp/alive", str(alive))], check=False).returncode == 0

    assert not lives()
    alive.touch()
    assert lives()
    os.utime(alive, (0, 0))
    assert not lives()


@pytest.mark.proves("alert rules")
def test_alert_rules_and_dashboard_are_in_the_source_package(tmp_path: Path):
    subprocess.run(["uv-build", "build-sdist", tmp_path], cwd=ROOT, check=True, capture_output=True)
    (package,) = tmp_path.iterdir()
    names = subprocess.run(["tar", "tzf", package], check=True, capture_output=True, text=True).stdout
    assert all(f"docs/operating/{file.name}\n" in names for file in FILES.iterdir())


def exported() -> set[str]:
    class NoApp:
        pass

    return {family.name for family in LockCollector.describe(NoApp())}  # type: ignore[arg-type]
