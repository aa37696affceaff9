"""A call that no run publishes needs its plan only if its key is held, and is published as by its plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from celery import Celery

from celery_exclusive import DuplicateTask, Exclusive, Unique
from celery_exclusive.core.operations import AcquireAlone
from celery_exclusive.run import Run, within
from celery_exclusive.stores.memory import MemoryStore

pytestmark = pytest.mark.promise(
    "A call outside of a run, and a call by the run of another task, ask the same of the key and send the "
    "same message, with every option and whether the key is held",
    broke="another phase; the countdown left out; sent although the key is held",
)


@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"countdown": 500},
        {"countdown": 500, "expires": 90},
        {"expires": 0},
        {"task_id": "by hand"},
        {"link": []},
        {"group_id": "g"},
        {"ignore_result": True},
        {"argsrepr": "***"},
        {"headers": {"own": 1}},
        {"unique": Unique("url", until="started", queued_ttl=7)},
        {"unique": Unique("url", on_conflict="raise")},
        {"exclusive": Exclusive()},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "declared", [{}, {"period": 60}, {"until": "started", "ttl": 5, "queued_ttl": 50}], ids=str
)
def test_a_call_is_published_alike_outside_of_runs_and_in_the_run_of_another_task(
    app: Celery,
    make_task: Callable[..., Any],
    store: MemoryStore,
    sent: Any,
    declared: dict[str, Any],
    options: dict[str, Any],
    is_held: bool,
) -> None:
    task = make_task("url", **declared)
    asked: list[tuple[str, AcquireAlone]] = []
    apply = store.apply

    def see(key: str, operation: Any) -> Any:
        if isinstance(operation, AcquireAlone):
            asked.append((key, replace(operation, id="", token="")))
        return apply(key, operation)

    def publish() -> tuple[Any, ...]:
        store.clear()
        holder = task.delay("a").id if is_held else None
        asked.clear()
        already = len(sent())
        try:
            result = task.apply_async(("a",), **options)
            outcome = result.outcome, result.key, result.existing_id == holder
        except DuplicateTask as error:
            outcome = str(error).replace(str(holder), "holder"), error.key, error.existing_id == holder
        headers = [{**header, "id": ""} for header in sent()[already:]]
        for header in headers:
            if "duplicate_of" in header:
                header["duplicate_of"] = header["duplicate_of"] == holder
        return outcome, headers, [*asked]

    store.apply = see  # type: ignore[method-assign]
    try:
        by_nobody = publish()
        with within(Run("of another task")):
            assert publish() == by_nobody
    finally:
        del store.apply
    assert by_nobody[2]
