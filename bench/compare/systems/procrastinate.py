"""procrastinate: a queue in PostgreSQL whose jobs with one lock run one after the other."""

from __future__ import annotations

from functools import cache
from typing import Any

from bench.compare import body
from bench.compare.place import Place

TITLE = "procrastinate"
SERVER = "postgres"
DEFAULT = "run.configure(lock=key).defer(...)"
TUNED = (
    "a periodic task that retries stalled jobs, every 10 s, in a slot of its own; "
    "fetch_job_polling_interval=0.1"
)
PACKAGES = ("procrastinate", "psycopg")
READY = "Starting worker on"
LACKS = {
    "child": "its worker is one process",
    "stuck": "its lock is a row of PostgreSQL; see the row above",
    "timeout": "its lock has no timeout",
    "chord": "it has no chords",
    "chain": "it has no chains",
}


@cache
def task(place: Place) -> Any:
    import procrastinate

    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=place.url))

    @app.task(name="compare.work")
    def run(key: str, tag: str) -> None:  # noqa: ARG001 - the key is the lock's
        body.run(place.folder, tag)

    if place.is_tuned:

        @app.periodic(cron="* * * * * */10")
        @app.task(queueing_lock="retry_stalled_jobs", pass_context=True)
        async def retry_stalled_jobs(context: Any, timestamp: int) -> None:  # noqa: ARG001 - passed by name
            seconds = {"seconds_since_heartbeat": place.redelivery} if place.redelivery else {}
            for job in await app.job_manager.get_stalled_jobs(**seconds):
                await app.job_manager.retry_job(job)

    return run


def work(place: Place) -> None:
    import logging

    logging.basicConfig(level=logging.INFO)
    app = task(place).blueprint
    with app.open():
        if not app.check_connection():
            app.schema_manager.apply_schema()
    heartbeats = (
        {"update_heartbeat_interval": place.redelivery / 3, "stalled_worker_timeout": place.redelivery}
        if place.redelivery
        else {}
    )
    polling = {"fetch_job_polling_interval": 0.1} if place.is_tuned else {}
    app.run_worker(concurrency=place.slots + place.is_tuned, **heartbeats, **polling)


@cache
def connected(place: Place) -> Any:
    """Return the task with an open pool of connections, for all calls of a process."""
    run = task(place)
    run.blueprint.open()
    return run


def send(place: Place, key: str, tag: str) -> str:
    lock = {} if place.is_bare else {"lock": key}
    connected(place).configure(**lock).defer(key=key, tag=tag)
    return "sent"
