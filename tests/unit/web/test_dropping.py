"""Dropping a waiting task on the page, asked as a WSGI server asks it."""

from __future__ import annotations

import pytest

from celery_exclusive.core.claim import task_id
from tests.unit.web.conftest import Desk, Visitor


@pytest.fixture
def visitor(desk: Desk) -> Visitor:
    desk.acquire("x:k", "holder", "first", "second")
    return desk.visitor(signed_in=True)


def _waiting(desk: Desk) -> list[str]:
    return [task_id(place.waiting.id) for place in desk.store.line("x:k").places]


@pytest.mark.promise(
    "The page drops a task that waits, with a form of its own and a reason, and no other one; the log names "
    "the visitor and the reason",
    broke="the proof not checked; the reason not asked for; all tasks of the key dropped",
)
def test_a_waiting_task_is_dropped_with_a_reason(
    desk: Desk, visitor: Visitor, caplog: pytest.LogCaptureFixture
):
    (link,) = (link for link in visitor.get("key", key="x:k").links if "drop?" in link and "id=first" in link)
    asked = visitor.open(link)
    assert visitor.post("drop", asked.fields).status == 400
    unproven = {**asked.fields, "reason": "poison", "proof": ""}
    assert visitor.post("drop", unproven).status == 403
    assert _waiting(desk) == ["first", "second"]
    done = visitor.post("drop", {**asked.fields, "reason": "poison"})
    assert (done.status, "Dropped first" in done.text) == (200, True)
    assert _waiting(desk) == ["second"]
    assert desk.app.AsyncResult("first").state == "REVOKED"
    assert "task first was dropped from the line of lock x:k by Ada (poison), and not saved" in caplog.text
    assert visitor.post("drop", {**asked.fields, "reason": "poison"}).status == 409
    assert _waiting(desk) == ["second"]


def test_a_task_that_does_not_wait_is_not_dropped(desk: Desk, visitor: Visitor):
    for id in ("holder", "unknown", "", "<b>"):
        answer = visitor.get("drop", key="x:k", id=id)
        assert (answer.status, "<b>" in answer.html) == (404, False)
    assert _waiting(desk) == ["first", "second"]
