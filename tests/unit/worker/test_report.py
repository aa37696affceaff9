"""What a report says of a delivery."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from celery import Celery

from celery_exclusive import Exclusive, Unique, install
from celery_exclusive.core.claim import Claim
from celery_exclusive.core.records import SECOND
from celery_exclusive.messages.header import Header
from celery_exclusive.worker.context import WorkerContext
from celery_exclusive.worker.execution import Execution
from celery_exclusive.worker.reading import Received


def came(header: Header) -> Received:
    return Received(id="id/p", token="t", header=header, content=(b"", "", "", {}, {}, "q", ""))


@pytest.mark.parametrize(("since", "least", "most"), [(9, 9, 60), (0, 0, 60), (-60, 0, 0)])
def test_a_rescheduled_task_has_waited_since_it_first_found_its_key_held(
    since: float, least: float, most: float
) -> None:
    seconds = came(Header("p", since=time.time() - since)).waited_s
    assert seconds is not None
    assert least <= seconds <= most


def test_a_task_that_was_not_rescheduled_has_waited_for_an_unknown_time() -> None:
    assert came(Header("p")).waited_s is None


def test_a_report_about_another_key_than_the_lock_shows_no_arguments(make_app: Callable[..., Celery]) -> None:
    app = install(make_app(exclusive_preview=True))

    @app.task(name="work", shared=False, exclusive=Exclusive("n"), unique=Unique("n"))
    def work(n: int) -> None: ...

    app.finalize()
    lock, option = Claim("x:k", "id/p", "t", 30 * SECOND), Exclusive("n")
    delivery = replace(came(Header("p", "x:k")), exclusive=lock, exclusive_option=option)
    worker = WorkerContext(app._celery_exclusive)  # type: ignore[attr-defined]
    task, slot = app.tasks["work"], worker.roster.begin(delivery)
    run = Execution(task, lambda: None, delivery, ("id", (17,), {}, {}), worker, slot)
    shown = [run.shown(key).lock for key in ("x:k", "u:k")]
    assert shown == ["x:k (n=17)", "u:k"]
