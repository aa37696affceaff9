"""The empty servers that `--store` starts for the locks, by the code of this repository's tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from .broker import NoServer

SERVERS = {
    "mariadb": ("tests.maria", "MariaServer"),
    "memcached": ("tests.memcached", "MemcachedServer"),
    "postgres": ("tests.postgres", "PostgresServer"),
}


@contextmanager
def started(name: str) -> Iterator[str]:
    """Start one for as long as the context lasts, and give its URL.

    Raises:
        NoServer: this machine has no such server, or not what it takes to speak to it.
    """
    module, kind = SERVERS[name]
    sys.path.append(str(Path(__file__).parents[3]))
    not_here = import_module("tests.servers").NoServer
    try:
        server = getattr(import_module(module), kind)()
    except (ImportError, not_here) as why:
        raise NoServer(f"{why} (`make demo STORE={name}` gets what it needs)") from why
    with server:
        yield server.url
