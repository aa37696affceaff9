"""What children say in the roster, and what the main process reads there."""

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

from celery_exclusive.core.claim import LAST_CHANCE, Claim, UniqueClaim
from celery_exclusive.core.delivery import Claims
from celery_exclusive.core.records import SECOND
from celery_exclusive.core.room import Share
from celery_exclusive.errors import ExclusiveError
from celery_exclusive.leases.keeper import Known
from celery_exclusive.worker import roster as module
from celery_exclusive.worker import steps
from celery_exclusive.worker.roster import Roster, SharedRoster, Slot

SHARE = Share(3, "acme", 2, 4, ((60, 60 * SECOND), (5, SECOND)))
X = Claim("x:k", "id/p", "t" * 16, 30 * SECOND, 2, ((7, SECOND),), SHARE)
U = Claim("u:k", "id/p", "t" * 16, 20 * SECOND)
UNIQUE = UniqueClaim(U, "finished", 7 * SECOND, is_acquired=True)
CHANCE = Claim(LAST_CHANCE, "id/p", "t" * 16, 30 * SECOND)
BOTH = Claims(
    id="id/p", token=X.token, exclusive=X, unique=UNIQUE, acks_late=True, last_chance=CHANCE, grace=9.5
)


def other(token: str) -> Claims:
    return Claims(id="id/p", token=token, exclusive=replace(X, token=token))


@pytest.fixture
def shared() -> Iterator[SharedRoster]:
    roster = SharedRoster(2)
    yield roster
    roster.close()


@contextmanager
def child(act: Callable[[], object], index: int = 0) -> Iterator[int]:
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


def run(roster: Roster, claims: Claims, *held: Claim) -> Callable[[], Slot]:
    def act() -> Slot:
        slot = roster.begin(claims)
        slot.hold(*held)
        return slot

    return act


def seen(roster: Roster) -> list[tuple[Claims, tuple[Claim, ...]]]:
    return [(slot.claims, slot.held) for slot in roster.runs()]


@pytest.mark.promise(
    "A slot of the roster shows what the present run of a living child claims and holds, forked or not; it "
    "is read whole, and claims that do not fit fail their task",
    name="roster",
    broke=(
        "a slot counts without its pid; the checksum is not compared; the length is not checked; what is let "
        "go, or ended, stays held; the file stays"
    ),
)
def test_roster_shows_what_living_children_claim_and_hold(shared: SharedRoster) -> None:
    assert seen(shared) == []
    first, second = other("a" * 16), replace(BOTH, exclusive=None)
    with (
        child(run(shared, first)),
        child(run(shared, second, U), 1),
        child(run(shared, BOTH, X, U, CHANCE), 2),
    ):
        assert seen(shared) == [(first, ()), (second, (U,)), (BOTH, (X, U, CHANCE))]
        assert shared.left() == []
    assert seen(shared) == []
    assert [slot.claims for slot in shared.left()] == [first, second, BOTH]


@pytest.mark.proves("roster")
def test_lease_that_is_let_go_is_not_held_and_run_that_ended_is_not_seen(shared: SharedRoster) -> None:
    with child(lambda: run(shared, BOTH, X, U)().hold(X)):
        (slot,) = shared.runs()
        assert slot.held == (X,)
        assert (shared.holds(X, slot), shared.holds(U, slot)) == (True, False)
    assert not shared.holds(X, slot)  # its child is gone
    with child(lambda: shared.end(run(shared, BOTH, X, U)())):
        assert (shared.runs(), shared.left()) == ([], [])


@pytest.mark.proves("roster")
def test_roster_of_one_process_shows_what_its_runs_hold() -> None:
    roster = Roster()
    slot = roster.begin(BOTH)
    slot.hold(X)
    assert (roster.holds(X, slot), roster.holds(U, slot)) == (True, False)
    roster.end(slot)
    assert not roster.holds(X, slot)


@pytest.mark.proves("roster")
def test_next_child_of_a_slot_holds_nothing_that_the_previous_child_held(shared: SharedRoster) -> None:
    with child(run(shared, BOTH, X, U)):
        (slot,) = shared.runs()
        assert shared.holds(X, slot)
    with child(run(shared, other("b" * 16))):
        assert seen(shared) == [(other("b" * 16), ())]
        assert not shared.holds(X, slot)


@pytest.mark.proves("roster")
def test_roster_holds_nothing_of_a_run_that_has_ended(roster: SharedRoster) -> None:
    slot = run(roster, BOTH, X)()
    (as_read,) = roster.runs()
    assert roster.holds(X, as_read)
    roster.end(slot)
    assert not roster.holds(X, as_read)


@pytest.mark.proves("roster")
def test_slot_of_a_killed_child_is_found_by_the_token_of_its_delivery(shared: SharedRoster) -> None:
    with child(run(shared, other("a" * 16), X)), child(run(shared, BOTH), 1):
        pass
    found = shared.find(BOTH.token)
    assert found
    assert found.claims == BOTH
    assert shared.find("c" * 16) is None


@pytest.mark.proves("roster")
def test_keys_of_a_thousand_characters_outside_ascii_fit_into_a_slot(roster: SharedRoster) -> None:
    key = "\U0001f512" * 1000
    claims = replace(BOTH, exclusive=replace(X, key=key), unique=replace(UNIQUE, claim=replace(U, key=key)))
    run(roster, claims, replace(X, key=key))()
    assert [slot.claims for slot in roster.runs()] == [claims]


@pytest.mark.proves("roster")
def test_slot_that_is_half_written_is_not_read(roster: SharedRoster) -> None:
    run(roster, BOTH, X)()
    roster._records[0].checksum ^= 1
    assert roster.runs() == []


@pytest.mark.proves("roster")
def test_claims_that_do_not_fit_into_a_slot_are_refused_and_leave_the_slot_empty(
    roster: SharedRoster,
) -> None:
    with pytest.raises(ExclusiveError, match=r"the task id and the keys take \d+ bytes.*shorter task_id"):
        roster.begin(replace(BOTH, id="i" * module._LONGEST))
    assert roster.runs() == []


@pytest.mark.proves("roster")
def test_child_that_is_not_forked_finds_the_roster_which_leaves_no_file_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(current_process(), "index", 0, raising=False)
    roster = SharedRoster(1, is_inherited=False)
    path = Path(os.environ["CELERY_EXCLUSIVE_ROSTER"])
    of_child = SharedRoster.of_parent()
    assert of_child
    run(of_child, BOTH, U)()
    assert seen(roster) == [(BOTH, (U,))]
    roster.see(Known("epoch", 17))
    assert of_child.known() == Known("epoch", 17)
    of_child.close()
    assert path.exists()
    roster.close()
    assert not list(path.parent.glob(f"{path.name}*"))
    assert "CELERY_EXCLUSIVE_ROSTER" not in os.environ


@pytest.mark.proves("stopping worker without its store")
def test_children_know_the_time_limits_of_their_worker(shared: SharedRoster) -> None:
    assert shared.time_limits == (None, None)
    shared.limit(8, 7.5)
    with child(lambda: None):
        assert shared.time_limits == (8, 7.5)


def test_children_learn_that_their_worker_stops_and_that_a_monitor_listens(shared: SharedRoster) -> None:
    def look() -> None:
        assert not shared.is_stopping
        assert shared.listener is None
        shared.stop()  # in place of the parent
        shared.listen("w1@höst")

    with child(look):
        assert (shared.is_stopping, shared.listener) == (True, "w1@höst")
    shared.see(Known("e" * 64, 1))
    assert (shared.is_stopping, shared.listener) == (True, "w1@höst")
    shared.listen(None)
    assert shared.listener is None
    assert shared.runs() == []


def test_epoch_that_is_too_long_for_the_roster_is_not_known(shared: SharedRoster) -> None:
    assert shared.known() is None
    shared.see(Known("e" * 64, 1))
    assert shared.known() == Known("e" * 64, 1)
    shared.see(Known("e" * 65, 2))
    assert shared.known() is None


@pytest.mark.proves("roster")
def test_roster_of_threads_shows_the_runs_that_have_not_ended() -> None:
    roster = Roster()
    slot, second = run(roster, BOTH, X, U)(), roster.begin(other("a" * 16))
    assert seen(roster) == [(BOTH, (X, U)), (other("a" * 16), ())]
    roster.end(second)
    slot.hold(U)
    assert seen(roster) == [(BOTH, (U,))]
    roster.end(slot)
    assert seen(roster) == []
    assert not roster.holds(U, slot)


@pytest.mark.promise(
    "A thread that reads the epoch of its store gets one that the heartbeat has seen, with its own time",
    broke="red before: the roster of threads had two fields for them, and no room for a long epoch",
)
@pytest.mark.parametrize("epoch", ["e", "e" * 1000], ids=["short", "long"])
def test_roster_of_threads_has_the_epoch_and_its_time_in_one_object(epoch: str) -> None:
    roster, known = Roster(), Known(epoch, 17)
    roster.see(known)
    assert roster.known() is known


def test_process_outside_the_pool_has_no_shared_roster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(module._PATH, raising=False)
    assert SharedRoster.of_parent() is None
    monkeypatch.setenv(module._PATH, str(tmp_path / "of a worker that has ended"))
    assert SharedRoster.of_parent() is None


def test_app_that_was_pickled_can_be_read_by_any_process(app: Celery) -> None:
    app.fixups = {*app.fixups, steps._FIXUP}  # as a worker does
    assert pickle.loads(pickle.dumps(app)).main == app.main


@pytest.mark.proves("kept lock, early retry")
@pytest.mark.parametrize("is_shared", [False, True])
def test_the_main_process_sees_a_lock_that_a_run_leaves_to_its_retry(
    shared: SharedRoster, *, is_shared: bool
) -> None:
    roster, of_retry = shared if is_shared else Roster(), replace(X, id="id/retry")

    def act() -> None:
        slot = roster.begin(BOTH)
        slot.hold(X, U)
        slot.hand_over(of_retry)

    def seen() -> None:
        (slot,) = roster.runs()
        assert slot.claims == replace(BOTH, exclusive=of_retry)
        assert set(slot.held) == {of_retry, U}
        assert roster.find(X.token).claims == slot.claims  # type: ignore[union-attr]

    if is_shared:
        with child(act):
            seen()
    else:
        act()
        seen()
