"""A task with a free lock copies no message: only a store that keeps the message gets a copy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.app.trace import build_tracer
from kombu.utils.imports import symbol_by_name

from celery_exclusive import Exclusive
from celery_exclusive.core.operations import Acquire, Applied, Granted
from celery_exclusive.messages.stored import StoredMessage
from celery_exclusive.services import PublishingStore
from celery_exclusive.stores.base import Reply
from celery_exclusive.worker.context import WorkerContext
from celery_exclusive.worker.heartbeat import Heartbeat
from celery_exclusive.worker.roster import Roster

GRANTED, RELEASED = Reply(Granted(1)), Reply(Applied(True))


@pytest.mark.promise(
    "A run with a free lock copies no message for the store",
    broke=(
        "a copy for each acquire. `make bench ROWS=steps` counts the functions that a task enters in each "
        "process"
    ),
)
def test_a_run_with_a_free_lock_copies_no_message(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    services: Any = app._celery_exclusive  # type: ignore[attr-defined]
    heartbeat = Heartbeat(services, "broker", Roster())
    services.workers.append(WorkerContext(services, heartbeat=heartbeat))
    free = SimpleNamespace(apply=lambda _, asked: GRANTED if isinstance(asked, Acquire) else RELEASED)
    services.store = PublishingStore(free, services)  # type: ignore[arg-type]
    ran, copies = [], []
    monkeypatch.setattr(StoredMessage, "of", lambda *_: copies.append(1))

    @app.task(name="work", shared=False, exclusive=Exclusive("key"))
    def work(key: str) -> None:
        ran.append(key)

    app.finalize()
    task: Any = app.tasks["work"]
    task.__trace__ = build_tracer(task.name, task, app=app)
    task.apply_async(("k",), queue="no copies")
    with app.connection_for_read() as connection:
        message = connection.SimpleQueue("no copies").get(timeout=1)
        message.ack()
    request: Any = symbol_by_name(task.Request)(message, app=app, task=task, hostname="w")
    task.__trace__(request.id, ["k"], {}, request.request_dict)
    assert (ran, copies) == (["k"], [])
