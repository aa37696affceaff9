"""Pausing and limiting a key on the page, asked as a WSGI server asks it."""

from __future__ import annotations

import logging
import re

import pytest

from celery_exclusive.core.records import SECOND
from tests.unit.web.conftest import TOKEN, Answer, Desk, Visitor

KEY = "x=openai"


@pytest.fixture
def visitor(desk: Desk) -> Visitor:
    desk.acquire(KEY, "holder", "first", limit=1)
    return desk.visitor(signed_in=True)


def asked(visitor: Visitor, page: str) -> Answer:
    """The form of an action, by its link on the page of the key."""
    (link,) = (link for link in visitor.get("key", key=KEY).links if f"/{page}?" in link)
    return visitor.open(link)


def send(visitor: Visitor, page: str, **filled: str) -> Answer:
    return visitor.post(page, {**asked(visitor, page).fields, **filled})


@pytest.mark.promise(
    "On the page of a key an operator pauses it, sets its limit and holds it back, with a reason and a time, "
    "and ends that; each needs a form of the page, and the log names the visitor and the reason",
    name="limits on the page",
    broke="the proof not checked; the time not read; the user of the process in the log: each red",
)
def test_a_pause_is_made_with_a_reason_and_ended_by_resume(
    desk: Desk, visitor: Visitor, caplog: pytest.LogCaptureFixture
):
    form = asked(visitor, "pause").fields
    assert visitor.post("pause", form).status == 400
    assert visitor.post("pause", {**form, "reason": "vendor is down", "proof": ""}).status == 403
    assert desk.store.inspect(KEY).terms.override is None
    done = visitor.post("pause", {**form, "reason": "vendor is down", "lasts": "2h"})
    assert (done.status, "paused by Ada 0s ago, for another 2h00m: vendor is down" in done.text) == (
        200,
        True,
    )
    override = desk.store.inspect(KEY).terms.override
    assert (override.limit, override.until - desk.now, override.by) == (0, 7_200 * SECOND, "Ada")
    (record,) = (record for record in caplog.records if record.levelno == logging.WARNING)
    assert record.getMessage() == f"lock {KEY} was paused for 7200 s by Ada (vendor is down)"
    desk.pass_time(60)
    assert "paused by Ada 1m00s ago, for another 1h59m: vendor is down" in visitor.get("key", key=KEY).text
    assert "The limit of the code counts." in send(visitor, "resume").text
    assert desk.store.inspect(KEY).terms.override is None
    assert not any("/resume?" in link for link in visitor.get("key", key=KEY).links)


@pytest.mark.proves("limits on the page")
def test_a_higher_limit_lets_the_line_go_on_and_reset_ends_it_without_the_hold(desk: Desk, visitor: Visitor):
    assert "limit 4 set by Ada" in send(visitor, "limit", number="4", reason="catch up").text
    assert desk.store.inspect(KEY).line[0].is_offered
    assert "nothing starts for another 30s" in send(visitor, "hold", lasts="30s", reason="429").text
    assert "held back" in send(visitor, "reset").text
    terms = desk.store.inspect(KEY).terms
    assert (terms.override, terms.opens_at - desk.now) == (None, 30 * SECOND)
    assert send(visitor, "resume").status == 200
    assert not desk.store.inspect(KEY).is_set


@pytest.mark.proves("limits on the page")
@pytest.mark.parametrize(
    ("page", "filled"),
    [
        ("limit", {}),
        ("limit", {"number": "0"}),
        ("limit", {"number": "4", "lasts": "soon"}),
        ("hold", {}),
        ("pause", {"lasts": "-1"}),
        ("pause", {"key": "u:desk.unique"}),
    ],
)
def test_a_field_that_is_no_number_and_no_time_changes_nothing(
    desk: Desk, visitor: Visitor, page: str, filled: dict[str, str]
):
    assert send(visitor, page, reason="r", **filled).status == 400
    assert not desk.store.inspect(KEY).is_set


@pytest.mark.proves("rights of the page")
def test_a_visitor_without_the_right_to_force_changes_no_limit(desk: Desk):
    desk.acquire(KEY, "holder")
    visitor = desk.visitor(token=TOKEN, rights=lambda *_: {"look", "release", "drop"})
    visitor.sign_in()
    reader = desk.visitor()
    assert not any("/pause?" in link for link in visitor.get("key", key=KEY).links)
    for page in ("pause", "limit", "hold", "reset", "resume"):
        assert visitor.get(page, key=KEY).status == reader.get(page, key=KEY).status == 403
        form = {"key": KEY, "reason": "r", "lasts": "30s", "number": "4"}
        assert visitor.post(page, form).status == reader.post(page, form).status == 403
    assert not desk.store.inspect(KEY).is_set


@pytest.mark.proves("limits on the page")
def test_the_key_that_is_shown_is_paused_and_not_one_that_is_spelled_alike(desk: Desk):
    desk.acquire("x=aA", "a")
    desk.acquire("x=a\\x41", "b")
    visitor = desk.visitor(signed_in=True)
    (link,) = (it for it in visitor.get("key", key="x=a\\\\x41").links if "/pause?" in it)
    assert visitor.post("pause", {**visitor.open(link).fields, "reason": "r"}).status == 200
    assert [desk.store.inspect(key).is_set for key in ("x=aA", "x=a\\x41")] == [False, True]


def test_the_page_of_a_pause_says_how_many_tasks_end_meanwhile(desk: Desk, visitor: Visitor):
    desk.acquire(KEY, "holder", "short", gives_up_in=600 * SECOND)
    assert "1 of 2 waiting tasks give up or expire within the next 2h00m." in asked(visitor, "pause").text


@pytest.mark.promise(
    "The page of a key has a row for each part, with its runs, its waiting tasks and its limits; a form with "
    "a part changes this part alone",
    broke="the part of the form not read: the whole key was paused: red",
)
def test_a_part_is_shown_and_paused_alone(desk: Desk, caplog: pytest.LogCaptureFixture):
    desk.acquire(KEY, "a0", "a1", limit=25, part="acme", part_limit=1)
    desk.acquire(KEY, "z0", limit=25, part="zeta")
    visitor = desk.visitor(signed_in=True)
    page = visitor.get("key", key=KEY)
    rows = [re.sub("<[^>]*>", " ", row).split() for row in re.findall("<tr.*?</tr>", page.html, re.DOTALL)]
    assert ["acme", "1", "0", "1", "1", "1", "-"] in rows
    assert ["zeta", "1", "0", "0", "1", "-", "-"] in rows
    assert "of part acme; waits for room of its part" in page.text
    done = send(visitor, "pause", part="acme", reason="abuse")
    assert "Part acme." in done.text
    assert "paused by Ada 0s ago: abuse" in done.text
    assert desk.store.inspect(KEY).terms.override is None
    paused = {part.name: part.terms.override is not None for part in desk.store.parts(KEY)}
    assert paused == {"acme": True, "zeta": False}
    assert any(
        it.getMessage() == f"part acme of lock {KEY} was paused by Ada (abuse)" for it in caplog.records
    )
    assert "The limit of the code counts." in send(visitor, "resume", part="acme").text
    assert not any(part.terms.override for part in desk.store.parts(KEY))
