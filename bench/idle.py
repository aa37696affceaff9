"""Acquire and release in a database beside idle workers, each of which sweeps: `make bench ROWS=idle`."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median

from bench import size
from bench.clock import timed
from bench.ours import pair
from celery_exclusive.core.records import SECOND
from celery_exclusive.stores.base import open_store
from tests.maria import MariaServer
from tests.postgres import PostgresServer

COUNTS = tuple(dict.fromkeys((1, size.scaled(100), size.scaled(400))))
PERIOD = 1.0
"""Seconds between two sweeps of a worker, by default."""


def run() -> None:
    print(f"a pair of calls beside {', '.join(map(str, COUNTS))} idle workers:")
    for name, server in ("PostgreSQL", PostgresServer), ("MariaDB", MariaServer):
        with server(max_connections="500") as started:
            print(f"  {name:<12} {'  '.join(measure(started))}", flush=True)


def measure(server: PostgresServer | MariaServer) -> Iterator[str]:
    """Yield the time beside each number of workers, and how many times the first that is."""
    store, first = server.open_store(), 0.0
    for count in COUNTS:
        with idle_workers(server.url, count):
            (rounds,) = timed({"": partial(pair, store)}).values()
        first = first or median(rounds)
        yield f"{median(rounds):8.0f} us ({median(rounds) / first:.2f})"
    store.close()


@contextmanager
def idle_workers(url: str, count: int) -> Iterator[None]:
    """Let so many workers sweep, in a process of their own, each with a connection of its own."""
    command = [sys.executable, "-m", "bench.idle", url, str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdin
        process.stdout.readline()  # all of them have connected
        yield
        process.stdin.close()


def sweep(url: str, has_begun: threading.Barrier) -> None:
    store = open_store(url)
    store.epoch()
    has_begun.wait()
    while True:
        time.sleep(random.uniform(0.8, 1) * PERIOD)
        store.reap(every=round(0.8 * PERIOD * SECOND))


def main(url: str, count: str) -> None:
    has_begun = threading.Barrier(int(count) + 1, timeout=60)  # one that fails ends them all
    for _ in range(int(count)):
        threading.Thread(target=sweep, args=(url, has_begun), daemon=True).start()
    has_begun.wait()
    os.nice(19)  # workers run on other machines
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
