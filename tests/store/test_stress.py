"""Many processes against one store, killed and paused at random: a quarter of it, or all with STRESS=1."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from tests.stress.journal import Event
from tests.stress.plan import Fault, Plan, calm, storm
from tests.stress.run import run
from tests.stress.verdict import judge

FACTOR = float(os.environ.get("STRESS", "0.25"))

pytestmark = pytest.mark.timeout(int(600 * max(1, FACTOR)))


STORES = ["pickle:", "redis", "sqlite:", "postgres", "maria", "memcached"]


def on_each_store(*large: str) -> pytest.MarkDecorator:
    """Try a test on each store. `make test` leaves these to `make test-all`."""
    marked = [pytest.param(store, marks=pytest.mark.large) if store in large else store for store in STORES]
    return pytest.mark.parametrize("url", marked, indirect=True)


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """A store that processes share. `pickle:` is the memory store's code between a load and a save."""
    kind: str = request.param
    return kind if kind.endswith(":") else request.getfixturevalue(f"{kind}_url")


@pytest.mark.promise(
    "Many processes without a reaper lose no wake-up; workers and reaper that are killed, and paused past "
    "lease and redelivery, lose no task and run none twice. On Redis, SQLite, PostgreSQL, MariaDB and "
    "memcached",
    name="stress",
    figure=(
        "Redis: calm 14,400 tasks, 0 lost, 0 twice; storm 24,000 tasks, 960 SIGKILLs, 640 SIGSTOPs: 0 "
        "lost, 0 twice by us; 5,389 overlaps, all past an expired lease; 282 stale writes, all refused. "
        "SQLite: 11,200 tasks, 192 SIGKILLs, 128 SIGSTOPs: 0 lost, 0 twice by us. memcached: 400 tasks in "
        "calm; 300 in storm with 10 kills and 8 pauses. `make test` runs a quarter"
    ),
    command="python -m tests.stress --store redis --store sqlite:",
)
@on_each_store("maria")
def test_without_a_reaper_no_wake_up_is_lost(url: str):
    verdict = run(calm(url).scaled(FACTOR))
    assert not verdict.faults
    assert verdict.parks + verdict.held > verdict.tasks / 10
    assert verdict.overlaps == 0


@pytest.mark.proves("stress")
@on_each_store("postgres", "memcached")
def test_killed_and_paused_workers_lose_nothing_and_run_nothing_twice(url: str):
    plan = storm(url).scaled(FACTOR)
    verdict = run(plan)
    assert not verdict.faults
    assert verdict.parks + verdict.held > verdict.tasks / 10
    assert verdict.kills >= plan.kills > 0
    assert verdict.pauses == plan.pauses > 0


PAIR = Plan(url="pickle:", tasks=2, workers=2, keys=1, lost_acks=0, unfinished=0)


@pytest.mark.promise(
    "The stress test sees each fault that is planted, and a stale write",
    name="controls of stress",
)
@pytest.mark.parametrize(
    ("fault", "plan", "says"),
    [
        ("barge", replace(PAIR, meets="overlap"), "met others in the section"),
        ("short leases", replace(PAIR, meets="overlap"), "leases of"),
        ("park in two steps", replace(PAIR, meets="Held"), "the last wake-up was lost"),
        ("silent release", replace(PAIR, meets="Parked"), "the last wake-up was lost"),
        (
            "no tombstones",
            replace(PAIR, meets="Parked", lost_acks=0.5, seed=7193),  # loses the first six
            "had waited and had finished, and ran again",
        ),
        ("unfinished is done", replace(PAIR, unfinished=1), "tasks were lost"),
    ],
)
def test_the_stress_test_sees(fault: Fault, plan: Plan, says: str):
    assert says in "\n".join(run(replace(plan, fault=fault)).faults)


@pytest.mark.proves("controls of stress")
def test_the_stress_test_sees_a_stale_write():
    events = [
        Event(1, 1, "attempt", "a", ["task", "solo", "fresh"]),
        Event(2, 1, "lease", "a", [17, 100]),
        Event(3, 1, "written", "a", [True, 18]),
        Event(4, 1, "effect", "a"),
    ]
    assert judge(events, ["task"]).faults == ["a stale write to 'solo' was accepted"]
