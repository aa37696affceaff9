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
from celery_exclusive.run import Run
from celery_exclusive.worker.reading import Received
from celery_exclusive.worker.report import subject_of, waited


def came(header: Header) -> Received:
    return Received(id="id/p", token="t", header=header, content=(b"", "", "", {}, {}, "q", ""))


@pytest.mark.parametrize(("since", "least", "most"), [(9, 9, 60), (0, 0, 60), (-60, 0, 0)])
def test_a_rescheduled_task_has_waited_since_it_first_found_its_key_held(
    since: float, least: float, most: float
) -> None:
    seconds = waited(came(Header("p", since=time.time() - since)))
    assert seconds is not None
    assert least <= seconds <= most


def test_a_task_that_was_not_rescheduled_has_waited_for_an_unknown_time() -> None:
    assert waited(came(Header("p"))) is None


def test_a_report_about_another_key_than_the_lock_shows_no_arguments(make_app: Callable[..., Celery]) -> None:
    app = install(make_app(exclusive_preview=True))

    @app.task(name="work", shared=False, exclusive=Exclusive("n"), unique=Unique("n"))
    def work(n: int) -> None: ...

    app.finalize()
    lock, option = Claim("x:k", "id/p", "t", 30 * SECOND), Exclusive("n")
    delivery = replace(came(Header("p", "x:k")), exclusive=lock, exclusive_option=option)
    call = ("id", (17,), {}, {})
    shown = [subject_of(app.tasks["work"], delivery, call, key, Run("id")).lock for key in ("x:k", "u:k")]
    assert shown == ["x:k (n=17)", "u:k"]
