"""`celery -A proj locks web`: what it refuses; and its server, asked over the network."""

from __future__ import annotations

import http.client
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Thread

import pytest

from celery_exclusive.web.server import Server
from tests.cli.conftest import Desk
from tests.worker.nursery import DEATH_OF_PARENT

COMMAND = f"""{DEATH_OF_PARENT}
from celery import Celery
from celery_exclusive import install
app = install(Celery("shop", broker="memory://"))
app.conf.exclusive_store = "sqlite:///{{folder}}/locks.db"
from celery.bin.celery import main
import resource
import sys
from celery_exclusive.web import server
server._Handler.timeout = 600
resource.setrlimit(resource.RLIMIT_NOFILE, (1_024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
sys.argv = ["celery", "-A", "__main__", "locks", "web", "--port", "0", *sys.argv[1:]]
main()
"""

PROXY = "https://locks.example"


def _no_application(environ: object, start_response: Callable[..., object]) -> list[bytes]:
    start_response("204 No Content", [])
    return []


@contextmanager
def served(host: str = "127.0.0.1") -> Iterator[Server]:
    with Server(host, 0, _no_application) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.promise(
    "`locks web` refuses an address that other machines reach without a token, and a token that is too short",
    broke="0.0.0.0 counted as this machine",
)
@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "example.com"])
def test_a_host_for_others_is_refused_without_a_token(desk: Desk, host: str) -> None:
    done = desk.run("web", "--host", host)
    assert (done.exit_code, "CELERY_LOCKS_TOKEN" in done.output) == (2, True)


@pytest.mark.parametrize("url", ["https://locks.example", "http://locks.example", "locks.example"])
def test_the_address_of_a_proxy_is_refused_without_tls_or_a_token(desk: Desk, url: str) -> None:
    done = desk.run("web", "--url", url)
    assert done.exit_code == 2
    assert ("CELERY_LOCKS_TOKEN" if url.startswith("https:") else "is no https:// address") in done.output


def test_a_short_token_is_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERY_LOCKS_TOKEN", "short")
    done = desk.run("web", "--host", "0.0.0.0")
    assert (done.exit_code, "16 characters or more" in done.output) == (1, True)


def test_a_port_that_is_used_is_an_error_in_one_line(desk: Desk) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        done = desk.run("web", "--port", str(other.getsockname()[1]))
    assert (done.exit_code, "cannot listen on 127.0.0.1 port" in done.output) == (1, True)
    assert "Traceback" not in done.output


def test_a_silent_visitor_holds_up_no_other() -> None:
    with served() as server, socket.create_connection(("127.0.0.1", server.server_port)) as silent:
        silent.sendall(b"GET / HTTP/1.1\r\n")
        other = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
        other.request("GET", "/")
        assert other.getresponse().status == 204
        other.close()


def test_a_visitor_that_sends_nothing_in_time_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = list[object]()
    monkeypatch.setattr(Server, "handle_error", lambda _self, *about: errors.append(about))
    with served() as server:
        monkeypatch.setattr(server.RequestHandlerClass, "timeout", 0.05)
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=30) as silent:
            assert silent.recv(1) == b""
    assert not errors


def test_fifty_visitors_at_once_are_connected_to_a_busy_server() -> None:
    with Server("127.0.0.1", 0, _no_application) as server, ExitStack() as visitors:
        for _ in range(50):
            address = "127.0.0.1", server.server_port
            visitors.enter_context(socket.create_connection(address, timeout=30))


def test_a_server_of_ipv6_says_its_address() -> None:
    try:
        with served("::1") as server:
            assert re.fullmatch(r"http://\[::1\]:\d+/", server.url)
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")


@pytest.fixture
def many_files() -> Iterator[None]:
    """Lets this process have more open files than the server."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4_096:
        pytest.skip("this process may not have enough open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4_096), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.promise(
    "`locks web` serves the page of the app's store, beside 1,024 connections that say nothing, answers no "
    "foreign name, and ends by SIGTERM and Ctrl-C",
    broke="the names of the page not given to it; red before: no file left to accept a connection",
)
@pytest.mark.parametrize(
    ("end", "proxy", "said", "status"),
    [
        (signal.SIGTERM, (), r"\(read-only\)", 200),
        (signal.SIGINT, ("--url", PROXY), rf"for {PROXY} \(sign in with the token\)", 403),
    ],
)
def test_the_command_serves_the_page_until_it_is_stopped(
    tmp_path: object, end: signal.Signals, proxy: tuple[str, ...], said: str, status: int, many_files: None
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "CELERY_LOCKS_TOKEN"}
    if proxy:
        environment["CELERY_LOCKS_TOKEN"] = "a token for tests"
    with (
        ExitStack() as silent,
        subprocess.Popen(
            [sys.executable, "-c", COMMAND.replace("{folder}", str(tmp_path)), *proxy],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        ) as process,
    ):
        try:
            assert process.stdout
            line = process.stdout.readline()
            found = re.fullmatch(rf"http://127\.0\.0\.1:(\d+)/ {said}\n", line)
            assert found, line
            for _ in range(1_024):
                silent.enter_context(socket.create_connection(("127.0.0.1", int(found[1])), timeout=60))
            answers = []
            for host in (f"localhost:{found[1]}", "locks.example", "evil.example"):
                connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=60)
                connection.request("GET", "/", headers={"Host": host})
                answer = connection.getresponse()
                answers.append((answer.status, b"locks.db" in answer.read()))
                connection.close()
            expected = [(status, not proxy), (403, False) if proxy else (421, False), (421, False)]
            assert answers == expected
            process.send_signal(end)
            assert process.wait(60) == (0 if end is signal.SIGINT else -signal.SIGTERM)
        finally:
            process.kill()
