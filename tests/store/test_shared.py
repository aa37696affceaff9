"""The server that processes of a test run share lives as long as one of them, however they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from tests.servers import NoServer, RedisServer, redis_program
from tests.shared import ROOT, shared, wait_until_ended

USER = """
import os, signal, sys
from pathlib import Path
from tests.servers import RedisServer
from tests.shared import shared

with shared(RedisServer, Path(sys.argv[1])) as port:
    if not (child := os.fork()):
        signal.pause()
    print(port, child, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def program() -> None:
    try:
        redis_program()
    except NoServer as why:
        pytest.skip(str(why))


def start_user(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", USER, str(folder)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.promise(
    "PostgreSQL and MariaDB run once for all processes of a test run, each with a database of its own, and "
    "end with the last of them, however that ends",
    name="shared servers",
    broke="no lock held by the processes that use it, the end not noted",
)
def test_a_shared_server_starts_once_and_ends_with_its_last_user_however_that_ends(
    tmp_path: Path,
) -> None:
    users = [start_user(tmp_path) for _ in range(3)]
    said = [[int(word) for word in user.stdout.readline().split()] for user in users]
    first, *others = (port for port, _ in said)
    assert others == [first, first]
    with redis.Redis(port=first) as client:
        folder = Path(client.config_get("dir")["dir"])
        for user in users:
            assert client.ping()
            user.kill()
            user.wait()
    try:  # while their children live
        wait_until_ended(tmp_path)
    finally:
        for user, (_, child) in zip(users, said, strict=True):
            os.kill(child, signal.SIGKILL)
            user.communicate()
    assert not folder.exists()
    with pytest.raises(redis.ConnectionError):
        redis.Redis(port=first, retry=None).ping()
    with shared(RedisServer, tmp_path) as port, redis.Redis(port=port) as client:
        assert client.ping()
    wait_until_ended(tmp_path)


@pytest.mark.proves("shared servers")
def test_two_runs_side_by_side_have_servers_of_their_own(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    with shared(RedisServer, folders[0]) as one, shared(RedisServer, folders[1]) as two:
        assert one != two
    for folder in folders:
        wait_until_ended(folder)


def absent() -> RedisServer:
    raise NoServer("none here")


@pytest.mark.proves("shared servers")
def test_a_server_that_is_not_installed_is_said_to_each_user(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(NoServer, match="none here"), shared(absent, tmp_path):
            pass
