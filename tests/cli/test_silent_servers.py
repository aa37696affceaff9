"""A server that accepts connections and never answers: each command ends, and says which server it is."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from celery_exclusive import Exclusive
from celery_exclusive.operate import patience
from celery_exclusive.operate.why import why
from tests.cli.conftest import Desk

BROKERS = ["redis://127.0.0.1:{}/0", "pyamqp://127.0.0.1:{}"]
BACKENDS = ["redis://127.0.0.1:{}/0", "db+postgresql+psycopg://user@127.0.0.1:{}/results"]
STORES = ["redis://127.0.0.1:{}/0", "postgresql://user@127.0.0.1:{}/locks", "mysql://user@127.0.0.1:{}/locks"]
COMMANDS = [("ls",), ("why", "a"), ("show", "x:k"), ("release", "x:k"), ("adopt",), ("doctor",)]
KEY = "x:desk.work"
SILENT = "did not answer within 3 s"

pytestmark = pytest.mark.promise(
    "Each command of `locks` ends while the store, the broker or the result backend accepts connections and "
    "never answers, within some five seconds for each of them, and names the one that is silent",
    broke="no limit, as before: `doctor` and `drop` without end, `why` after two minutes",
)


@pytest.fixture(autouse=True)
def is_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PATIENCE", 3.0)  # the servers that are healthy have to answer, too


@pytest.fixture
def port(make_desk: Callable[..., Desk]) -> Iterator[int]:
    """The port of a server whose system accepts connections for it, and which reads none."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("url", STORES)
def test_each_command_says_that_the_store_is_silent(
    make_desk: Callable[..., Desk], port: int, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "PATIENCE", 1.0)  # nothing else has to answer
    desk = make_desk(exclusive_store=url.format(port))
    for words in COMMANDS:
        done = desk.run(*words)
        assert done.exit_code == 3, (words, done.output)
        assert f"127.0.0.1:{port}/" in done.output
    done = desk.run("metrics")
    assert (done.exit_code, "celery_exclusive_up 0.0" in done.stdout) == (0, True)


@pytest.mark.parametrize("url", BROKERS)
def test_doctor_says_that_the_broker_is_silent_and_examines_the_store(
    make_desk: Callable[..., Desk], port: int, url: str
) -> None:
    done = make_desk(broker_url=url.format(port)).run("doctor", "--json")
    found = {it["name"]: it for it in map(json.loads, done.stdout.splitlines())}
    assert (done.exit_code, found["broker"]["level"]) == (1, "problem")
    assert (str(port) in found["broker"]["finding"], SILENT in found["broker"]["finding"]) == (True, True)
    assert found["store"]["level"] == "ok"


@pytest.mark.parametrize("url", BACKENDS)
def test_why_and_doctor_say_that_the_result_backend_is_silent(
    make_desk: Callable[..., Desk], port: int, url: str
) -> None:
    desk = make_desk(result_backend=url.format(port))
    answer = json.loads((done := desk.run("why", "ended", "--json")).stdout)
    assert (done.exit_code, answer["reason"]) == (3, "backend_down")
    assert answer["sentence"].startswith("BACKEND DOWN: ended neither holds nor waits for a key")
    desk.acquire("x:k", "holder/1")
    desk.acquire("x:k", "waits/1", message=b"")
    assert desk.run("why", "holder").exit_code == 0  # its lease is renewed: nobody else knows more
    told = desk.run("why", "waits")
    assert (told.exit_code, told.stdout.startswith("WAITING: place 1 of 1 for x:k, ")) == (1, True)
    found = desk.run("doctor")
    for said in (answer["sentence"], told.stdout, found.stdout):
        assert f":{port}/" in said
        assert SILENT in said


@pytest.mark.promise(
    "While a call of a silent broker or result backend hangs, nothing else is asked of that server: a page "
    "that loads `why` again and again leaves one thread, and asks again when the call has ended",
    broke="red before: a thread for each load",
)
def test_a_silent_server_is_asked_again_when_the_call_before_has_ended(
    make_desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as hurry, socket.create_server(("127.0.0.1", 0)) as server:
        hurry.setattr(patience, "PATIENCE", 0.1)  # nothing else is asked
        desk = make_desk(result_backend=BACKENDS[0].format(port := server.getsockname()[1]))
        services = desk.app._celery_exclusive  # type: ignore[attr-defined]
        before, left = {*threading.enumerate()}, []
        for _ in range(3):
            answer = why(services, "ended")
            assert (answer.reason, f":{port}/" in answer.sentence) == ("backend_down", True)
            left = [it for it in threading.enumerate() if it.name == "exclusive-ask" and it not in before]
            assert len(left) == 1
    server.close()  # resets the connections that it has not accepted
    left[0].join()
    assert "not asked again" not in why(services, "ended").sentence


@pytest.fixture
def desk(make_desk: Callable[..., Desk]) -> Desk:
    """A desk with a task that waits in the line of a held key."""
    desk = make_desk(result_backend="cache+memory://", exclusive_broker_id="desk")
    add_work(desk)
    desk.acquire(KEY, "holder/1")
    desk.app.tasks["desk.work"].delay(1)
    return desk


@pytest.mark.parametrize("url", BACKENDS)
def test_no_task_leaves_its_line_while_the_result_backend_is_silent(
    desk: Desk, make_desk: Callable[..., Desk], port: int, url: str, tmp_path: Path
) -> None:
    blind = make_desk(exclusive_store=desk.store.url, result_backend=url.format(port))
    done = blind.run("drop", KEY, "--to", str(tmp_path / "f"), "--yes", "--json")
    assert done.exit_code == 3, done.output
    error = json.loads(done.stdout)["error"]
    assert (SILENT in error, f":{port}/" in error) == (True, True)
    assert desk.store.inspect(KEY).waiting == 1


@pytest.mark.parametrize("url", BROKERS)
def test_put_and_release_say_that_the_broker_is_silent(
    desk: Desk, make_desk: Callable[..., Desk], port: int, url: str, tmp_path: Path
) -> None:
    file = str(tmp_path / "f")
    assert desk.run("drop", KEY, "--to", file, "--yes").exit_code == 0
    desk.app.tasks["desk.work"].delay(2)
    other = make_desk(
        result_backend="cache+memory://",
        broker_url=url.format(port),
        exclusive_store=desk.store.url,
        exclusive_broker_id="desk",
        broker_transport_options={"max_retries": 1, "interval_start": 0},
    )
    add_work(other)
    done = other.run("put", file)
    assert (done.exit_code, SILENT in done.stderr) == (3, True)
    released = other.run("release", KEY, "--force", "--reason", "test")
    assert (released.exit_code, SILENT in released.stderr) == (0, True), released.output


def add_work(desk: Desk) -> None:
    @desk.app.task(name="desk.work", shared=False, exclusive=Exclusive(order="published"))
    def work(n: int) -> int:
        return n
