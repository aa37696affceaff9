"""Each operation that brings a task to its key has the terms of its part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from kombu.message import Message

from celery_exclusive import Exclusive, OptionError, install
from celery_exclusive.core.operations import Acquire, Enqueue, Restore
from celery_exclusive.core.records import SECOND
from celery_exclusive.core.room import Share
from celery_exclusive.options import keys
from celery_exclusive.worker.queues import SOURCE
from celery_exclusive.worker.reading import Delivered, read

pytestmark = pytest.mark.promise(
    "A published call, a delivery, `apply()` and a restored lease bring the part of the task with its "
    "weight, its limit and its rates",
    broke="the restore without its part: red",
)
LIMITS = {"now": 4}
OPTION = Exclusive(
    key="api",
    limit=25,
    order="published",
    per=Exclusive("tenant_id", limit=lambda: LIMITS["now"], rate="60/m", weight="plan"),
)
TERMS = Share(1, "acme", 3, 4, ((60, 60 * SECOND),))


def work(tenant_id: str, plan: int = 3) -> None: ...


@pytest.fixture
def task(make_app: Callable[..., Celery], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(LIMITS, "now", 4)
    app = install(make_app())
    app.task(name="work", shared=False, exclusive=OPTION)(work)
    app.finalize()
    return app.tasks["work"]


@pytest.fixture
def asked(task: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The operations that reach the store, in order."""
    store, found = task.app._celery_exclusive.store, list[Any]()
    apply = store._store.apply
    monkeypatch.setattr(store._store, "apply", lambda key, op: (found.append(op), apply(key, op))[1])
    return found


def share(operation: Any) -> Share:
    of = operation
    return Share(of.cost, of.part, of.weight, of.part_limit, of.part_rates)


def delivery(task: Any) -> Any:
    headers = {"task": "work", "id": "id"}
    info = {"exchange": "", "routing_key": "q"}
    info[SOURCE] = {"queue": "q", "auto_delete": False, "is_fanout": False, "can_be_parked": True}  # type: ignore[assignment]
    came: Any = Message(body=b"", headers=headers, properties={"delivery_tag": "1"}, delivery_info=info)
    request = SimpleNamespace(id="id", message=came, request_dict=headers)
    given = {**headers, "properties": {}, "delivery_info": {**info, "priority": 0, "redelivered": False}}
    found = read(Delivered.of(request), task, given, ["acme"], {})
    assert found
    assert found.exclusive
    return found


def test_a_published_call_joins_the_line_with_the_terms_of_its_part(task: Any, asked: list[Any]) -> None:
    task.delay("acme")
    (enqueue,) = (it for it in asked if isinstance(it, Enqueue))
    assert (share(enqueue), enqueue.limit) == (TERMS, 25)


def test_a_delivery_asks_with_the_terms_of_its_part_also_when_it_is_parked(task: Any) -> None:
    found = delivery(task)
    acquire = found.acquire(found.exclusive)
    assert share(acquire) == share(found.park(acquire)) == TERMS
    restore = found.exclusive.restore()
    assert isinstance(restore, Restore)
    assert (share(restore), restore.limit) == (TERMS, 25)


def test_a_call_of_apply_asks_with_the_terms_of_its_part(task: Any, asked: list[Any]) -> None:
    task.apply(("acme",)).get()
    (acquire,) = (it for it in asked if isinstance(it, Acquire))
    assert share(acquire) == TERMS


def test_a_limit_that_fails_on_a_worker_is_the_last_one_and_fails_the_caller(
    task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert delivery(task).exclusive.share == TERMS
    monkeypatch.setitem(LIMITS, "now", 0)
    assert delivery(task).exclusive.share == TERMS
    with pytest.raises(OptionError, match="limit= returned 0"):
        task.delay("acme")


def test_the_terms_of_a_published_call_are_computed_once(
    task: Any, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = list[object]()
    number = keys._number
    monkeypatch.setattr(keys, "_number", lambda *of: (counted.append(of[2]), number(*of))[1])
    task.delay("acme")
    assert counted == ["cost", "weight"]
    assert [share(it) for it in asked if isinstance(it, Enqueue)] == [TERMS]


def test_a_claim_without_a_part_asks_for_one_unit(task: Any) -> None:
    claim = replace(delivery(task).exclusive, share=Share())
    assert share(claim.acquire()) == share(claim.restore()) == Share()
