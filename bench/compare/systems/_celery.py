"""The app, the worker, a call and a chord, for the adapters of Celery's family."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bench.compare import body
from bench.compare.place import Place

if TYPE_CHECKING:
    from celery import Celery

READY = " ready."
RECEIVED = "] received"
LATE = "task_acks_late=True, task_reject_on_worker_lost=True"


def app(place: Place, **conf: Any) -> Celery:
    """Return an app with the settings of this place, and a task that is the body of a chord."""
    from celery import Celery

    made = Celery("compare", broker=place.url, backend=place.url)
    made.conf.update(broker_connection_retry_on_startup=True, **conf)
    if place.is_tuned:
        made.conf.update(task_acks_late=True, task_reject_on_worker_lost=True)
    if place.redelivery:
        made.conf.broker_transport_options = {"visibility_timeout": place.redelivery}

    @made.task(name="compare.done")
    def done(_results: Any) -> None:
        body.note(place.folder, "start", "done")

    return made


def ways(
    task: Callable[[Place], Any],
) -> tuple[Callable[[Place], None], Callable[[Place, str, str], str], Callable[[Place, str, list[str]], str]]:
    """Return `work`, `send` and `chord` of an adapter, by the task that it declares at a place."""

    def work(place: Place) -> None:
        name = f"worker-{os.getpid()}@compare"
        task(place).app.worker_main(["worker", "-c", str(place.slots), "-l", "INFO", "-n", name])

    def send(place: Place, key: str, tag: str) -> str:
        from celery.utils import uuid

        own = uuid()
        result = task(place).apply_async((key, tag), task_id=own)
        return "sent" if result.id == own else "refused: the id of the other call"

    def chord(place: Place, key: str, tags: list[str]) -> str:
        import celery

        member = task(place)
        done = member.app.tasks["compare.done"].s()
        celery.chord([member.s(key, tag) for tag in tags], done).delay()
        return "sent"

    return work, send, chord
