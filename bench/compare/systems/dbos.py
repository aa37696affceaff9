"""DBOS: durable workflows in PostgreSQL, in a queue with a partition per key."""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

from bench.compare import body
from bench.compare.place import Place

TITLE = "DBOS"
SERVER = "postgres"
DEFAULT = "register_queue(..., partition_concurrency=1), queue_partition_key=key"
TUNED = "polling_interval_sec=0.1"
PACKAGES = ("dbos", "psycopg")
READY = "DBOS launched!"
RATE = 'register_queue(..., limiter={"limit": 10, "period": 1})'
LACKS = {
    "child": "its worker is one process",
    "stuck": "its lock is a row of PostgreSQL; see the row above",
    "timeout": "its lock has no timeout",
    "redelivery": "it does not deliver a running workflow again after a time",
    "chord": "a workflow that waits for others was not tried",
    "chain": "a workflow that waits for others was not tried",
}


def work(place: Place) -> None:
    from dbos import DBOS

    DBOS(config={"name": "compare", "system_database_url": place.url})

    @DBOS.step()
    def step(tag: str) -> None:
        body.run(place.folder, tag)

    @DBOS.workflow(name="run")
    def run(_key: str, tag: str) -> None:
        step(tag)

    DBOS.launch()
    polling = {"polling_interval_sec": 0.1} if place.is_tuned else {}
    lock: dict[str, Any] = {} if place.is_bare else {"partition_concurrency": 1}
    if place.rate:
        lock = {"limiter": {"limit": place.rate, "period": 1}}
    DBOS.register_queue("compare", worker_concurrency=place.slots, **lock, **polling)
    threading.Event().wait()


@cache
def client(place: Place) -> Any:
    from dbos import DBOSClient

    return DBOSClient(system_database_url=place.url)


def send(place: Place, key: str, tag: str) -> str:
    options: Any = {"workflow_name": "run", "queue_name": "compare"}
    if not (place.is_bare or place.rate):
        options["queue_partition_key"] = key
    client(place).enqueue(options, key, tag)
    return "sent"
