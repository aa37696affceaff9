"""What the plan of a run without a message asks of its keys, and how it ends."""

from __future__ import annotations

import pytest

from celery_exclusive.core.admission import Admission, admit_directly
from celery_exclusive.core.claim import Claim, UniqueClaim
from celery_exclusive.core.operations import Answer
from celery_exclusive.core.plan import Ask, run_plan
from tests.unit.stepping import TTL, Key

PERIOD = 600 * TTL


class Store:
    """A lock and a unique key, and what was asked of them."""

    def __init__(self) -> None:
        self.keys = {"x": Key(), "u": Key()}
        self.asked: list[Ask] = []

    def ask(self, asked: Ask) -> Answer:
        assert asked.operation
        self.asked.append(asked)
        return self.keys[asked.key].ask(asked.operation)

    def admit(self, id: str, until: str | None = "finished", *, on_conflict: str = "wait") -> Admission:
        """Admit a run of this id, with a lock, and with a unique key unless `until` is None."""
        claim = Claim("u", f"{id}/1", id, TTL)
        unique = UniqueClaim(claim, until, PERIOD, is_acquired=False) if until else None  # type: ignore[arg-type]
        lock = Claim("x", f"{id}/1", id, TTL)
        return run_plan(admit_directly(lock, unique, on_conflict), self.ask)

    def owners(self, key: str) -> list[tuple[str, str]]:
        return [(owner.id, owner.phase) for owner in self.keys[key].owners()]


@pytest.mark.parametrize(
    ("until", "holds"),
    [("finished", [("a/1", "running")]), ("started", []), ("period", [("a/1", "period")])],
)
def test_a_free_run_gets_both_keys_and_holds_the_unique_one_until_its_event(
    until: str, holds: list[tuple[str, str]]
) -> None:
    store = Store()
    outcome = store.admit("a", until)
    assert (outcome.kind, outcome.key, outcome.has_lock) == ("run", "x", True)
    assert outcome.may_hold_unique == (until == "finished")
    assert store.owners("x") == [("a/1", "running")]
    assert store.owners("u") == holds


@pytest.mark.parametrize(
    ("on_conflict", "kind", "waits"),
    [
        ("wait", "reschedule", True),
        ("reschedule", "reschedule", True),
        ("skip", "skip", False),
        ("raise", "fail", False),
    ],
)
def test_a_held_lock_decides_before_the_unique_key_is_asked_for(
    on_conflict: str, kind: str, waits: bool
) -> None:
    store = Store()
    store.admit("a", None)
    outcome = store.admit("b", on_conflict=on_conflict)
    assert (outcome.kind, outcome.existing_id, outcome.reason) == (kind, "a", "held")
    assert (store.asked[-1].key, store.asked[-1].park) == ("x", waits)


@pytest.mark.parametrize("until", ["finished", "started", "period"])
@pytest.mark.parametrize("phase", ["queued", "running"])
def test_a_call_of_a_held_unique_key_is_skipped_in_each_phase_of_its_holder(until: str, phase: str) -> None:
    store = Store()
    store.keys["u"].ask(Claim("u", "a/1", "a", TTL).acquire_alone(TTL, phase))  # type: ignore[arg-type]
    outcome = store.admit("b", until)
    assert (outcome.kind, outcome.key, outcome.existing_id, outcome.reason) == ("skip", "u", "a", "duplicate")
    assert not outcome.may_hold_unique
    assert store.owners("u") == [("a/1", phase)]
