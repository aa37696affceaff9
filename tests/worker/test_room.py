"""Rates, costs, pauses, limits that are set, and holds, by the instants at which leases begin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_exclusive import LockHeld, locks
from tests.worker.lab import Lab, command, eventually

SECOND = 1_000_000
ROOM = "tests.worker.shop_room"
MODULE = {"module": ROOM}


@pytest.fixture(params=["redis", "postgres"])
def lab(request: pytest.FixtureRequest, make_lab: Callable[..., Lab]) -> Lab:
    """Workers with late acknowledgement, and their leases in this store."""
    late = {"task_acks_late": True, "task_reject_on_worker_lost": True}
    if request.param == "postgres":
        late["exclusive_store"] = request.getfixturevalue("postgres_url")
    return make_lab(module=ROOM, **late)


def fences(lab: Lab, **details: Any) -> list[int]:
    """The instants of the store's clock at which the bodies on the record were granted their leases."""
    return sorted(event["fence"] for event in lab.journal.events("start", **details))


def paused(lab: Lab, key: str) -> str:
    """Pause a key, and return what the command prints."""
    done = command(lab, "locks", "pause", key, "--reason", "vendor is down")
    assert not done.returncode, done.stderr
    return done.stdout


def wait_in_line(lab: Lab, sent: Any) -> None:
    """Wait until a task is in line without an offer: one with an offer is there, too, for a moment."""
    eventually(lambda: locks.why(sent.id, app=lab.app).key is not None, "its place in line")
    assert locks.why(sent.id, app=lab.app).reason == "in_line"


@pytest.mark.promise(
    "In no second do the workers start more bodies of a key than its rate allows, and each call runs",
    name="rate",
    figure="40 calls of one key, two workers, Redis and PostgreSQL",
    broke="the grant did not count the start: red",
)
def test_two_workers_start_no_more_than_the_rate(lab: Lab) -> None:
    lab.start_worker("w1", 4)
    lab.start_worker("w2", 4)
    for number in range(40):
        lab.send("quick", "k", tag=str(number))
    lab.journal.wait_for("end", 40, key="k")
    began = fences(lab, key="k")
    assert len(began) == 40
    for first, sixth in zip(began, began[5:], strict=False):
        assert sixth - first >= SECOND


@pytest.mark.proves("rate")
def test_a_call_above_the_rate_fails_with_the_time_until_the_next(lab: Lab) -> None:
    lab.start_worker("w1", 2)
    lab.send("loud", "k").get(timeout=60)
    with pytest.raises(LockHeld) as refused:
        lab.send("loud", "k").get(timeout=60)
    assert (refused.value.reason, refused.value.holder) == ("rate", "")
    assert refused.value.retry_after is not None
    assert 3000 < refused.value.retry_after <= 3600
    assert "lock x=api:k at its rate: the next may start in 3" in str(refused.value)


@pytest.mark.promise(
    "While a key is paused nothing of it starts in any worker, what runs runs on, and `resume` lets the line "
    "go on",
    figure="Redis and PostgreSQL",
)
def test_a_paused_key_starts_nothing_until_it_is_resumed(lab: Lab) -> None:
    lab.start_worker("w1", 4)
    lab.send("quick", "k", tag="before", hold=True)
    lab.journal.wait_for("start", tag="before")
    key = lab.task("quick").lock_state("k").key
    assert "vendor is down" in paused(lab, key)
    first = lab.send("quick", "k", tag="first")
    lab.wait_for_line(1, "quick", "k")
    lab.send("quick", "k", tag="second")
    lab.wait_for_line(2, "quick", "k")
    lab.open("before")
    lab.journal.wait_for("end", tag="before")
    eventually(lambda: not lab.task("quick").lock_state("k").is_running, "a key without a run")
    why = command(lab, "locks", "why", first.id)
    assert "WAITING: place 1 of 2" in why.stdout
    assert "paused by" in why.stdout
    assert "vendor is down" in why.stdout
    assert lab.journal.tags() == ["before"]
    resumed = command(lab, "locks", "resume", key)
    assert not resumed.returncode, resumed.stderr
    lab.journal.wait_for("end", 3, key="k")
    assert sorted(lab.journal.tags()) == ["before", "first", "second"]


@pytest.mark.promise(
    "A limit that an operator sets counts at once in all workers and evicts nothing; `reset` gives the "
    "code's back",
)
def test_a_limit_that_is_set_counts_until_it_is_reset(lab: Lab) -> None:
    lab.start_worker("w1", 4)
    task = lab.task("quick")
    lab.send("quick", "k", tag="one", hold=True)
    lab.journal.wait_for("start", tag="one")
    assert not command(lab, "locks", "limit", task.lock_state("k").key, "1", "--for", "2h").returncode
    two = lab.send("quick", "k", tag="two", hold=True)
    wait_in_line(lab, two)
    assert not command(lab, "locks", "limit", task.lock_state("k").key, "reset").returncode
    lab.journal.wait_for("start", tag="two")
    assert lab.journal.tags("end") == []
    lab.open("one", "two")
    lab.journal.wait_for("end", 2)


@pytest.mark.promise(
    "`lease.hold()` keeps all workers from starting the key until its time is over; `lease.charge()` counts",
    broke="the step ignored a hold: red",
)
def test_a_body_holds_its_key_back_and_charges_it(lab: Lab) -> None:
    lab.start_worker("w1", 2)
    lab.start_worker("w2", 2)
    lab.send("careful", "k", tag="holds", held_for=3)
    lab.journal.wait_for("end", tag="holds")
    lab.send("careful", "k", tag="waits")
    lab.journal.wait_for("end", tag="waits")
    first, second = fences(lab, key="k")
    assert second - first >= 3 * SECOND
    lab.send("careful", "other", tag="charges", units=200)
    lab.journal.wait_for("end", tag="charges")
    above = lab.send("careful", "other", tag="above")
    lab.wait_for_line(1, "careful", "other")
    why = command(lab, "locks", "why", above.id).stdout
    assert "rate: 201 of 100 in the last 1d00h" in why


@pytest.mark.promise(
    "Runs hold as many units of a limit as they cost, and nothing passes a dear one that waits",
)
def test_a_dear_run_waits_for_its_units(lab: Lab) -> None:
    lab.start_worker("w1", 4)
    lab.send("heavy", "k", 3, tag="three", hold=True)
    lab.journal.wait_for("start", tag="three")
    wait_in_line(lab, lab.send("heavy", "k", 2, tag="two", hold=True))
    wait_in_line(lab, lab.send("heavy", "k", 1, tag="one", hold=True))
    assert lab.journal.tags() == ["three"]
    lab.open("three")
    lab.journal.wait_for("start", 3)
    lab.open("two", "one")
    lab.journal.wait_for("end", 3)


@pytest.mark.promise(
    "A tenant that comes while another has many tasks waiting starts next but one, then both start in "
    "turn, and `why` names the place in the tenant's own line",
    figure="Redis and PostgreSQL",
    broke="places in the order of arrival: red",
)
def test_the_parts_of_a_key_start_their_tasks_in_turn(lab: Lab) -> None:
    lab.start_worker("w1", 4)
    lab.send("fair", "k", "noisy", tag="first", hold=True)
    lab.journal.wait_for("start", tag="first")
    calls = [("noisy", number) for number in range(6)] + [("quiet", number) for number in range(3)]
    sent = []
    for number, (tenant, own) in enumerate(calls, 1):
        sent.append(lab.send("fair", "k", tenant, tag=f"{tenant} {own}"))
        lab.wait_for_line(number, "fair", "k", "")
    why = command(lab, "locks", "why", sent[7].id).stdout
    assert "WAITING: place 4 of 9 (number 2 of part quiet)" in why
    lab.open("first")
    lab.journal.wait_for("end", 10, key="k")
    assert [event["tag"] for event in sorted(lab.journal.events("start"), key=lambda it: it["fence"])] == [
        "first",
        *(f"{tenant} {number}" for number in range(3) for tenant in ("noisy", "quiet")),
        *(f"noisy {number}" for number in range(3, 6)),
    ]


@pytest.mark.promise(
    "An urgent call that comes when others of its key wait runs next",
    figure="Redis and PostgreSQL",
    broke="the weight left out: red",
)
def test_urgent_calls_run_before_those_that_wait(lab: Lab) -> None:
    lab.start_worker("w1", 4)
    lab.send("ranked", "k", tag="first", hold=True)
    lab.journal.wait_for("start", tag="first")
    for number in range(8):
        tag = f"{'urgent' if number > 5 else 'bulk'} {number}"
        lab.send("ranked", "k", 100 if number > 5 else 1, tag=tag)
        lab.wait_for_line(number + 1, "ranked", "k")
    lab.open("first")
    lab.journal.wait_for("end", 9, key="k")
    started = [event["tag"] for event in sorted(lab.journal.events("start"), key=lambda it: it["fence"])]
    assert started == ["first", "urgent 6", "urgent 7", *(f"bulk {number}" for number in range(6))]


@pytest.mark.promise(
    "No more bodies of a tenant run at once than the limit of its part, and no more of all tenants than the "
    "limit of the key; a tenant whose part is full keeps no other one waiting, and each call runs",
    figure="40 calls of three tenants, two workers of 8 slots, Redis and PostgreSQL",
)
def test_four_of_a_tenant_run_at_once_and_six_in_total(lab: Lab) -> None:
    lab.start_worker("w1", 8)
    lab.start_worker("w2", 8)
    held = [f"noisy {number}" for number in range(4)]
    for tag in held:
        lab.send("shared", "k", "noisy", tag=tag, hold=True)
    lab.journal.wait_for("start", 4)
    for number in range(4, 20):
        lab.send("shared", "k", "noisy", tag=f"noisy {number}", seconds=0.02)
    lab.wait_for_line(16, "shared", "k", "")
    for tenant in ("quiet", "third"):
        for number in range(10):
            lab.send("shared", "k", tenant, tag=f"{tenant} {number}", seconds=0.02)
    for tenant in ("quiet", "third"):  # the noisy tenant's slots are all taken: two are left for the others
        for number in range(10):
            lab.journal.wait_for("end", tag=f"{tenant} {number}")
    assert sorted(tag for tag in lab.journal.tags() if tag.startswith("noisy")) == held
    lab.open(*held)
    lab.journal.wait_for("end", 40)
    assert sorted(lab.journal.tags("end")) == sorted(lab.journal.tags())
    assert lab.journal.most_open(key="noisy") == 4
    assert 4 < lab.journal.most_open() <= 6


@pytest.mark.promise(
    "`locks pause KEY --part P` lets no task of the part start in any worker, and the other parts go on",
    figure="Redis and PostgreSQL",
)
def test_a_paused_part_starts_nothing_and_the_others_go_on(lab: Lab) -> None:
    lab.start_worker("w1", 4)
    key = lab.task("shared").lock_state("k", "acme").key
    paused = command(lab, "locks", "pause", key, "--part", "acme", "--reason", "abuse")
    assert not paused.returncode, paused.stderr
    waits = lab.send("shared", "k", "acme", tag="waits")
    lab.wait_for_line(1, "shared", "k", "")
    lab.send("shared", "k", "zeta", tag="runs")
    lab.journal.wait_for("end", tag="runs")
    why = command(lab, "locks", "why", waits.id).stdout
    assert "number 1 of part acme" in why
    assert "part acme is paused by" in why
    assert lab.journal.tags() == ["runs"]
    assert not command(lab, "locks", "resume", key, "--part", "acme").returncode
    lab.journal.wait_for("end", tag="waits")
