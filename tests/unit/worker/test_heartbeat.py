"""What the heartbeat reads of the deliveries that it is told of: as little as keeps their leases."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from celery import Celery

from celery_exclusive import Exclusive
from celery_exclusive.core.claim import Claim
from celery_exclusive.core.records import RENEWALS_PER_TTL, SECOND
from celery_exclusive.messages.header import HEADER
from celery_exclusive.stores.memory import MemoryStore
from celery_exclusive.worker.heartbeat import Heartbeat
from celery_exclusive.worker.received import Received
from celery_exclusive.worker.roster import Roster
from celery_exclusive.worker.unread import Unread


def work(n: int) -> int:
    return n


@pytest.fixture
def were_read(monkeypatch: pytest.MonkeyPatch) -> list[Unread]:
    """The deliveries that were read, in their order."""
    read, facts = list[Unread](), Unread._facts

    def note(self: Unread, *of: Any) -> Received | None:
        read.append(self)
        return facts(self, *of)

    monkeypatch.setattr(Unread, "_facts", note)
    return read


@pytest.fixture
def tell(app: Celery, heartbeat: Heartbeat) -> Callable[..., Unread]:
    """Tell the heartbeat of a delivery, as a request does that goes to the pool."""
    for name, option in {"slow": Exclusive("n"), "quick": Exclusive("n", ttl=6)}.items():
        app.task(name=name, shared=False, exclusive=option)(work)
    app.finalize()

    def tell(name: str = "slow", *, body: bytes = b"", **fields: Any) -> Unread:
        number = len(heartbeat._deliveries)
        header = {"v": 1, "id": "p", "exclusive": f"x:{number}", **fields}
        content = (body, "json", "utf-8", {"task": name, HEADER: header}, {}, "q", "")
        unread = Unread(f"{number}", f"{number:016}", content, {}, retries=0, redelivered=False)
        task = app.tasks[name]
        read = partial(unread.try_to_read, task, {"delivery_info": {}, "properties": {}}, [1], {})
        if not unread.is_plain(task):
            read()
        heartbeat.expect(task, unread, read, lambda: None)
        return unread

    return tell


@pytest.mark.promise(
    "Of the deliveries that it has left unread the main process reads at its heartbeat those that run; at "
    "once one that names another store, or has a body that is too large to be kept. The options of a task "
    "say how often its leases are renewed",
    name="read at the heartbeat",
    broke=(
        "all are read at once; the options of the task, the values, the store or the size are not looked at"
    ),
)
def test_only_what_is_executed_is_read_when_the_heart_beats(
    heartbeat: Heartbeat,
    roster: Roster,
    store: MemoryStore,
    tell: Callable[..., Unread],
    were_read: list[Unread],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = store.clock()
    monkeypatch.setattr(store._store, "clock", lambda: now)  # type: ignore[attr-defined]
    claim = Claim("x:2", "2/p", f"{2:016}", 30 * SECOND)
    others, executed = [tell() for _ in range(2)], tell()
    store.apply(claim.key, claim.acquire())
    roster.begin(executed.token)
    now += 20 * SECOND
    assert not were_read
    heartbeat.beat()
    assert were_read == [executed]
    assert store.inspect(claim.key).holders[0].remaining == 30 * SECOND
    assert list(heartbeat._deliveries) == [others[0].token, others[1].token, executed.token]


@pytest.mark.proves("read at the heartbeat")
def test_the_first_delivery_of_a_task_tells_how_often_its_leases_are_renewed(
    heartbeat: Heartbeat, tell: Callable[..., Unread], were_read: list[Unread]
) -> None:
    tell("quick")
    assert not were_read
    assert heartbeat.period == 6 / RENEWALS_PER_TTL


@pytest.mark.proves("read at the heartbeat")
def test_the_ttl_of_a_call_sets_how_often_its_lease_is_renewed(
    heartbeat: Heartbeat, tell: Callable[..., Unread]
) -> None:
    tell(values={"exclusive": {"ttl": 3}})
    assert heartbeat.period == 3 / RENEWALS_PER_TTL


@pytest.mark.promise(
    "A worker renews as often as the living leases need: after the last short one as seldom as before it",
    name="period of the heartbeat",
    broke="red before: the period stayed as short as the shortest lease needed",
)
def test_the_heart_beats_as_often_as_the_leases_need_that_live(
    heartbeat: Heartbeat, tell: Callable[..., Unread]
) -> None:
    slow, quick, of_a_call = tell("slow"), tell("quick"), tell(values={"exclusive": {"ttl": 0.1}})
    periods = []
    for ended in (None, of_a_call, quick):
        if ended:
            heartbeat.untrack(ended.token)
        heartbeat.beat()
        periods.append(heartbeat.period * RENEWALS_PER_TTL)
    assert periods == pytest.approx([0.1, 6, 30])
    assert list(heartbeat._deliveries) == [slow.token]


@pytest.mark.proves("period of the heartbeat")
def test_a_short_lease_ends_the_pause_before_the_next_beat(
    heartbeat: Heartbeat, tell: Callable[..., Unread]
) -> None:
    for _ in range(2):
        quick = tell("quick")
        assert heartbeat._calls.get_nowait()
        heartbeat.untrack(quick.token)
        heartbeat.beat()


@pytest.mark.proves("read at the heartbeat")
def test_a_message_that_names_another_store_is_read_at_once(
    tell: Callable[..., Unread], were_read: list[Unread]
) -> None:
    assert were_read == [tell(store="of another server")]


@pytest.mark.proves("read at the heartbeat")
def test_a_large_body_is_not_kept_while_its_task_runs(
    heartbeat: Heartbeat, tell: Callable[..., Unread]
) -> None:
    bodies = []
    for size in (1_001, 1_000):
        read, *_ = heartbeat._deliveries[tell(body=b"x" * size).token]
        delivery = read()
        assert delivery is not None
        bodies.append(delivery.body)
    assert bodies == [b"", b"x" * 1_000]


@pytest.mark.proves("read at the heartbeat")
def test_a_delivery_without_options_is_not_tracked(heartbeat: Heartbeat, tell: Callable[..., Unread]) -> None:
    tell(switched_off=["exclusive"])
    assert not heartbeat._deliveries


@pytest.mark.proves("read at the heartbeat")
def test_a_delivery_that_cannot_be_read_stops_no_beat(
    heartbeat: Heartbeat, roster: Roster, store: MemoryStore, tell: Callable[..., Unread]
) -> None:
    unread, claim = tell(), Claim("x:0", "0/p", f"{0:016}", 30 * SECOND)
    store.apply(claim.key, claim.acquire())
    unread.error = ValueError("no key")
    roster.begin(unread.token)
    heartbeat.beat()
    heartbeat.release_all()
    assert list(heartbeat._deliveries) == [unread.token]
