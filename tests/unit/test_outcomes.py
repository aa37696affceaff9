"""The outcomes of publishers, of `lock()` and of `apply()`, and their price without a receiver."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
from celery import Celery

from celery_exclusive import DuplicateTask, Exclusive, LockHeld, Unique, lock, outcomes
from celery_exclusive.reasons import REASONS
from celery_exclusive.signals import KINDS, Kind, LockOutcome, lock_outcome
from celery_exclusive.stores.memory import MemoryStore

Seen = list[tuple[str | None, LockOutcome]]
pytestmark = [pytest.mark.proves("outcomes"), pytest.mark.usefixtures("no_receivers")]


@pytest.fixture
def seen(no_receivers: None) -> Seen:
    """What a receiver of all outcomes gets, each with its sender."""
    seen: Seen = []

    def receive(sender: str | None, outcome: LockOutcome, **_: Any) -> None:
        seen.append((sender, outcome))

    lock_outcome.connect(receive, weak=False)
    return seen


@pytest.fixture
def make(app: Celery, store: MemoryStore) -> Iterator[Callable[..., Any]]:
    """Declares `feeds.load` with these options."""

    def make(**options: Any) -> Any:
        @app.task(name="feeds.load", shared=False, **options)
        def load(url: str) -> str:
            return url

        app.finalize()
        return app.tasks["feeds.load"]

    yield make
    store.clear()


def kinds(seen: Seen) -> list[str]:
    return [outcome.kind for _, outcome in seen]


def test_each_kind_has_a_sentence():
    assert tuple(KINDS) == get_args(Kind)


def test_a_lock_that_is_free_is_acquired_and_released(app: Celery, seen: Seen) -> None:
    with lock("repo:17", app=app):
        assert kinds(seen) == ["acquired"]
    (_, acquired), (sender, released) = seen
    assert acquired.task_id
    assert acquired.task_id.startswith("lock:")
    assert (sender, released.kind, released.task_name, released.lock_key) == (
        None,
        "released",
        None,
        "x=repo:17",
    )
    assert (acquired.wait_s, released.holder_id) == (0, acquired.task_id)
    assert released.held_s is not None


def test_a_lock_of_a_coroutine_is_acquired_and_released(app: Celery, seen: Seen) -> None:
    async def hold() -> None:
        async with lock("repo:17", app=app):
            pass

    asyncio.run(hold())
    assert kinds(seen) == ["acquired", "released"]


def test_a_lock_that_is_held_is_waited_for_and_refused(app: Celery, seen: Seen) -> None:
    guard = lock("repo:17", app=app)
    assert guard.acquire()
    assert not lock("repo:17", wait=0, app=app).acquire()
    with pytest.raises(LockHeld), lock("repo:17", wait=0.1, app=app):
        pass
    guard.release()
    assert kinds(seen) == ["acquired", "refused", "waited", "refused", "released"]
    at_once, waited, refused = (outcome for _, outcome in seen[1:4])
    assert (at_once.wait_s, at_once.reason, waited.reason) == (0, "held", "held")
    assert refused.wait_s
    assert refused.holder_id == seen[0][1].task_id


def test_a_lock_that_was_lost_is_not_released(app: Celery, store: MemoryStore, seen: Seen) -> None:
    with lock("repo:17", app=app):
        store.clear()
    assert kinds(seen) == ["acquired", "lost"]


def test_the_receiver_of_one_task_gets_no_outcome_of_others(make: Any, app: Celery) -> None:
    seen: list[str] = []

    def receive(outcome: LockOutcome, **_: Any) -> None:
        seen.append(outcome.kind)

    lock_outcome.connect(receive, sender="feeds.load", weak=False)
    with lock("another", app=app):
        assert make(exclusive=Exclusive("url")).apply(("a",)).get() == "a"
    assert seen == ["acquired", "released"]


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"exclusive": Exclusive(key="k", on_conflict="skip")}, "skipped"),
        ({"exclusive": Exclusive(key="k", on_conflict="raise")}, "refused"),
        ({"exclusive": Exclusive(key="k", give_up_after=0.05)}, "given_up"),
    ],
)
def test_a_conflict_of_apply_is_an_outcome(
    make: Any, app: Celery, seen: Seen, options: dict[str, Any], kind: str
) -> None:
    load = make(**options)
    with lock("k", app=app):
        result = load.apply(("a",))
    ours = [outcome for sender, outcome in seen if sender == "feeds.load" and outcome.kind != "waited"]
    assert [(outcome.kind, outcome.task_id, outcome.lock_key) for outcome in ours] == [
        (kind, result.id, "x=k")
    ]


def test_a_run_of_apply_with_both_keys_is_one_outcome_and_one_that_ends_before_its_body_is_none(
    make: Any, app: Celery, store: MemoryStore, seen: Seen
) -> None:
    load = make(exclusive=Exclusive(key="k"), unique=Unique(key="k", on_conflict="raise"))
    assert load.apply(("a",)).get() == "a"
    assert [(outcome.kind, outcome.lock_key) for _, outcome in seen] == [
        ("acquired", "x=k"),
        ("released", "x=k"),
    ]
    seen.clear()
    load.delay("a")
    with pytest.raises(DuplicateTask):
        load.apply(("a",))
    assert kinds(seen) == ["duplicate"]


@pytest.mark.parametrize("on_conflict", ["skip", "raise"])
def test_a_call_that_is_not_published_is_a_duplicate(make: Any, seen: Seen, on_conflict: Any) -> None:
    load = make(unique=Unique("url", on_conflict=on_conflict))
    first = load.delay("a")
    for _ in range(2):  # the second refusal asks in another way
        try:
            load.delay("a")
        except DuplicateTask:
            assert on_conflict == "raise"
    (sender, outcome), again = seen
    assert again == (sender, outcome)
    assert (sender, outcome.kind, outcome.reason) == ("feeds.load", "duplicate", "duplicate")
    assert (outcome.task_id, outcome.holder_id) == (None, first.id)


def test_an_outcome_has_the_key_as_it_is_and_a_record_has_it_printable(
    make: Any, app: Celery, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    load = make(unique=Unique(key="{url}"))
    load.delay("a\nforged")
    load.delay("a\nforged")
    (record,) = (each for each in caplog.records if hasattr(each, "lock_key"))
    assert seen[0][1].lock_key == "u=a\nforged"
    assert (vars(record)["lock_key"], vars(record)["outcome"]) == (r"u=a\x0aforged", "duplicate")


def test_without_a_receiver_no_outcome_is_made(
    make: Any, app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes, "LockOutcome", None)
    monkeypatch.setattr(outcomes, "acquired", None)
    monkeypatch.setattr(outcomes, "released", None)
    load = make(exclusive=Exclusive(key="k", on_conflict="skip"))
    assert load.apply(("a",)).get() == "a"
    with lock("k", app=app):
        assert load.apply(("a",)).get()["skipped"]


def test_the_error_of_a_receiver_is_logged_and_the_lock_is_held(
    app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(**_: Any) -> None:
        raise RuntimeError("a receiver that fails")

    lock_outcome.connect(fail, weak=False)
    with lock("repo:17", app=app) as lease:
        lease.check()
    assert caplog.text.count("a receiver that fails") >= 2


def test_the_pages_of_outcomes_and_answers_list_each_kind_field_and_reason():
    chapters = [
        (Path(__file__).parents[2] / "docs" / page).read_text().partition(f"\n## {heading}\n")[2]
        for page, heading in (("how-to/monitor.md", "Outcomes"), ("reference/api/locks.md", "Reasons"))
    ]
    cells = re.findall(r"^\| (`.*?) \|", "\n".join(chapters), re.MULTILINE)
    assert {*KINDS, *REASONS} <= set(re.findall(r"`(\w+)`", " ".join(cells)))
    assert {field.name for field in fields(LockOutcome)} <= set(re.findall(r"\b\w+\b", chapters[0]))
