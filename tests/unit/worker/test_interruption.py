"""The signal that interrupts a superseded body hits the run that was meant, and no other one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from billiard import Process
from billiard.exceptions import SoftTimeLimitExceeded
from billiard.pool import soft_timeout_sighandler
from billiard.process import current_process

from celery_exclusive.core.claim import Claim
from celery_exclusive.core.delivery import Claims
from celery_exclusive.core.operations import Remove
from celery_exclusive.core.records import SECOND
from celery_exclusive.run import Run
from celery_exclusive.stores.memory import MemoryStore
from celery_exclusive.system.signals import SOFT_LIMIT, without_soft_limit
from celery_exclusive.worker import interruption
from celery_exclusive.worker.heartbeat import Heartbeat
from celery_exclusive.worker.interruption import Interrupter, interruptible, look_every
from celery_exclusive.worker.roster import Roster, SharedRoster

CLAIM = Claim("x:k", "a/p", "a" * 16, 30 * SECOND)
GRACED = Claims(id="a/p", token=CLAIM.token, exclusive=CLAIM, grace=0)
pytestmark = pytest.mark.proves("supersede")


def body_of(run: Run) -> Run:
    run.body_begun, run.body_over = True, False
    return run


def in_child(act: Callable[[SharedRoster], None]) -> None:
    """Do this in a child with the handler of a pool: its signals and handlers are its own."""

    def run() -> None:
        process: Any = current_process()
        process.index = 0
        signal.signal(SOFT_LIMIT, soft_timeout_sighandler)
        act(SharedRoster(1))

    process = Process(target=run)
    process.start()
    process.join(60)
    assert process.exitcode == 0


def test_a_body_is_interrupted_by_its_own_signal_alone() -> None:
    def act(roster: SharedRoster) -> None:
        mine = roster.begin(GRACED)
        run = body_of(Run("a"))
        (seen,) = roster.runs()
        with interruptible(run, mine):
            with pytest.raises(SoftTimeLimitExceeded):
                roster.interrupt(seen)
            assert run.is_interrupted
            run.is_interrupted = False
            with pytest.raises(SoftTimeLimitExceeded):
                signal.raise_signal(SOFT_LIMIT)  # of a soft time limit
            assert not run.is_interrupted
            with without_soft_limit():
                roster.interrupt(seen)
            with pytest.raises(SoftTimeLimitExceeded):
                signal.raise_signal(SOFT_LIMIT)
            assert not run.is_interrupted
            run.body_over = True
            roster.interrupt(seen)
        assert not run.is_interrupted
        before = body_of(Run("a"))
        before.body_begun = False
        with interruptible(before, mine):
            roster.interrupt(seen)
            assert isinstance(before.failure, SoftTimeLimitExceeded)

    in_child(act)


def test_a_late_signal_is_not_raised_in_the_next_body() -> None:
    def act(roster: SharedRoster) -> None:
        mine = roster.begin(GRACED)
        (seen,) = roster.runs()
        with interruptible(Run("a"), mine):
            pass
        roster.end(mine)
        roster.interrupt(seen)  # it has seen that the run is over
        other = replace(GRACED, id="b/p", token="b" * 16)
        for claims in (replace(other, grace=None), other):
            slot = roster.begin(claims)
            run = body_of(Run("b"))
            with interruptible(run, slot):
                roster.interrupt(seen)
                roster._records[0].interrupted = seen.claims.token.encode()
                os.kill(os.getpid(), SOFT_LIMIT)  # it was sent when the run was not over yet
                assert not run.is_interrupted
                with pytest.raises(SoftTimeLimitExceeded):
                    signal.raise_signal(SOFT_LIMIT)

    in_child(act)


def test_a_run_is_interrupted_once_and_only_if_it_holds_its_key_and_is_superseded(
    store: MemoryStore, roster: SharedRoster, heartbeat: Heartbeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted = list[str]()
    monkeypatch.setattr(roster, "interrupt", lambda slot: interrupted.append(slot.claims.id))
    store.apply(CLAIM.key, CLAIM.acquire())
    slot = roster.begin(GRACED)
    newer = replace(Claim(CLAIM.key, "b/p", "b" * 16, 30 * SECOND).acquire(), message=b"{}", replaces=True)
    heartbeat.beat()
    store.apply(CLAIM.key, newer)
    heartbeat.beat()
    assert interrupted == []  # it does not hold its key, as far as it knows
    slot.hold(CLAIM)
    for _ in range(3):
        heartbeat.beat()
    assert interrupted == ["a/p"]
    assert heartbeat.period == 1
    in_threads = Interrupter(store, Roster())
    in_threads.look(roster.runs())
    assert interrupted == ["a/p"]


def test_a_run_is_interrupted_when_a_newer_call_has_waited_for_its_grace(
    store: MemoryStore, roster: SharedRoster, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted, now = list[str](), 100.0
    monkeypatch.setattr(roster, "interrupt", lambda slot: interrupted.append(slot.claims.id))
    monkeypatch.setattr(interruption.time, "monotonic", lambda: now)
    store.apply(CLAIM.key, CLAIM.acquire())
    newer = replace(CLAIM.acquire(), id="b/p", token="b", message=b"{}", replaces=True)
    roster.begin(replace(GRACED, grace=30)).hold(CLAIM)
    interrupter = Interrupter(store, roster)
    revoked = Remove("b/p")
    for seconds, request, expected in (
        (0, newer, []),
        (29, None, []),
        (1, revoked, []),
        (9, replace(newer, id="c/p"), []),
        (29, None, []),
        (1, None, ["a/p"]),
        (90, None, ["a/p"]),
    ):
        if request:
            store.apply(CLAIM.key, request)
        now += seconds
        interrupter.look(roster.runs())
        assert interrupted == expected
    assert [look_every(grace) for grace in (0, 2, 30, None)] == [1, 1, 7.5, float("inf")]
    store.clear()
