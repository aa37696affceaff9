"""The house rules that no linter knows, and the servers that the other tests trust."""

from __future__ import annotations

import ast
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import requires
from pathlib import Path

import pytest
import redis

from tests.servers import RedisServer

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/celery_exclusive"
OF_CELERY = ("celery", "billiard", "click", "kombu")
OF_EXTRAS = (
    *("redis", "django", "psycopg", "pymysql", "sqlalchemy", "opentelemetry", "prometheus_client"),
    *("flask", "jinja2", "markupsafe", "werkzeug"),
    "pytest",  # which loads the plugin
)
PIN = re.compile(r"^([a-z0-9.-]+)==(\S+)", re.MULTILINE)


def test_the_package_says_that_it_is_typed():
    assert (ROOT / "src/celery_exclusive/py.typed").exists()


def test_the_package_needs_celery_and_nothing_else():
    always = [line for line in requires("celery-exclusive") or [] if "extra ==" not in line]
    assert {re.split(r"[<>=!]", line)[0] for line in always} == {"celery", "billiard"}


@pytest.mark.parametrize(
    "file", sorted(PACKAGE.rglob("*.py")), ids=lambda file: str(file.relative_to(PACKAGE))
)
def test_the_package_imports_what_celery_or_an_extra_brings(file: Path):
    """Other packages, such as typing-extensions, are in most environments, but not in all."""
    nodes = [*ast.walk(ast.parse(file.read_text()))]
    for_types = [
        node for node in nodes if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    ]
    ignored = {id(node) for block in for_types for node in ast.walk(block)}
    found = {
        name.partition(".")[0]
        for node in nodes
        if isinstance(node, (ast.Import, ast.ImportFrom)) and id(node) not in ignored
        for name in (
            [node.module or ""] if isinstance(node, ast.ImportFrom) else [it.name for it in node.names]
        )
    }
    assert found <= {*sys.stdlib_module_names, "celery_exclusive", *OF_CELERY, *OF_EXTRAS}


@pytest.mark.parametrize("level", ["demo", "docs", "dev"])
def test_the_lock_works_with_any_mirror(level: str):
    text = (ROOT / f"requirements/{level}.txt").read_text()
    assert PIN.findall(text)
    assert "://" not in text
    assert "--index" not in text


def test_the_demo_runs_on_the_versions_that_the_tests_run_on():
    demo, dev = ((ROOT / f"requirements/{level}.txt").read_text() for level in ("demo", "dev"))
    assert set(PIN.findall(demo)) <= set(PIN.findall(dev))


def test_every_test_finds_an_empty_redis(redis_server: RedisServer, redis_url: str):
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
        client.set("a", "left over")
        redis_server.refresh()
        assert client.dbsize() == 0


@pytest.mark.parametrize(("keep_data", "found"), [(True, b"1"), (False, None)])
def test_a_killed_redis_comes_back_with_its_data_only_when_asked(
    start_redis: Callable[..., RedisServer], keep_data: bool, found: bytes | None
):
    server = start_redis(appendonly=True)
    url = server.url
    with server.client() as client:
        client.set("a", "1")
    server.kill()
    assert not server.is_up
    server.restart(keep_data=keep_data)
    assert server.url == url
    with server.client() as client:
        assert client.get("a") == found


def test_a_paused_redis_answers_again_when_resumed(start_redis: Callable[..., RedisServer]):
    server = start_redis()
    with server.client(socket_timeout=0.2, retry=None) as client:
        server.pause()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        server.resume()
    with server.client() as client:
        assert client.ping()


def test_a_killed_test_run_leaves_no_redis_behind(start_redis: Callable[..., RedisServer]):
    start_redis()  # or be left out
    code = "from tests.servers import RedisServer; print(RedisServer().port, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as run:
        assert run.stdout
        port = int(run.stdout.readline())
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            run.kill()
            with suppress(ConnectionResetError):  # so may a server end that was killed
                assert connection.recv(1) == b""


def test_processes_of_tests_get_the_signals_that_a_background_job_ignores():
    signals = "signal.SIGINT, signal.SIGQUIT, signal.SIGHUP"
    looks = f"import signal; print(signal.SIG_IGN in map(signal.getsignal, ({signals})))"
    starts = f"import subprocess, sys, tests.conftest; subprocess.run([sys.executable, '-c', {looks!r}])"
    ran = subprocess.run(
        ["sh", "-c", "trap '' INT QUIT HUP; exec \"$@\"", "sh", sys.executable, "-c", starts],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.stdout == "False\n"


def test_a_run_of_tests_says_how_far_it_is(tmp_path: Path):
    (tmp_path / "test_three.py").write_text(
        "import pytest\n@pytest.mark.parametrize('n', 'abc')\ndef test(n): ..."
    )
    words = ["-q", "-p", "xdist", "-n1", "-p", "no:cacheprovider", str(tmp_path)]
    plugin = "tests.progress.Progress(every=0)"
    code = f"import pytest, tests.progress; pytest.main({words}, plugins=[{plugin}])"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT, env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert re.findall(r"^(\d of \d tests in \d+ s, some) \d+ s left$", ran.stdout, re.MULTILINE) == [
        f"{number} of 3 tests in 0 s, some" for number in (1, 2, 3)
    ]


def test_scripts_words_reports_file_and_line_of_a_name_that_says_too_little(tmp_path: Path):
    file = tmp_path / "written.py"
    file.write_text('"""Whoever reads this."""\n\ndef test_it_is_released(): ...')
    found = subprocess.run(
        [sys.executable, ROOT / "scripts/words", file], check=False, capture_output=True, text=True
    )
    assert (found.returncode, found.stdout) == (
        1,
        f"{file}:3: test_it_is_released: name subject, situation and result\n",
    )
