"""What children say in the roster, and what the main process makes of it."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from billiard import Process
from billiard.process import current_process
from celery import Celery

from celery_exclusive.core.claim import Claim, UniqueClaim
from celery_exclusive.core.records import SECOND
from celery_exclusive.leases.lease import Known
from celery_exclusive.messages.header import Header
from celery_exclusive.messages.stored import Content
from celery_exclusive.stores.memory import MemoryStore
from celery_exclusive.system.deadline import at_most
from celery_exclusive.worker import roster as module
from celery_exclusive.worker import steps
from celery_exclusive.worker.heartbeat import Heartbeat
from celery_exclusive.worker.received import Received
from celery_exclusive.worker.roster import Roster

X = Claim("x:k", "id/p", "t" * 16, 30 * SECOND)
U = Claim("u:k", "id/p", "t" * 16, 30 * SECOND)
CONTENT: Content = (b"[]", "application/json", "utf-8", {"exclusive": {}}, {}, "celery", "")
UNIQUE = UniqueClaim(U, "finished", SECOND, is_acquired=True)
BOTH = Received(
    id="id/p",
    token=X.token,
    exclusive=X,
    unique=UNIQUE,
    acks_late=True,
    header=Header("p"),
    content=CONTENT,
)


def nth(number: int) -> Received:
    token = f"{number:016}"
    return replace(BOTH, token=token, exclusive=replace(X, key=f"x:{number}", token=token), unique=None)


@contextmanager
def child(act: Callable[[], None], index: int = 0) -> Iterator[int]:
    """A child of a pool that does this and lives until the end of the block: its pid."""
    ready, over = os.pipe(), os.pipe()

    def run() -> None:
        act()
        os.write(ready[1], b"!")
        os.close(over[1])
        os.read(over[0], 1)

    process: Any = Process(target=run)
    process.index = index
    process.start()
    try:
        assert os.read(ready[0], 1)
        yield process.pid
    finally:
        os.close(over[1])
        process.join()
        for end in (*ready, over[0]):
            os.close(end)


def say(roster: Roster, token: str, *held: Claim) -> Callable[[], None]:
    def act() -> None:
        roster.begin(token)
        if held:
            roster.note_granted(replace(BOTH, token=token), held)

    return act


@pytest.mark.promise(
    "Children report in the roster what they execute and hold, forked or not; a slot belongs to its living "
    "child",
    name="roster",
    broke="a slot counts without its pid; all is held from the start; the file stays",
)
def test_a_roster_tells_what_living_children_execute_and_hold() -> None:
    roster = Roster(2)
    assert roster.read() == {}
    with child(say(roster, "a" * 16)), child(say(roster, "b" * 16, X), 1), child(say(roster, "c" * 16, U), 2):
        assert roster.read() == {
            "a" * 16: [False, False],
            "b" * 16: [True, False],
            "c" * 16: [False, True],
        }
    assert roster.read() == {}  # all slots are as they were, and their children are gone


@pytest.mark.proves("roster")
def test_a_lease_that_ends_is_held_no_more_and_a_delivery_that_has_finished_is_not_executed() -> None:
    roster = Roster(1)

    def end() -> None:
        say(roster, BOTH.token, X, U)()
        roster.note_releasing(BOTH, [U])

    with child(end):
        assert roster.read() == {BOTH.token: [True, False]}

    def finish() -> None:
        say(roster, BOTH.token, X, U)()
        roster.finish()

    with child(finish):
        assert roster.read() == {}


@pytest.mark.proves("roster")
def test_the_next_child_of_a_slot_holds_nothing_that_the_one_before_held() -> None:
    roster = Roster(1)
    with child(say(roster, "a" * 16, X, U)):
        pass
    with child(say(roster, "b" * 16)):
        assert roster.read() == {"b" * 16: [False, False]}


@pytest.mark.proves("roster")
def test_a_child_that_is_not_forked_finds_the_roster_which_leaves_no_file_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(current_process(), "index", 0, raising=False)
    roster = Roster(1, is_inherited=False)
    path = Path(os.environ["CELERY_EXCLUSIVE_ROSTER"])
    of_child = Roster.of_parent()
    of_child.begin("a" * 16)
    assert roster.read() == {"a" * 16: [False, False]}
    roster.see(Known("epoch", 17))
    assert of_child.known() == Known("epoch", 17)
    of_child.close()
    assert path.exists()
    roster.close()
    assert not path.exists()
    assert "CELERY_EXCLUSIVE_ROSTER" not in os.environ


@pytest.mark.proves("stopping worker without its store")
def test_children_learn_that_their_worker_stops_whatever_epoch_it_sees() -> None:
    roster = Roster(1)

    def look() -> None:
        assert not roster.is_stopping
        roster.note_stopping()  # the memory is shared: here in place of the parent

    with child(look):
        assert roster.is_stopping
    roster.see(Known("e" * 64, 1))
    assert roster.is_stopping
    assert roster.read() == {}


def test_an_epoch_that_is_too_long_for_the_roster_is_not_known() -> None:
    roster = Roster(1)
    assert roster.known() is None
    roster.see(Known("e" * 64, 1))
    assert roster.known() == Known("e" * 64, 1)
    roster.see(Known("e" * 65, 2))
    assert roster.known() is None


# What the heartbeat makes of it -------------------------------------------------------------------------


@pytest.mark.proves("forgotten body")
def test_a_heartbeat_remembers_what_is_executed_and_as_much_else_as_there_are_slots(
    heartbeat: Heartbeat, roster: Roster
) -> None:
    roster.begin(nth(1).token)
    for number in range(10):
        heartbeat.track(nth(number))
    assert list(heartbeat._deliveries) == [nth(number).token for number in (1, 8, 9)]


@pytest.mark.proves("silent node")
def test_a_beat_waits_for_the_epoch_only_until_the_next_one_is_due(
    heartbeat: Heartbeat, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, epoch = list[float](), store.epoch
    monkeypatch.setattr(store, "epoch", lambda: waits.append(at_most(600)) or epoch())
    heartbeat.beat()
    assert 0 < waits[0] <= heartbeat.period


@pytest.mark.proves("only held leases are restored")
def test_an_expired_lease_is_not_restored_when_the_store_loses_its_data(
    heartbeat: Heartbeat, roster: Roster, store: MemoryStore
) -> None:
    store.apply(X.key, X.acquire())
    store.apply(U.key, U.acquire_alone(U.ttl, "running"))
    heartbeat.track(BOTH)
    roster.begin(BOTH.token)
    roster.note_granted(BOTH, [X, U])
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
def test_a_delivery_without_a_granted_lease_is_renewed_and_not_restored(
    heartbeat: Heartbeat, roster: Roster, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = store.clock()
    monkeypatch.setattr(store._store, "clock", lambda: now)  # type: ignore[attr-defined]
    store.apply(X.key, X.acquire())
    heartbeat.track(BOTH)
    now += 20 * SECOND
    heartbeat.beat()
    assert store.inspect(X.key).holders[0].remaining == 10 * SECOND  # no child has begun it
    roster.begin(BOTH.token)
    heartbeat.beat()
    assert store.inspect(X.key).holders[0].remaining == 30 * SECOND
    store.clear()
    heartbeat.beat()
    assert store.inspect(X.key).holders == ()


def test_a_process_outside_the_pool_has_no_roster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(module._PATH, raising=False)
    assert Roster.of_parent() is None
    monkeypatch.setenv(module._PATH, str(tmp_path / "of a worker that has ended"))
    assert Roster.of_parent() is None


def test_an_app_that_was_pickled_can_be_read_by_any_process(app: Celery) -> None:
    app.fixups = {*app.fixups, steps._FIXUP}  # as a worker does
    assert pickle.loads(pickle.dumps(app)).main == app.main
