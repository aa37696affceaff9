"""The verdict is right about every kind of history, made up here line by line."""

from __future__ import annotations

from typing import Any

import pytest

from stage.board import Board
from stage.history import History
from stage.verdict import Verdict, judge

FEED = "http://127.0.0.1/a.rss"
OTHER = "http://127.0.0.1/b.rss"
ENOUGH_SKIPS = 100
ENOUGH_WAITS = 20


class Story:
    """Writes a journal; times are seconds. Every task has a process of its own."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def note(self, at: float, event: str, **fields: Any) -> None:
        self.events.append({"event": event, "at": int(at * 1e9), "pid": 1, **fields})

    def submitted(self, task: str, at: float, feed: str = FEED) -> None:
        self.note(at, "submitted", id=task, feed=feed, kind="click")
        self.note(at + 0.01, "received", id=task)

    def start(self, task: str, at: float, *, feed: str = FEED, worker: str = "one") -> None:
        self.note(at, "start", id=task, feed=feed, worker=worker, pid=hash(task))

    def end(self, task: str, at: float, *, how: str = "done", feed: str = FEED) -> None:
        self.note(at, "end", id=task, feed=feed, how=how, pid=hash(task))

    def ran(self, task: str, begin: float, end: float, *, feed: str = FEED, at: float | None = None) -> None:
        self.submitted(task, begin - 0.1 if at is None else at, feed)
        self.start(task, begin, feed=feed)
        self.end(task, end, feed=feed)

    def skipped(self, task: str, at: float, feed: str = FEED) -> None:
        self.submitted(task, at, feed)
        self.note(at + 0.02, "outcome", id=task, state="SUCCESS", skipped=True)

    def verdict(self, *, is_protected: bool = True) -> Verdict:
        return judge(History.of(self.events), is_protected=is_protected)


@pytest.fixture
def story() -> Story:
    """An empty journal."""
    return Story()


@pytest.fixture
def good() -> Story:
    """A journal that proves the case: a killed holder, a line behind it, many skips."""
    story = Story()
    story.submitted("killed", 0.0)
    story.start("killed", 1.0)
    story.note(2.0, "kill", worker="one", feed=FEED, killed=4711, waiting=ENOUGH_WAITS)
    for number in range(ENOUGH_WAITS):
        story.ran(f"waits-{number}", 8.0 + number, 8.9 + number, at=1.1)
    story.note(17.0, "received", id="killed")
    story.start("killed", 40.0, worker="two")
    story.end("killed", 41.0)
    for number in range(ENOUGH_SKIPS):
        story.skipped(f"skip-{number}", 1.2 + number / 10)
    return story


def test_a_run_that_meets_every_condition_without_fault_is_green(good: Story):
    verdict = good.verdict()
    assert (verdict.colour, verdict.exit_code, verdict.faults, verdict.doubts) == ("green", 0, [], [])
    assert verdict.submitted == 1 + ENOUGH_WAITS + ENOUGH_SKIPS == sum(verdict.fates.values())
    assert verdict.waited == ENOUGH_WAITS
    assert verdict.met == ENOUGH_WAITS + ENOUGH_SKIPS


def test_time_to_recover_is_from_the_kill_to_the_next_body_of_that_feed(good: Story):
    good.ran("elsewhere", 3.0, 4.0, feed=OTHER)
    recovery = good.verdict().recovery
    assert recovery
    assert recovery.seconds == pytest.approx(6.0)
    assert (recovery.held, recovery.waiting, recovery.cut, recovery.cut_and_run_again) == (
        True,
        ENOUGH_WAITS,
        1,
        1,
    )


def test_two_bodies_of_one_feed_at_the_same_time_are_an_overlap(good: Story):
    good.ran("late", 50.0, 52.0)
    good.ran("early", 51.9, 53.0)
    verdict = good.verdict()
    assert verdict.overlaps == {FEED: 1}
    assert verdict.exit_code == 1


def test_a_body_that_begins_when_another_one_ends_is_no_overlap(story: Story):
    story.ran("first", 1.0, 2.0)
    story.ran("second", 2.0, 3.0)
    assert story.verdict().overlapping == 0


def test_bodies_of_two_feeds_do_not_overlap(story: Story):
    story.ran("a", 1.0, 3.0)
    story.ran("b", 2.0, 4.0, feed=OTHER)
    assert story.verdict().overlapping == 0


def test_a_long_body_overlaps_with_every_short_one_inside_it(story: Story):
    story.ran("long", 1.0, 9.0)
    story.ran("short", 2.0, 3.0)
    story.ran("shorter", 4.0, 4.5)
    assert story.verdict().overlapping == 2


def test_a_killed_body_ends_with_its_worker(story: Story):
    story.submitted("killed", 0.0)
    story.start("killed", 1.0, worker="one")
    story.note(2.0, "kill", worker="one", feed=FEED, killed=4711, waiting=0)
    story.ran("next", 2.1, 3.0)
    assert story.verdict().overlapping == 0


def test_a_body_without_an_end_on_a_living_worker_is_still_open(story: Story):
    story.submitted("stuck", 0.0)
    story.start("stuck", 1.0, worker="two")
    story.note(2.0, "kill", worker="one", feed=FEED, killed=4711, waiting=0)
    story.ran("next", 2.1, 3.0)
    assert story.verdict().overlapping == 1


def test_a_killed_workers_last_breath_counts_until_it_ends(story: Story):
    story.submitted("killed", 0.0)
    story.start("killed", 1.0, worker="one")
    story.note(2.0, "kill", worker="one", feed=FEED, killed=4711, waiting=0)
    story.end("killed", 2.5)
    story.ran("next", 2.2, 3.0)
    assert story.verdict().overlapping == 1


def test_a_submission_that_neither_ran_nor_was_skipped_is_lost(good: Story):
    good.submitted("gone", 5.0)
    verdict = good.verdict()
    assert verdict.fates["lost"] == 1
    assert verdict.exit_code == 1


def test_a_killed_run_that_is_not_repeated_is_lost(story: Story):
    story.submitted("killed", 0.0)
    story.start("killed", 1.0)
    story.note(2.0, "kill", worker="one", feed=FEED, killed=4711, waiting=0)
    verdict = story.verdict()
    assert verdict.fates["lost"] == 1
    assert verdict.recovery
    assert verdict.recovery.seconds is None
    assert verdict.exit_code == 1


def test_a_result_without_a_body_is_lost(good: Story):
    good.submitted("pretended", 5.0)
    good.note(5.1, "outcome", id="pretended", state="SUCCESS", skipped=False)
    assert good.verdict().fates["lost"] == 1


def test_a_body_that_raises_has_failed_and_is_not_lost(good: Story):
    good.submitted("raises", 60.0)
    good.start("raises", 60.1)
    good.end("raises", 60.2, how="failed")
    verdict = good.verdict()
    assert (verdict.fates["failed"], verdict.fates["lost"], verdict.exit_code) == (1, 0, 0)


def test_a_skip_without_a_run_of_the_feed_is_a_fault(good: Story):
    good.skipped("dropped", 70.0)
    verdict = good.verdict()
    assert verdict.unfounded == 1
    assert verdict.met == ENOUGH_WAITS + ENOUGH_SKIPS
    assert verdict.exit_code == 1


def test_a_run_is_counted_twice_only_if_it_finished_twice(good: Story):
    assert good.verdict().twice == 0
    good.start("waits-0", 80.0)
    good.end("waits-0", 81.0)
    assert good.verdict().twice == 1


@pytest.mark.parametrize(
    ("left_out", "doubt"),
    [
        ({f"skip-{number}" for number in range(21)}, "only 99 submissions met a held lock"),
        ({"waits-0"}, "only 19 waited for it"),
        ({"killed"}, "no worker was killed while it held a lease"),
        ({f"waits-{number}" for number in range(ENOUGH_WAITS)}, "with others waiting behind it"),
    ],
)
def test_too_little_load_or_no_killed_holder_is_inconclusive(good: Story, left_out: set[str], doubt: str):
    for number in range(ENOUGH_WAITS):  # so that one condition fails at a time
        if not left_out.isdisjoint({"killed", f"waits-{number}"}):
            good.ran(f"more-{number}", 100.0 + number, 100.9 + number, at=99.0)
    good.events = [event for event in good.events if event.get("id") not in left_out]
    verdict = good.verdict()
    assert (verdict.colour, verdict.exit_code) == ("inconclusive", 2)
    assert any(doubt in text for text in verdict.doubts)


def test_a_fault_weighs_more_than_a_doubt(story: Story):
    story.submitted("gone", 1.0)
    assert story.verdict().exit_code == 1


def test_without_protection_overlaps_are_red_and_none_are_inconclusive(story: Story):
    story.ran("first", 1.0, 2.0)
    assert story.verdict(is_protected=False).exit_code == 2
    story.ran("second", 1.5, 2.5)
    assert story.verdict(is_protected=False).exit_code == 1


def test_the_lines_of_a_journal_may_come_in_any_order(good: Story):
    expected = good.verdict()
    good.events.reverse()
    assert good.verdict() == expected


def test_the_board_follows_a_task_from_the_queue_through_a_kill_to_its_end():
    story, board, seen = Story(), Board(), []
    story.submitted("task", 0.0)
    story.start("task", 1.0)
    story.note(2.0, "kill", worker="one", feed=FEED)
    story.start("task", 3.0, worker="two")
    story.end("task", 4.0)
    story.note(4.1, "outcome", id="task", state="SUCCESS", skipped=False)
    for event in story.events:
        board.follow([event])
        seen.append(next(iter(board.count(FEED))))
    assert seen == ["waiting", "waiting", "running", "waiting", "running", "done", "done"]
    assert board.unsettled == []


def test_the_board_remembers_an_outcome_that_came_before_the_producers_own_line():
    story, board = Story(), Board()
    story.note(1.0, "outcome", id="task", state="SUCCESS", skipped=True)
    story.submitted("task", 1.1)
    board.follow(story.events)
    assert board.count(FEED) == {"skipped": 1}
    assert board.unsettled == []
