"""What a beat does for the runs in the roster."""

from __future__ import annotations

from threading import Event
from typing import Any

import pytest
from celery import Celery

from celery_exclusive import Exclusive
from celery_exclusive.core.claim import Claim, UniqueClaim
from celery_exclusive.core.delivery import Claims
from celery_exclusive.core.records import RENEWALS_PER_TTL, SECOND
from celery_exclusive.leases.keeper import Known
from celery_exclusive.stores.memory import MemoryStore
from celery_exclusive.system.deadline import at_most
from celery_exclusive.worker.context import WorkerContext
from celery_exclusive.worker.heartbeat import Heartbeat
from celery_exclusive.worker.roster import Roster, SharedRoster

X = Claim("x:k", "id/p", "t" * 16, 30 * SECOND)
U = Claim("u:k", "id/p", "t" * 16, 30 * SECOND)
BOTH = Claims(
    id="id/p", token=X.token, exclusive=X, unique=UniqueClaim(U, "finished", SECOND, is_acquired=True)
)


def work() -> None: ...


def of_ttl(seconds: float) -> Claims:
    return Claims(id="id/p", token="t", exclusive=Claim("x", "id/p", "t", round(seconds * SECOND)))


@pytest.mark.proves("silent node")
def test_a_beat_waits_for_the_epoch_only_until_the_next_one_is_due(
    heartbeat: Heartbeat, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, epoch = list[float](), store.epoch
    monkeypatch.setattr(store, "epoch", lambda: waits.append(at_most(600)) or epoch())
    heartbeat.beat()
    assert 0 < waits[0] <= heartbeat.period


def test_a_beat_keeps_the_namespace_for_its_broker(
    heartbeat: Heartbeat, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = list[str]()
    monkeypatch.setattr(store, "keep_namespace", lambda broker, *_, **__: kept.append(broker) or broker)
    heartbeat.beat()
    assert kept == ["broker"]


@pytest.mark.proves("only held leases are restored")
def test_an_expired_lease_is_not_restored_when_the_store_loses_its_data(
    heartbeat: Heartbeat, roster: Roster, store: MemoryStore
) -> None:
    store.apply(X.key, X.acquire())
    store.apply(U.key, U.acquire_alone(U.ttl, "running"))
    roster.begin(BOTH).hold(X, U)
    heartbeat.beat()
    assert (roster.known() or Known("", 0)).at > 0
    store.apply(X.key, X.release())  # as if it had expired
    heartbeat.beat()
    assert roster.known() == Known(store.epoch(), 0)  # no child restores a lease without asking the heartbeat
    store.clear()
    heartbeat.beat()
    assert store.inspect(X.key).holders == ()
    assert [owner.id for owner in store.inspect(U.key).holders] == [U.id]


@pytest.mark.proves("only held leases are restored")
def test_a_lease_that_is_not_granted_is_renewed_and_not_restored(
    heartbeat: Heartbeat, roster: Roster, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = store.clock()
    monkeypatch.setattr(store._store, "clock", lambda: now)  # type: ignore[attr-defined]
    store.apply(X.key, X.acquire())
    now += 20 * SECOND
    heartbeat.beat()
    assert store.inspect(X.key).holders[0].remaining == 10 * SECOND  # no child has begun it
    roster.begin(BOTH)
    heartbeat.beat()
    assert store.inspect(X.key).holders[0].remaining == 30 * SECOND
    store.clear()
    heartbeat.beat()
    assert store.inspect(X.key).holders == ()


@pytest.mark.proves("only held leases are restored")
def test_a_lease_that_is_granted_during_a_beat_does_not_count_as_lost(
    heartbeat: Heartbeat, roster: Roster, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot, renew = roster.begin(BOTH), store.renew

    def renew_and_grant(*asked: Any) -> Any:
        answers = renew(*asked)
        store.apply(X.key, X.acquire())
        slot.hold(X)
        return answers

    monkeypatch.setattr(store, "renew", renew_and_grant)
    heartbeat.beat()
    monkeypatch.undo()
    assert (roster.known() or Known("", 0)).at > 0
    store.clear()
    heartbeat.beat()
    assert [owner.id for owner in store.inspect(X.key).holders] == [X.id]


@pytest.mark.proves("only held leases are restored")
def test_a_lease_that_is_released_while_it_is_restored_is_released_again(
    heartbeat: Heartbeat, roster: Roster, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot, apply = roster.begin(BOTH), store.apply
    store.apply(X.key, X.acquire())
    slot.hold(X)
    store.clear()
    monkeypatch.setattr(store, "apply", lambda *asked: (slot.hold(), apply(*asked))[1])
    heartbeat.beat()
    assert store.inspect(X.key).holders == ()


@pytest.mark.promise(
    "A beat that restores leases reads the slots of their runs only, however many children the worker has",
    broke="red before: each of two questions per lease read all slots",
)
def test_beat_that_restores_many_leases_reads_each_slot_a_few_times(
    heartbeat: Heartbeat, roster: SharedRoster, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    children = 20
    for number in range(children):
        vars(roster)["_number"] = number  # as if each were a child of its own
        id = f"id{number}/p"
        roster.begin(Claims(id=id, token="t", exclusive=(lock := Claim(f"x:{id}", id, "t", SECOND)))).hold(
            lock
        )
    reads, read = list[int](), roster._read
    monkeypatch.setattr(roster, "_read", lambda index, pid: reads.append(index) or read(index, pid))
    store.clear()
    heartbeat.beat()
    assert len(list(store.scan())) == children
    assert len(reads) == 3 * children  # to find its leases, before a restore, and after it


@pytest.mark.promise(
    "A worker renews as often as the living leases need: after the last short one as seldom as before it",
    name="period of the heartbeat",
    broke=(
        "red before: the period stayed as short as the shortest lease needed; the roster is looked at only "
        "when a beat is due"
    ),
)
def test_heart_beats_as_often_as_the_living_leases_need(heartbeat: Heartbeat) -> None:
    heartbeat.roster = roster = Roster()
    periods = []
    slots = [roster.begin(of_ttl(ttl)) for ttl in (600, 6, 0.1)]
    while slots:
        heartbeat.beat()
        periods.append(heartbeat.period * RENEWALS_PER_TTL)
        roster.end(slots.pop())
    assert periods == pytest.approx([0.1, 6, 30])


@pytest.mark.proves("period of the heartbeat")
def test_roster_is_looked_at_as_often_as_the_tasks_and_the_calls_that_have_come_need(
    app: Celery, heartbeat: Heartbeat
) -> None:
    app.task(name="work", shared=False, exclusive=Exclusive(ttl=6))(work)
    app.finalize()
    services: Any = app._celery_exclusive  # type: ignore[attr-defined]
    services.workers.append(WorkerContext(services, heartbeat=heartbeat))
    app.tasks["work"].Strategy = lambda *_: None
    app.tasks["work"].start_strategy(app, None)  # as a consumer that begins
    looks = [heartbeat._look * RENEWALS_PER_TTL]
    for ttl in (0.3, 1800):
        heartbeat.look_more_often_for(app.tasks["work"], {"exclusive": {"ttl": ttl}})
        looks.append(heartbeat._look * RENEWALS_PER_TTL)
    assert looks == pytest.approx([6, 0.3, 0.3])


@pytest.mark.proves("period of the heartbeat")
def test_run_with_a_short_lease_is_renewed_though_the_next_beat_was_far(
    heartbeat: Heartbeat, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    heartbeat.roster = roster = Roster()
    heartbeat.period, heartbeat._longest, heartbeat._look = 600, 600, 0.01
    renewed, looked, runs = Event(), Event(), roster.runs
    monkeypatch.setattr(roster, "runs", lambda: looked.set() or runs())
    monkeypatch.setattr(store, "renew", lambda asked: renewed.set() or [True for _ in asked])
    heartbeat.start()
    try:
        assert looked.wait(60)
        roster.begin(of_ttl(0.1))
        assert renewed.wait(60)
    finally:
        heartbeat.stop()
