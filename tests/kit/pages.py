"""Pages of a line: each shows the tasks that wait, in order, with their messages, and changes nothing."""

from __future__ import annotations

import pytest

from celery_exclusive.core.operations import Enqueue, Waiting
from celery_exclusive.core.records import NAMED
from celery_exclusive.stores.base import Page, Place, Store
from tests.kit.subject import (
    LONG,
    SHORT,
    Key,
    Subject,
    fence_of,
    found,
    until,
)

IDS = [f"waiting {number}" for number in range(7)]


@pytest.mark.promise(
    "The line of a key can be read in pages of any size: each waiting task once, in line and then aside, "
    "with its message as it was parked. What joins or leaves meanwhile neither hides nor repeats another. "
    "Reading changes nothing",
    name="pages of a line",
    broke=(
        "a page that begins at its cursor, or after all of its place; no tasks aside, or the line again "
        "before them; a task aside shown as offered: each red"
    ),
)
class PagePromises(Subject):
    def test_a_key_without_a_line_has_an_empty_page(self) -> None:
        key = self.key()
        assert key.store.line(key.name) == Page()
        key.hold("a")
        assert key.store.line(key.name) == Page()

    @pytest.mark.parametrize("count", [1, 2, 6, 7, 8, 1000])
    def test_pages_of_any_size_show_the_same_line(self, count: int) -> None:
        key = self.key_with_line()
        places = pages(key, count)
        assert ids(places) == IDS
        assert [place.message for place in places] == [message_of(id) for id in IDS]

    def test_a_page_has_no_more_tasks_than_its_count(self) -> None:
        key = self.key_with_line()
        first = key.store.line(key.name, count=3)
        assert ids(first.places) == IDS[:3]
        last = key.store.line(key.name, first.next, count=4)
        assert (ids(last.places), last.next) == (IDS[3:], None)

    def test_tasks_that_join_or_leave_between_pages_neither_hide_nor_repeat_others(self) -> None:
        key = self.key_with_line()
        page = key.store.line(key.name, count=3)
        for gone in (*IDS[:3], IDS[4]):
            assert found(key.remove(gone))
        key.park("newcomer", message=message_of("newcomer"))
        rest = pages(key, 1, page)
        assert ids(rest) == [*IDS[:3], IDS[3], *IDS[5:], "newcomer"]

    def test_a_page_shows_tasks_aside_after_the_line(self) -> None:
        few = IDS[:3]
        key = self.with_aside(*few)
        fence_of(key.acquire("last", redelivered=True))
        key.park("b")
        key.park("c")
        line = pages(key, 100)
        assert [place.waiting.is_aside for place in line] == [False] * 2 + [True] * len(few)
        assert (ids(line[:2]), sorted(ids(line[2:]))) == (["b", "c"], few)
        assert all(place.waiting.offers >= 8 and not place.waiting.is_offered for place in line[2:])
        assert all(place.message == b"message" for place in line)
        for count in (1, 2, 3):
            assert ids(pages(key, count)) == ids(line)
        page = key.store.line(key.name, count=4)
        for gone in ids(page.places):
            assert found(key.remove(gone))
        assert ids(pages(key, 1, page)) == ids(line)

    def test_keys_with_a_line_are_listed_with_its_length_and_whether_they_are_due(self) -> None:
        key, held, runs = self.with_aside(*IDS[:2]), self.key("held"), self.key("runs")
        held.hold("a")
        runs.run("a")
        assert {line[:3] for line in key.store.lines()} == {(key.name, 1, 2), ("runs", 0, 0)}
        runs.release("a")
        runs.run("b", ttl=SHORT)
        until(
            lambda: (runs.name, 0, 0, True) in {line[:4] for line in key.store.lines()},
            "the lease of the run expires",
        )

    def test_keys_with_a_line_are_listed_with_the_age_of_the_first_in_line(self) -> None:
        key = self.key()

        def age() -> int:
            (line,) = (line for line in key.store.lines() if line.key == key.name)
            return line.age

        key.hold("holder")
        key.park("first")
        until(lambda: age() > SHORT * 1e6, "the wait grows longer")
        key.park("later")
        assert SHORT * 1e6 < age() <= key.store.line(key.name).places[0].waiting.age

    def test_a_page_shows_when_a_wait_ends_and_why(self) -> None:
        key = self.key()
        key.needs_line()
        key.hold("a")
        key.park("patient")
        key.park("expires", expires_in=LONG)
        key.park("gives up", gives_up_in=LONG)
        first, *ending = waiting_in(key)
        assert (first.ends_in, first.gives_up) == (None, False)
        assert [one.gives_up for one in ending] == [False, True]
        assert all(0 < (one.ends_in or 0) <= LONG * 1e6 for one in ending)

    def test_a_page_shows_that_a_wait_is_over_and_why(self) -> None:
        key = self.key()
        key.needs_line()
        key.hold("a")
        key.park("b", replaces=True)
        key.park("c", gives_up_in=SHORT)
        key.park("d", replaces=True)
        assert key.reap_until_woken().id == "c"
        shown = {one.id: (one.is_aside, one.over) for one in waiting_in(key)}
        assert shown == {"d": (False, None), "b": (True, "d"), "c": (True, "")}

    def test_a_page_shows_the_age_and_the_offer_of_a_task(self) -> None:
        key = self.key()
        key.needs_line()
        key.hold("a")
        key.park("b")
        key.park("c")
        assert not any(one.is_offered or one.offers for one in waiting_in(key))
        until(lambda: waiting_in(key)[0].age > SHORT * 1e6, "it grows older")
        key.release("a")
        assert [(one.id, one.is_offered, one.offers) for one in waiting_in(key)] == [
            ("b", True, 1),
            ("c", False, 0),
        ]

    def test_a_page_shows_the_deaths_of_a_task(self) -> None:
        key = self.key()
        key.run("a", ttl=SHORT)
        key.wait_until_expired()
        assert key.reap_until_woken().id == "a"
        (task,) = waiting_in(key)
        assert (task.id, task.deaths) == ("a", 1)

    def test_a_page_does_not_show_the_copy_of_a_message_that_runs(self) -> None:
        key = self.key()
        key.run("a")
        key.park("b")
        assert [one.id for one in waiting_in(key)] == ["b"]

    def test_a_page_shows_when_a_window_closes(self) -> None:
        key = self.key()
        key.needs_line()
        key.store.apply(key.name, Enqueue("a", b"message", waits=(int(LONG * 1e6), int(LONG * 1e6))))
        (task,) = waiting_in(key)
        assert not task.is_offered
        assert 0 < (task.not_before or 0) <= LONG * 1e6

    def test_reading_pages_changes_nothing(self) -> None:
        key = self.key(offer=SHORT)
        key.needs_line()
        key.hold("a")
        key.park("b", gives_up_in=LONG)
        (wake,) = key.release("a").wake
        waiting_before = key.inspect().waiting
        for count in (1, 10):
            pages(key, count)
        assert key.inspect().waiting == waiting_before
        again = key.reap_until_woken()
        assert (again.id, again.message) == (wake.id, wake.message)
        fence_of(key.follow(again))
        assert not key.store.line(key.name).places

    def test_the_messages_of_several_tasks_are_read_at_once_in_the_order_in_which_they_are_named(
        self,
    ) -> None:
        key = self.key_with_line()
        other = self.key("other")
        other.run("runs", message=message_of("runs"))
        tasks = [
            (key.name, IDS[6]),
            (other.name, "runs"),
            (key.name, "a"),
            (key.name, "runs"),
            ("none", "a"),
            (key.name, IDS[0]),
        ]
        wanted = [message_of(IDS[6]), message_of("runs"), b"", b"", b"", message_of(IDS[0])]
        assert key.store.messages_of(tasks) == wanted
        assert key.store.messages_of([]) == []

    def test_a_snapshot_has_the_limit_of_its_key(self) -> None:
        key = self.key()
        key.hold("a", limit=3)
        assert key.inspect().limit == 3
        assert [one.limit for one in key.store.inspect_all([key.name, "unknown"])] == [3, 1]

    def test_all_holders_of_a_key_with_more_than_ten_are_known(self) -> None:
        key = self.key()
        ids = [f"holder {number:02}" for number in range(NAMED + 2)]
        for id in ids:
            key.hold(id, limit=len(ids))
        seen, found = key.inspect(), key.store.holders(key.name)
        assert sorted(owner.id for owner in found) == ids
        assert {owner.token for owner in seen.holders} <= {owner.token for owner in found}
        assert seen.others == 2
        assert key.store.holders("none") == []

    def key_with_line(self) -> Key:
        key = self.key()
        key.needs_line()
        key.hold("a")
        for id in IDS:
            key.park(id, message=message_of(id))
        return key


def pages(key: Key, count: int, page: Page | None = None) -> list[Place]:
    """Read the line, or the rest of it after a page; return all places, with the ones on this page."""
    store: Store = key.store
    page = page or store.line(key.name, count=count)
    places = list(page.places)
    while page.next:
        page = store.line(key.name, after=page.next, count=count)
        assert 0 < len(page.places) <= count
        places += page.places
    return places


def ids(places: list[Place] | tuple[Place, ...]) -> list[str]:
    return [place.waiting.id for place in places]


def waiting_in(key: Key) -> list[Waiting]:
    return [place.waiting for place in pages(key, 100)]


def message_of(id: str) -> bytes:
    return f"message of {id}: \x00ünï".encode()
