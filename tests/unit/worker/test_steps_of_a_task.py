"""How many Python calls a lock adds to a task in its worker, where nobody waits for the lock.

Caches are cold between two tasks, so each call has its price; and calls can be counted on any machine.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
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
from tests.unit.calls import calls

GRANTED, RELEASED = Reply(Granted(1)), Reply(Applied(True))

QUEUE = "steps of a task"
"""Queues in memory are of the process: others have those of other tests."""


def work(key: str) -> str:
    return key


def run(request: Any) -> None:
    request.task.__trace__(request.id, ["k"], {}, request.request_dict)


@pytest.fixture
def requests(app: Celery) -> list[Callable[[], Any]]:
    """Make a request, as the main process does, of a message of a task with a lock, and of one without."""
    services: Any = app._celery_exclusive  # type: ignore[attr-defined]
    free = SimpleNamespace(apply=lambda _, asked: GRANTED if isinstance(asked, Acquire) else RELEASED)
    services.store = PublishingStore(free, services)  # type: ignore[arg-type]
    made = []
    for options in ({"exclusive": Exclusive("key")}, {}):
        app.task(name=f"work {len(made)}", shared=False, **options)(work)
        app.finalize()
        task: Any = app.tasks[f"work {len(made)}"]
        task.__trace__ = build_tracer(task.name, task, app=app)
        task.apply_async(("k",), queue=QUEUE)
        with app.connection_for_read() as connection:
            message = connection.SimpleQueue(QUEUE).get(timeout=1)
            message.ack()
        request_class = symbol_by_name(task.Request)
        made.append(
            lambda cls=request_class, task=task, message=message: cls(
                message, app=app, task=task, hostname="w"
            )
        )
        run(made[-1]())  # the first one fills caches
    return made


def test_a_lock_adds_few_calls_to_the_receipt_of_a_message(requests: list[Callable[[], Any]]) -> None:
    ours, bare = map(calls, requests)
    assert ours - bare <= 20


def test_a_delivery_is_pickled_in_one_call(requests: list[Callable[[], Any]]) -> None:
    delivered = requests[0]().request_dict
    assert calls(lambda: pickle.dumps(delivered)) <= 2


def test_a_lock_adds_few_calls_to_a_run_and_copies_no_message(
    requests: list[Callable[[], Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[object] = []
    monkeypatch.setattr(StoredMessage, "of", lambda *_: copies.append(1))
    ours, bare = (calls(partial(run, make())) for make in requests)
    assert ours - bare <= 109
    assert not copies
