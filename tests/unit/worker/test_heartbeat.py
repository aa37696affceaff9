"""What the heartbeat reads of the deliveries that it is told of: as little as keeps their leases."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from celery import Celery

from celery_exclusive import Exclusive
from celery_exclusive.core.records import RENEWALS_PER_TTL, SECOND
from celery_exclusive.messages.header import HEADER
from celery_exclusive.stores.memory import MemoryStore
from celery_exclusive.worker.heartbeat import Heartbeat
from celery_exclusive.worker.received import Received
from celery_exclusive.worker.roster import Roster
from celery_exclusive.worker.unread import Unread

OF_QUEUE = {"queue": "q", "auto_delete": False, "is_fanout": False, "can_be_parked": True}


def work(n: int) -> int:
    return n


@pytest.fixture
def tell(app: Celery, heartbeat: Heartbeat) -> Callable[..., tuple[Unread, list[Unread]]]:
    """Tell the heartbeat of a delivery; return it, and the deliveries that were read so far."""
    options = {"slow": Exclusive("n"), "quick": Exclusive("n", ttl=6)}
    for name, option in options.items():
        app.task(name=name, shared=False, exclusive=option)(work)
    app.finalize()
    were_read: list[Unread] = []

    def read(unread: Unread, task: Any) -> Received | None:
        were_read.append(unread)
        request = {"delivery_info": {}, "properties": {}}
        return unread.try_to_read(task, request, [1], {})

    def tell(name: str = "slow", *, body: bytes = b"", **fields: Any) -> tuple[Unread, list[Unread]]:
        number = len(heartbeat._deliveries)
        header = {"v": 1, "id": "p", "exclusive": f"x:{number}", **fields}
        content = (body, "json", "utf-8", {"task": name, HEADER: header}, {}, "q", "")
        unread = Unread(f"{number}", f"{number:016}", content, OF_QUEUE, redelivered=False)
        task = app.tasks[name]
        heartbeat.expect(task, unread, partial(read, unread, task), lambda: None)
        return unread, were_read

    return tell


def test_only_what_is_executed_is_read_when_the_heart_beats(
    heartbeat: Heartbeat, roster: Roster, store: MemoryStore, tell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = store.clock()
    monkeypatch.setattr(store._store, "clock", lambda: now)  # type: ignore[attr-defined]
    others = [tell()[0] for _ in range(2)]
    executed, were_read = tell()
    assert not were_read
    delivery = executed.read(heartbeat.services.app.tasks["slow"], {"delivery_info": {}}, [1], {})
    assert delivery is not None
    assert delivery.exclusive
    store.apply(delivery.exclusive.key, delivery.exclusive.acquire())
    roster.begin(executed.token)
    now += 20 * SECOND
    heartbeat.beat()
    assert were_read == [executed]
    assert store.inspect(delivery.exclusive.key).holders[0].remaining == 30 * SECOND
    assert others[0].token in heartbeat._deliveries


def test_the_first_delivery_of_a_task_tells_how_often_its_leases_are_renewed(
    heartbeat: Heartbeat, tell: Any
) -> None:
    tell("quick", switched_off=["exclusive"])
    assert heartbeat.period == 6 / RENEWALS_PER_TTL


@pytest.mark.parametrize(
    ("said", "period"),
    [
        ({"values": {"exclusive": {"ttl": 3}}}, 3),
        ({"values": {"exclusive": {"ttl": 60}}}, 30),
        ({"store": "of another server"}, 30),
    ],
)
def test_what_says_more_than_its_task_is_read_at_once(
    heartbeat: Heartbeat, tell: Any, said: dict[str, Any], period: float
) -> None:
    unread, were_read = tell(**said)
    assert were_read == [unread]
    assert heartbeat.period == period / RENEWALS_PER_TTL


def test_a_large_body_is_not_kept_while_its_task_runs(heartbeat: Heartbeat, tell: Any) -> None:
    unread, _ = tell(body=b"x" * 1_001)
    read, _ = heartbeat._deliveries[unread.token]
    delivery = read()
    assert delivery is not None
    assert delivery.body == b""
    kept, _ = tell(body=b"x" * 1_000)
    assert kept.token in heartbeat._deliveries


def test_a_delivery_without_a_key_stops_no_beat(heartbeat: Heartbeat, roster: Roster, tell: Any) -> None:
    without, _ = tell(exclusive=None, values={"exclusive": {"ttl": -1}})
    assert without.token not in heartbeat._deliveries
    unread, _ = tell(exclusive=None, unique=None)
    roster.begin(unread.token)
    heartbeat.beat()
