"""What the page shows, asked as a WSGI server asks it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from celery_exclusive import Exclusive
from celery_exclusive.core.operations import Acquire, Remove
from celery_exclusive.core.records import SECOND
from celery_exclusive.display import printable
from celery_exclusive.errors import StoreUnavailable
from tests.unit.web.conftest import Desk

HOSTILE = "x=<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\x1b[2J\u202e&amp;\n\\"
SHOWN = "x=<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\\x1b[2J\\u202e&amp;\\x0a\\\\"


@pytest.mark.promise(
    "The page shows first the keys that need a person: damaged, dead, aside, without a worker, with a long "
    "wait; then all keys, each with its holders and its line in pages of 50; and answers why",
    name="the page",
    broke="dead holders not shown; places counted anew on each page; the filter not kept by the next page",
    figure="by hand, Redis with 5,000 keys and a line of 20,000: problems 0.23 s, keys 0.01 s, with a text "
    "0.4 s, a line 0.01 s, why of the last in line 0.8 s",
)
def test_problems_are_shown_first_and_a_good_key_is_none(desk: Desk):
    visitor = desk.visitor()
    desk.acquire("x:long", "a", "b", ttl=3_600)
    desk.pass_time(60)
    desk.acquire("x:good", "c", "d", ttl=3_600)
    nothing = visitor.get()
    assert (nothing.status, "No key needs a person." in nothing.text) == (200, True)
    keep = {"message": b"{}", "recovers": True, "acks_late": True}
    desk.store.apply("x:dead", Acquire("dead/00000000", "0123456789abcdef", SECOND, **keep))
    desk.pass_time(539)
    found = visitor.get().html
    assert "x:dead" in found.partition("<h2>Dead holders")[2]
    assert '<span class="badge dead">dead</span>' in found
    assert "Long waits" not in found
    desk.pass_time(1.1)
    dead, _, long = visitor.get().html.partition("<h2>Long waits")
    assert ("x:dead" in dead, "x:long" in long) == (True, True)
    assert not {"x:good", "x:long"} & set(dead.split('"'))
    assert "x:good" not in dead + long


def test_waiting_tasks_without_a_holder_are_a_problem_after_a_minute(desk: Desk):
    visitor = desk.visitor()
    desk.acquire("x:k", "a", "b", ttl=1)
    desk.pass_time(2)
    desk.store.reap()
    desk.pass_time(57)
    assert "No worker" not in visitor.get().text
    desk.pass_time(1.1)
    assert "No worker takes them" in visitor.get().text


@pytest.mark.proves("the page")
def test_all_keys_come_in_pages_in_order_and_by_text(desk: Desk):
    for number in range(120):
        desk.acquire(f"x:feeds.load:{number:032x}", f"task{number}")
    visitor = desk.visitor()
    first = visitor.get("keys")
    assert "1 to 50 of 120" in first.text
    (following,) = {link for link in first.links if "page=2" in link}
    assert "51 to 100 of 120" in visitor.open(following).text
    last = visitor.get("keys", page="3")
    assert "101 to 120 of 120" in last.text
    assert f"x:feeds.load:{119:032x}" in last.text
    assert not any("page=4" in link for link in last.links)
    (filtered,) = {link for link in visitor.get("keys", q="feeds").links if "page=2" in link}
    assert "q=feeds" in filtered
    found = visitor.get("keys", q=f"{17:032x}")
    assert "1 to 1 of 1" in found.text
    assert "task17" in found.text
    assert "No keys." in visitor.get("keys", page="4").text
    assert "No keys." in visitor.get("keys", q="no such text").text


def test_keys_are_sorted_by_their_waiting_tasks_or_by_age(desk: Desk):
    desk.acquire("x:a", "old")
    desk.pass_time(60)
    desk.acquire("x:b", "new", "waits")
    visitor = desk.visitor()

    def order(**query: str) -> list[str]:
        return [link[-1] for link in visitor.get("keys", **query).links if link.startswith("/key?")]

    assert order() == ["a", "b"]
    assert order(sort="waiting") == ["b", "a"]
    assert order(sort="age") == ["a", "b"]
    assert order(sort="unknown") == ["a", "b"]


@pytest.mark.proves("the page")
def test_a_line_comes_in_pages_and_each_task_has_its_place(desk: Desk):
    desk.acquire("x:k", "holder", *(f"task{number}" for number in range(1, 121)))
    visitor = desk.visitor()
    answer, places = visitor.get("key", key="x:k"), []
    for start in ("51", "101", ""):
        places += [int(number) for number in re.findall(r'data-label="Place"><div>(\d+)<', answer.html)]
        following = [link for link in answer.links if start and f"from={start}" in link]
        answer = visitor.open(following[0]) if start else answer
    assert places == [*range(1, 121)]
    assert not any("from=121" in link for link in answer.links)
    assert "101 to 120 of 120" in answer.text
    assert "task120" in answer.text


def test_the_answer_to_why_leads_to_the_place_of_the_task_in_line(desk: Desk):
    desk.acquire("x:k", "holder", *(f"task{number}" for number in range(1, 321)))
    visitor = desk.visitor()
    for number in (1, 2, 251, 300):
        (place,) = {
            link for link in visitor.get("why", q=f"task{number}").links if f"task=task{number}" in link
        }
        shown = visitor.open(place)
        assert re.findall(r'data-label="Place"><div>(\d+)<', shown.html)[:2] == [f"{number}", f"{number + 1}"]
    assert "1 to 50 of 320" in visitor.get("key", key="x:k", task="gone").text
    assert not any("task=" in link for link in visitor.get("why", q="holder").links)


def test_a_task_with_arguments_is_answered_as_by_the_command(desk: Desk):
    @desk.app.task(name="feeds.load", shared=False, exclusive=Exclusive("url"))
    def load(url: str, full: bool = False) -> None: ...

    desk.acquire(load.lock_state("a b").key, "of a b")
    desk.acquire(load.lock_state(17).key, "of 17")
    visitor = desk.visitor()
    for words, text in {
        "feeds.load 'a b' full=true": "of a b",
        "feeds.load url=17": "of 17",
        "feeds.load c": "FREE",
        "feeds.load 17 false 3": "too many positional arguments",
        "feeds.load 'a": "NOT KNOWN here",
    }.items():
        answer = visitor.get("why", q=words)
        assert (answer.status, text in answer.text) == (200, True), answer.text


@pytest.mark.parametrize(
    ("page", "query"),
    [
        ("key", {}),
        ("why", {"q": " "}),
        ("keys", {"page": "0"}),
        ("keys", {"page": "9" * 30}),
        ("keys", {"page": "x"}),
        ("key", {"key": "x:k", "after": "2.1.id"}),
        ("key", {"key": "x:k", "after": "0.99999999999999999999.id"}),
        ("key", {"key": "x:k", "from": "-1"}),
    ],
)
def test_an_address_that_makes_no_sense_is_refused(desk: Desk, page: str, query: dict[str, str]):
    desk.acquire("x:k", "holder", "waits")
    assert desk.visitor().get(page, **query).status == 400


def test_a_task_a_key_and_a_name_are_answered_as_by_the_command(desk: Desk):
    desk.acquire("x:feeds.load:" + "0" * 32, "holder", "waits")
    visitor = desk.visitor()
    assert "WAITING: place 1 of 1" in visitor.get("why", q="waits").text
    assert "RUNNING" in visitor.get("why", q=" holder ").text
    assert "HELD" in visitor.get("why", q="feeds.load").text
    unknown = visitor.get("why", q="feeds.l")
    assert "NOT KNOWN here" in unknown.text
    assert "/keys?q=feeds.l" in unknown.links
    desk.acquire("x:feeds.load:" + "1" * 32, "another")
    many = visitor.get("why", q="feeds.load")
    assert "has 2 keys" in many.text
    assert sum(link.startswith("/key?") for link in many.links) == 2


@pytest.mark.promise(
    "Keys, ids, names and arguments of other programs are only text on the page, in its links and its forms",
    broke="values of templates not escaped; control characters shown",
)
def test_a_hostile_key_id_and_reason_are_only_text(desk: Desk):
    id = "<b onclick=x>\"'\x1b[2J"
    desk.acquire(HOSTILE, id, "<i>waits</i>")
    visitor = desk.visitor(signed_in=True)
    visitor.sign_in(name="<u>Ada</u>")
    pages = [
        visitor.get("keys"),
        visitor.get("key", key=SHOWN),
        visitor.get("why", q=SHOWN),
        visitor.get("why", q=id),
    ]
    pages += [visitor.get("release", key=SHOWN), visitor.get("keys", q="<s>", sort='"><s>')]
    asked = pages[4]
    pages.append(visitor.post("release", {**asked.fields, "reason": "</p><s>"}))
    for answer in pages:
        assert answer.status == 200
        for tag in ("<script", "<img", "<b ", "<i>", "<u>", "<s>", "\x1b", "\u202e"):
            assert tag not in answer.html
        assert "&lt;u&gt;Ada&lt;/u&gt;" in answer.html
    assert SHOWN in pages[0].text
    (link,) = {link for link in pages[0].links if link.startswith("/key?")}
    assert SHOWN in visitor.open(link).text
    assert printable(id) in pages[1].text


def test_a_store_that_does_not_answer_is_a_page_with_503(desk: Desk, monkeypatch: pytest.MonkeyPatch):
    visitor = desk.visitor()

    def fail(*_: Any) -> Any:
        raise StoreUnavailable("redis://cache does not answer <now>")

    monkeypatch.setattr(desk.store._store, "scan", fail)
    monkeypatch.setattr(desk.store._store, "inspect_all", fail)
    for answer in (
        visitor.get(),
        visitor.get("keys"),
        visitor.get("key", key="x:k"),
        visitor.get("why", q="x"),
    ):
        assert answer.status == 503
        assert "redis://cache does not answer &lt;now&gt;" in answer.html


def test_a_damaged_key_is_shown_with_its_problem(desk: Desk, monkeypatch: pytest.MonkeyPatch):
    desk.acquire("x:k", "a")
    entries = desk.store._store
    seen = entries.inspect_all

    def damaged(keys: Any) -> Any:
        return [type(one)(problem="no number <x>") if one.is_busy else one for one in seen(keys)]

    monkeypatch.setattr(entries, "inspect_all", damaged)
    visitor = desk.visitor(signed_in=True)
    assert "Damaged" in visitor.get().text
    shown = visitor.get("key", key="x:k")
    assert "no number &lt;x&gt;" in shown.html
    assert visitor.get("why", q="x:k").status == 200
    assert "its data are deleted" in visitor.get("release", key="x:k").text


def test_an_error_of_the_code_is_a_page_and_in_the_log(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def fail(*_: Any) -> Any:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(desk.store._store, "scan", fail)
    answer = desk.visitor().get()
    assert (answer.status, "a secret" in answer.html) == (500, False)
    assert "a secret" in caplog.text


def test_the_page_of_a_waiting_task_estimates_its_wait_from_the_pace_of_its_line(desk: Desk):
    desk.acquire("x:k", "holder", "first", "second", "third")
    visitor = desk.visitor()
    began = visitor.get("why", q="third")
    assert "how fast its line moves" in began.text
    (live,) = (link for link in began.links if "live=" in link)
    desk.pass_time(30.5)
    assert "It has not come nearer for 30s" in visitor.open(live).text
    desk.store.apply("x:k", Remove("first/00000000"))
    moved = visitor.open(live)
    assert "1 left the line before it in 30s: at this pace it begins in some 1m00s" in moved.text
    assert "how fast" in visitor.get("why", q="third").text
    for seen in ("x", "1", "-1.0", "9999999999.1"):
        assert visitor.get("why", q="third", seen=seen).status == 400


def test_a_page_that_refreshes_itself_keeps_its_query(desk: Desk):
    visitor = desk.visitor()
    answer = visitor.get("keys", q="a&b")
    assert "http-equiv" not in answer.html
    (live,) = (link for link in answer.links if "live=" in link)
    again = visitor.open(live)
    assert '<meta http-equiv="refresh" content="5">' in again.html
    assert "/keys?q=a%26b" in again.links
