"""The scenarios: what happens in the life of tasks while a process ends at one of its requests."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import uuid4

from tests.worker.crashes.lane import Lane

CHILDREN = tuple(f"child {number}" for number in range(1, 7))
ROLES = ("publisher", "main", *CHILDREN, "courier", "releaser")


@dataclass(frozen=True)
class Scenario:
    """One of them.

    Parameters:
        play: makes the calls, and arms the point. All that it waits for is also over when the victim ends.
        task: the task of the call that shows, at the end, that the key is free.
        fewest: the number of points that it has at least.
        needs: the roles that make requests on every stack.
        roles: those whose requests are points.
        most: the number of requests of a role that are points. A slow run has more heartbeats and idle sweeps
            than the next.
    """

    name: str
    play: Callable[[Lane, str], None]
    task: str
    fewest: int
    needs: tuple[str, ...]
    roles: tuple[str, ...] = ROLES
    most: int = 20


def free(lane: Lane, key: str) -> None:
    """A key is free, and one task runs."""
    lane.arm()
    lane.call("alone", key, "a")
    lane.wait_for("end", "a")


def busy(lane: Lane, key: str) -> None:
    """A key is busy: a task is parked, and its turn comes by the broker."""
    lane.call("alone", key, "h", to=lane.survivor, hold=True)
    lane.wait_for("start", "h")
    lane.arm()
    lane.call("alone", key, "b")
    lane.wait_until_in_line(1, "alone", key)
    lane.open(key)
    lane.wait_for("end", "b")


def _let_one_wait(lane: Lane, key: str) -> None:
    """Let a run hold the key, and another task wait for it."""
    lane.call("alone", key, "a", hold=True)
    lane.wait_for("start", "a")
    lane.call("alone", key, "b")
    lane.wait_until_in_line(1, "alone", key)


def hand_on(lane: Lane, key: str) -> None:
    """A run ends, and its worker runs the next task in line at once."""
    _let_one_wait(lane, key)
    lane.arm()
    lane.open(key)
    lane.wait_for("end", "b")


def renewals(lane: Lane, key: str) -> None:
    """A run lasts for some heartbeats, which renew its lease, while another task waits."""
    _let_one_wait(lane, key)
    lane.arm()
    beats = lambda: lane.record.events("request", role="heartbeat", moment="after")  # noqa: E731
    lane.eventually(lambda: len(beats()) >= BEATS or lane.end, "some heartbeats")
    lane.open(key)
    lane.wait_for("end", "b")


def order(lane: Lane, key: str) -> None:
    """Calls take their places in line when they are published."""
    lane.arm()
    lane.call("ordered", key, "a", hold=True)
    lane.wait_for("start", "a")
    for tag in ("b", "c"):
        lane.call("ordered", key, tag)
    lane.open(key)
    lane.wait_for("end", "c")


def unique(lane: Lane, key: str) -> None:
    """A unique task is retried; a second call is a duplicate."""
    lane.arm()
    lane.call("once", key, "a", hold=True)
    lane.wait_for("start", "a")
    lane.call("once", key, "duplicate")
    lane.open(key)
    lane.eventually(lambda: lane.journal.events("end", attempt=1) or lane.end, "the end of the retry")


def revoked(lane: Lane, key: str) -> None:
    """A unique task is revoked before a worker receives it, which releases its key."""
    id = str(uuid4())
    lane.lab.app.control.revoke(id, reply=True, timeout=5, limit=2)
    lane.arm()
    call = lane.call("revoked", key, "a", id=id)
    lane.eventually(lambda: lane.lab.app.AsyncResult(call.id).ready() or lane.end, "the end of the task")
    lane.eventually(lambda: not lane.state("revoked", key).is_queued or lane.end, "a free key")


def chord(lane: Lane, key: str) -> None:
    """An exclusive and a unique task are members of a chord."""
    lane.arm()
    lane.call("chord", key, "chord")
    lane.wait_for("gathered", "chord")


def recover(lane: Lane, key: str) -> None:
    """A worker has died with a run; the victim recovers it, or, with early acknowledgement, runs the next."""
    doomed = lane.start_worker("doomed")
    lane.call("alone", key, "a", to=doomed, hold=True)
    lane.wait_for("start", "a")
    lane.call("alone", key, "b")
    lane.wait_until_in_line(1, "alone", key)
    lane.adopt(lane.victim, doomed.queue)
    lane.let_sweep(lane.victim)
    lane.kill(doomed)
    lane.open(key)

    def remaining() -> float:
        return max((holder.remaining for holder in lane.state("alone", key).holders), default=0)

    lane.eventually(lambda: remaining() < 0.4, "the last half second of the lease")
    lane.let_sweep()
    lane.eventually(lambda: not remaining(), "the end of the lease")
    lane.arm()
    lane.let_sweep(lane.victim)
    lane.wait_for("end", "b")


def debounce(lane: Lane, key: str) -> None:
    """Three calls join a window, which ends."""
    lane.let_sweep()
    lane.arm()
    for tag in "abc":
        lane.call("late", key, tag)
    over = time.monotonic() + 0.4
    lane.eventually(lambda: time.monotonic() > over or lane.end, "the end of the window")
    lane.let_sweep(lane.victim)
    lane.wait_for("end", "c")


BEATS = 5
CALLED = ("publisher", "main", "child 1")
SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("free key", free, "alone", 10, CALLED),
        Scenario("busy key", busy, "alone", 18, (*CALLED, "child 2")),
        Scenario("hand-on", hand_on, "alone", 12, ("main", "child 1", "child 2")),
        Scenario("renewals", renewals, "alone", 3 * BEATS, ("heartbeat",), ("heartbeat",), most=BEATS),
        Scenario("order", order, "ordered", 20, (*CALLED, "child 2", "child 3")),
        Scenario("unique", unique, "once", 15, (*CALLED, "child 2")),
        Scenario("revoked", revoked, "revoked", 5, ("publisher", "main", "releaser")),
        Scenario("chord", chord, "alone", 15, (*CALLED, "child 2", "child 3")),
        Scenario(
            "recover", recover, "alone", 15, ("main", "child 1", "courier", "reaper"), (*ROLES, "reaper")
        ),
        Scenario("debounce", debounce, "late", 12, (*CALLED, "courier", "reaper"), (*ROLES, "reaper")),
    )
}
