"""`celery -A proj locks doctor`: findings about an installation, and their fixes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import Any
from unittest.mock import ANY

import pytest
from redis import Redis

from celery_exclusive import Exclusive
from celery_exclusive.core.operations import Release
from celery_exclusive.core.records import SECOND
from celery_exclusive.errors import docs_page
from celery_exclusive.messages.header import HEADER, Header
from celery_exclusive.messages.stored import StoredMessage
from celery_exclusive.operate.consumers import Consumers
from celery_exclusive.stores.workers import WorkerRecord
from celery_exclusive.worker.steps import own_record
from tests.cli.conftest import Desk
from tests.cli.test_terminal import message
from tests.servers import RedisServer
from tests.worker.journal import eventually
from tests.worker.lab import Lab, command

WORKER = WorkerRecord(0x1A2B, "celery@web1", 4711, "web1", "0.0.9", 1_800_000_000)
Findings = dict[str, list[tuple[str, str, str]]]


def findings(text: str) -> Findings:
    found: Findings = {}
    for line in text.splitlines():
        record = json.loads(line)
        assert record.keys() == {"name", "level", "finding", "fix"}
        found.setdefault(record["name"], []).append((record["level"], record["finding"], record["fix"]))
    return found


def examined(lab: Lab, *words: str, code: int = 0, **conf: Any) -> Findings:
    done = command(lab, "locks", "doctor", "--json", *words, **conf)
    assert done.returncode == code, done.stdout + done.stderr
    return findings(done.stdout)


@pytest.mark.promise(
    "`locks doctor` says what is wrong with an installation and how to mend it: settings, private names, "
    "order, broker, queues that no worker consumes, store, clock, sweeps, releases, durability; it exits "
    "with 1 for a problem, with --strict also for a warning",
    name="locks doctor",
    broke="the last sweep read after the check; queues of no worker ignored; exit 0 for a problem: each red",
)
def test_an_installation_is_healthy_while_its_worker_runs_and_not_without(make_lab: Callable[..., Lab]):
    lab = make_lab(task_acks_late=True, task_reject_on_worker_lost=True)
    worker = lab.start_worker()
    worker.wait_for_commands()
    found = examined(lab)
    assert [level for level, *_ in found["store"]] == ["ok", "ok"]
    assert f"{worker.name} pid {worker.pid}" in found["sweeps"][0][1]
    assert (found["sweeps"][0][0], found["clock"][0][0], found["broker"][0][0]) == ("ok", "ok", "ok")
    assert found["queues"][0][0] == "ok", found["queues"]
    assert "published" in found["order"][0][1]
    assert "releases" not in found
    ((level, finding, _),) = found["durability"]
    assert (level, "writes nothing to disk" in finding) == ("warning", True)
    assert examined(lab, "--strict", code=1).keys() == found.keys()

    worker.stop()
    elsewhere = examined(lab, exclusive_prefix="elsewhere", code=1)
    ((level, finding, fix),) = elsewhere["sweeps"]
    assert (level, "no sweep is known" in finding, "start a worker" in fix) == ("problem", True, True)
    assert elsewhere["queues"][0][0] == "warning"


@pytest.mark.proves("locks doctor")
def test_a_queue_that_no_worker_consumes_is_a_warning(make_lab: Callable[..., Lab]):
    lab = make_lab()
    worker = lab.start_worker()
    worker.wait_for_commands()
    routes = {"tests.worker.shop.wait": {"queue": "for\x1bgotten"}}
    eventually(lambda: examined(lab)["queues"][0][0] == "ok", "a worker that answers")
    ((level, finding, fix),) = examined(lab, task_routes=routes)["queues"]
    assert (level, "tests.worker.shop.wait" in finding) == ("warning", True)
    assert "-Q for\\x1bgotten" in fix
    free = command(lab, "locks", "why", "tests.worker.shop.wait", "other", task_routes=routes)
    assert (free.returncode, free.stdout.startswith("FREE: ")) == (1, True)
    assert "But no worker consumes its usual queue for\\x1bgotten" in free.stdout

    lost = lab.send("wait", "k", tag="lost", options={"queue": "gone"})
    ((level, finding, _),) = examined(lab)["lines"]
    assert level == "warning"
    assert "consumes queue gone, and 1 tasks wait in lines of it, as for x:tests." in finding
    why = command(lab, "locks", "why", lost.id)
    assert (why.returncode, why.stdout.startswith("QUEUED: ")) == (1, True)
    assert "But no worker consumes queue gone" in why.stdout
    assert why.stdout.splitlines()[1].endswith("control add_consumer gone")
    dropped = command(lab, "locks", "drop", "--task", "tests.worker.shop.wait", "--to", "f", "--yes")
    assert (dropped.returncode, "dropped 1 tasks" in dropped.stdout) == (0, True)
    put = command(lab, "locks", "put", "f", "--json")
    assert put.returncode == 0
    assert json.loads(put.stdout)["problems"] == [
        "no worker consumes queue gone: tasks that were put wait until one does"
    ]
    worker.stop()
    store = lab.app._celery_exclusive.store  # type: ignore[attr-defined]
    for record in (it for its in store.workers().values() for it in its):
        store.forget_worker(record)  # as a minute later
    why = command(lab, "locks", "why", lost.id)
    assert (why.returncode, "But no worker has answered within a second" in why.stdout) == (1, True)
    assert why.stdout.splitlines()[1].endswith("worker -Q gone")


@pytest.mark.promise(
    "`locks doctor` compares the workers that answer with its own process: tasks with other options, tasks "
    "that a worker of their queue does not know, and a worker of their queue that uses another store",
    broke="only whether a task has options compared; workers of other queues, too: each red",
)
def test_workers_whose_tasks_or_store_differ_are_found(make_lab: Callable[..., Lab], tmp_path: Path):
    lab = make_lab(module="tests.worker.shop_deploy_old")
    old = lab.start_worker("old", 1)
    reports = lab.start_worker("reports", 1, task_default_queue="reports", exclusive_prefix="reports")
    lab.module = "tests.worker.shop"
    lost = lab.start_worker("lost", 1, exclusive_store=f"sqlite:///{tmp_path}/locks.db")

    def compared(module: str, level: str, code: int) -> dict[str, list[str]]:
        lab.module = module
        found = examined(lab, code=code)
        assert found["workers"][0][0] == level
        return {name: [finding for _, finding, _ in found[name]] for name in ("options", "workers")}

    for worker in (old, reports, lost):
        worker.wait_for_commands()
    found = compared("tests.worker.shop_deploy_new", "problem", 1)
    assert len(found["options"]) == 2
    (unknown,) = (text for text in found["options"] if text.startswith(f"{lost.name} consumes the queue of"))
    assert "deploy." in unknown
    (other,) = (text for text in found["options"] if text.startswith(f"{old.name} has "))
    assert other.endswith("and 8 more tasks, and this process exclusive=Exclusive('key', limit=2)"), other
    (stranger,) = found["workers"]
    assert stranger.startswith(f"{lost.name} consumes queue lab, and is no worker of this store")
    lost.stop()
    assert compared("tests.worker.shop_deploy_old", "ok", 0) == {"options": [ANY], "workers": [ANY]}


@pytest.mark.promise(
    "`locks doctor` warns of a worker that has an `exclusive_secret` where its own process has none, and the "
    "other way round. No secret, and no hash of one, leaves the worker",
    broke="no such finding, as before; only workers with a secret compared: each red",
)
def test_a_secret_that_some_processes_lack_is_a_warning(make_lab: Callable[..., Lab]):
    secret, lab = "a secret of a worker", make_lab()
    signing = lab.start_worker("signing", 1, exclusive_secret=secret)
    plain = lab.start_worker("plain", 1)
    for worker in (signing, plain):
        worker.wait_for_commands()
    fix = f"set it to the same string in all processes: see {docs_page('how-to/security')}"
    text = f"{signing.name} has an exclusive_secret, and this process has none"
    assert examined(lab)["secret"] == [("warning", text, fix)]
    text = f"{plain.name} has no exclusive_secret, and this process has one"
    assert examined(lab, exclusive_secret=secret)["secret"] == [("warning", text, fix)]
    assert secret not in str(lab.app.control.inspect().stats())
    plain.stop()
    assert [level for level, *_ in examined(lab, exclusive_secret=secret)["secret"]] == ["ok"]


@pytest.mark.proves("locks doctor")
def test_a_setting_that_cannot_be_read_hides_no_other_finding(make_lab: Callable[..., Lab]):
    found = examined(make_lab(), worker_pool="no_such_pool", code=1)
    ((level, finding, _),) = found["settings"]
    assert (level, "no_such_pool" in finding) == ("problem", True)
    assert found["store"][0][0] == "ok"


@pytest.mark.proves("locks doctor")
@pytest.mark.parametrize("trouble", ["down", "silent"])
def test_all_but_the_store_is_examined_while_the_store_is_down(
    make_lab: Callable[..., Lab], start_redis: Callable[..., RedisServer], trouble: str
):
    server = start_redis()
    lab = make_lab(exclusive_store=server.url)
    server.kill() if trouble == "down" else server.pause()
    found = examined(lab, code=3)
    names = {"settings", "fast parts", "order", "broker", "queues", "results", "store"}
    assert names == found.keys()
    assert found["store"][0][0] == "problem"
    if trouble == "silent":
        server.resume()


@pytest.mark.proves("locks doctor")
def test_a_broker_that_is_down_hides_no_finding_about_the_store(make_lab: Callable[..., Lab], redis_url: str):
    found = examined(make_lab(exclusive_store=redis_url), broker_url="redis://127.0.0.1:1", code=1)
    assert found["broker"][0][0] == "problem"
    assert found["store"][0][0] == "ok"
    assert "not one Redis database" in found["order"][0][1]


@pytest.mark.promise(
    "`locks doctor` counts the locks that celery-once, celery-singleton and celery-heimdall have in Redis",
    broke="celery-once's own Redis not asked",
)
def test_locks_of_other_packages_are_a_warning(
    make_desk: Callable[..., Desk], redis_url: str, start_redis: Callable[..., RedisServer]
):
    once = start_redis()
    with Redis.from_url(redis_url) as results, once.client() as other:
        results.mset({"SINGLETONLOCK_a": 1, "qo": 1})
        other.mset({"qo_send_user-7": 1, "qo_send_user-8": 1})
    desk = make_desk(result_backend=redis_url, ONCE={"settings": {"url": once.url}})
    found = findings(desk.run("doctor", "--json").stdout)["old locks"]
    assert [(level, text) for level, text, _ in found] == [
        ("warning", "there are 2 locks of celery-once in Redis"),
        ("warning", "there are 1 locks of celery-singleton in Redis"),
    ]
    assert "old locks" not in findings(make_desk().run("doctor", "--json").stdout)


@pytest.mark.promise(
    "`locks doctor` finds a problem where workers would not start, since the prefix belongs to another "
    "broker, in the same words, and keeps the prefix for no broker",
    also="`kit::test_a_look_at_the_owner_of_the_namespace_keeps_it_for_no_broker`",
    broke="no such check: exit 0, as before; the prefix kept by the check: red",
)
@pytest.mark.parametrize("kind", ["redis", "sqlite"])
def test_a_prefix_of_another_broker_is_a_problem(
    make_desk: Callable[..., Desk], request: pytest.FixtureRequest, tmp_path: Path, kind: str
):
    url = f"sqlite:///{tmp_path}/locks.db" if kind == "sqlite" else request.getfixturevalue(f"{kind}_url")
    desk = make_desk(exclusive_store=url, exclusive_prefix=f"of{token_hex(4)}")
    free = findings(desk.run("doctor", "--json").stdout)["owner"]
    assert [level for level, *_ in free] == ["ok"]
    assert desk.store.keep_namespace("amqp://other//", 60 * SECOND, WORKER) == "amqp://other//"
    done = desk.run("doctor", "--json")
    ((level, finding, _),) = findings(done.stdout)["owner"]
    assert (done.exit_code, level) == (1, "problem")
    assert "belongs to the workers of broker amqp://other//, and the broker of this app is" in finding
    assert "exclusive_broker_id='amqp://other//'" in finding


@pytest.mark.promise(
    "`locks doctor` warns of a limit or a pause of an operator that hides a higher limit of the code while "
    "tasks wait, and of a waiting task that costs more than a limit or a rate of its key",
    broke="keys without waiting tasks warned of, too; the override not compared with the code's limit; the "
    "cost not read from the store: each red",
)
@pytest.mark.parametrize("kind", ["redis", "sqlite"])
def test_a_limit_that_hides_the_code_and_a_task_that_is_too_dear_are_warnings(
    make_desk: Callable[..., Desk], request: pytest.FixtureRequest, tmp_path: Path, kind: str
):
    url = f"sqlite:///{tmp_path}/locks.db" if kind == "sqlite" else request.getfixturevalue(f"{kind}_url")
    desk = make_desk(exclusive_store=url, exclusive_prefix=f"of{token_hex(4)}")

    def checks(name: str) -> list[tuple[str, str]]:
        found = findings(desk.run("doctor", "--json").stdout).get(name, [])
        return [(level, finding) for level, finding, _ in found]

    def wait(key: str, id: str, limit: int, **more: Any) -> None:
        desk.acquire(key, f"{id}/p", limit=limit, message=message(id, key), **more)

    assert checks("limits") == [("ok", "no operator has set a limit")]
    for name in ("lower", "paused", "higher", "busy", "idle"):
        desk.run("limit", f"x={name}", "30") if name == "higher" else desk.run("limit", f"x={name}", "4")
    desk.run("pause", "x=paused", "--reason", "vendor is down")
    desk.acquire("x=busy", "busy/p", limit=25)
    for key in ("x=lower", "x=paused", "x=higher"):
        for number in range(31 if key == "x=higher" else 5):
            wait(key, f"{key[2]}{number}", 25)
    found = checks("limits")
    assert {finding[2:4]: level for level, finding in found} == {
        "lo": "warning",
        "pa": "warning",
        "hi": "ok",
        "bu": "ok",
        "id": "ok",
    }
    (lower, paused) = sorted(finding for level, finding in found if level == "warning")
    assert lower.startswith("x=lower: limit 4 set by ")
    assert lower.endswith("; the code allows 25, and 1 wait")
    assert "paused by " in paused
    assert paused.endswith(": vendor is down; the code allows 25, and 5 wait")
    assert not checks("costs")

    for key, most in (("x=dear", {"limit": 3}), ("x=rate", {"limit": 9, "rates": ((2, 60 * SECOND),)})):
        desk.acquire(key, f"{key}/p", **most)
        wait(key, f"first of {key}", **most, cost=most["limit"])
    wait("x=fits", "a", 3, cost=2)
    wait("x=fits", "b", 3, cost=3)
    found = checks("costs")
    assert [level for level, _ in found] == ["warning"]
    assert found[0][1].startswith("x=rate: first of x=rate in line costs 9 units, and the key allows 2: ")
    desk.run("limit", "x=dear", "2")
    assert sorted(finding[:6] for _, finding in checks("costs")) == ["x=dear", "x=rate"]


@pytest.mark.promise(
    "`locks doctor` warns of a busy key whose latest caller gave another rate than a task here",
    broke="idle keys warned of, too; the rates of the tasks not compared with each other: each red",
)
def test_another_rate_of_the_latest_caller_is_a_warning(desk: Desk):
    def declare(name: str, rate: str | None) -> None:
        @desk.app.task(name=name, shared=False, exclusive=Exclusive(key="api", limit=9, rate=rate))
        def body() -> None: ...

    def call(id: str, key: str = "x=api", rate: int = 5) -> None:
        desk.acquire(key, id, limit=9, rates=((rate, SECOND),))

    def rates() -> list[tuple[str, str]]:
        found = findings(desk.run("doctor", "--json").stdout).get("rates", [])
        return [(level, finding) for level, finding, _ in found]

    declare("desk.ask", "5/s")
    call("a")
    call("b", "x=other", 6)
    assert rates() == []
    call("c", rate=6)
    ((level, finding),) = rates()
    assert (level, finding) == (
        "warning",
        "x=api: its latest caller gave 6 per 1s, and here desk.ask has rate='5/s': each call sets its own",
    )
    call("d")
    declare("desk.late", None)
    ((_, finding),) = rates()
    assert "here desk.ask has rate='5/s', desk.late has rate=None: each" in finding
    for id in "acd":
        desk.store.apply("x=api", Release(id, "token"))
    assert rates() == []


@pytest.mark.proves("locks doctor")
def test_another_release_of_a_worker_that_answers_is_a_warning(desk: Desk):
    desk.store.keep_namespace("broker", 60 * SECOND, WORKER)
    name = WORKER.nodename
    for pid, levels in ((WORKER.pid, ["warning"]), (WORKER.pid + 1, [])):
        consumers = Consumers({name: set()}, {}, {name: pid}, {})
        found = [
            check for check in consumers.compare_store(desk.app._celery_exclusive) if check.name == "releases"
        ]
        assert [check.level for check in found] == levels
        assert all("0.0.9" in check.finding for check in found)


@pytest.mark.proves("locks doctor")
@pytest.mark.parametrize("number", [WORKER.number - 1, WORKER.number + 1])
def test_the_release_of_a_restarted_container_is_the_newest(desk: Desk, number: int):
    restarted = replace(own_record(WORKER.nodename), number=number, pid=WORKER.pid, since=WORKER.since + 1)
    for record in (WORKER, restarted):
        desk.store.keep_namespace("broker", 60 * SECOND, record)
    consumers = Consumers({WORKER.nodename: set()}, {}, {WORKER.nodename: WORKER.pid}, {})
    found = consumers.compare_store(desk.app._celery_exclusive)  # type: ignore[attr-defined]
    assert [check.name for check in found] == ["workers"]


@pytest.mark.proves("locks doctor")
def test_lines_beyond_the_first_thousand_are_not_said_to_have_workers(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("celery_exclusive.operate.consumers._LINES", 2)
    consumers = Consumers({WORKER.nodename: {"feeds"}}, {}, {}, {})
    for number, lines in ((1, "1"), (2, "the first 2"), (3, "the first 2")):
        desk.acquire(f"x:{number}", "holder/1")
        headers = {"id": "waits", "task": "t", HEADER: Header("p", f"x:{number}").write()}
        stored = StoredMessage(b"[[], {}, {}]", "application/json", "utf-8", headers, {}, "", "feeds")
        desk.acquire(f"x:{number}", "waits/1", message=stored.dump())
        (found,) = consumers.compare_waiting(desk.app._celery_exclusive)  # type: ignore[attr-defined]
        assert (found.level, found.finding) == ("ok", f"the queues of {lines} lines have workers")


@pytest.mark.proves("locks doctor")
def test_workers_of_the_last_day_are_named_and_a_clock_that_differs_is_a_warning(desk: Desk):
    desk.now = 1_700_000_000 * SECOND
    desk.store.keep_namespace("broker", 60 * SECOND, WORKER)
    desk.store.keep_namespace("broker", 60 * SECOND, replace(WORKER, nodename="celery@\x1b[2J"))
    desk.store.reap()
    desk.pass_time(5)
    done = desk.run("doctor", "--json")
    found = findings(done.stdout)
    assert found["sweeps"][0][:1] == ("ok",)
    assert "the last sweep was 5s ago" in found["sweeps"][0][1]
    assert "celery@\\x1b[2J pid 4711 (web1, release 0.0.9)" in found["sweeps"][0][1]
    assert found["clock"][0][0] == "warning"
    assert "releases" not in found, "of workers that do not answer"
    desk.pass_time(6)
    done = desk.run("doctor")
    assert done.exit_code == 1
    assert "problem  sweeps: the last sweep was 11s ago" in done.stdout
    assert "         fix: start a worker of this app" in done.stdout


@pytest.mark.proves("locks doctor")
def test_for_a_day_a_store_that_has_lost_its_data_is_a_warning(desk: Desk):
    for ago, expected in ((None, "ok"), (86_500, "ok"), (3_700, "warning")):
        lost = 0 if ago is None else int(time.time()) - ago
        desk.store.keep_namespace("broker", 60 * SECOND, replace(WORKER, lost=lost))
        ((level, finding, fix),) = findings(desk.run("doctor", "--json", "--strict").stdout)["data"]
        assert level == expected
    assert finding.startswith(f"{WORKER} noticed 1h01m ago that the store had lost its data: tasks that")
    assert fix == f"publish them again; see {docs_page('reference/endings')}"


@pytest.mark.proves("locks doctor")
def test_a_task_whose_wait_the_store_cannot_keep_is_a_problem(make_desk: Callable[..., Desk]):
    desk = make_desk(exclusive_store="memcached://127.0.0.1:1", worker_pool="solo")

    @desk.app.task(name="desk.skips", shared=False, exclusive=Exclusive(on_conflict="skip"))
    def skips() -> None: ...

    done = desk.run("doctor", "--json")
    assert done.exit_code == 3
    assert findings(done.stdout)["store"][0][0] == "problem"


@pytest.mark.proves("locks doctor")
def test_an_examination_leaves_no_key(desk: Desk):
    assert desk.run("doctor").exit_code == 1  # no worker
    assert list(desk.store.scan()) == []
    assert desk.store.times().swept is None
