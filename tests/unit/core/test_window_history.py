"""Windows of calls in any order that Hypothesis can think of: calls, time, and copies of messages."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from celery_exclusive.core.claim import task_id
from celery_exclusive.core.operations import (
    Answer,
    Applied,
    Enqueue,
    Held,
    KeyOperation,
    Parked,
    Reap,
    ids_of,
)
from celery_exclusive.core.plan import Ask
from celery_exclusive.core.records import SECOND, reach
from tests.unit.core.test_admission_window import WAITS, Store, delivery

POSITIONS = st.integers(0, 2)
TIMES = st.sampled_from([0, SECOND, 5 * SECOND, 40 * SECOND, 700 * SECOND])
MOST_REQUESTS = 8


class Copy(NamedTuple):
    """A copy of a window's message at the broker. `call`: the number of the call that has made it."""

    window: str
    call: int
    redelivered: bool = False


class Windows(RuleBasedStateMachine, Store):
    """One key of windows. `calls`: the window of each call. `runs`: the calls that each window has run."""

    def __init__(self) -> None:
        RuleBasedStateMachine.__init__(self)
        Store.__init__(self)
        self.queue: list[Copy] = []
        self.running: list[Copy] = []
        self.calls: list[str] = []
        self.runs: dict[str, list[int]] = {}
        self.ended: set[str] = set()
        self.tokens = 0

    def ask(self, asked: Ask) -> Answer:
        answer = super().ask(asked)
        self._publish()
        return answer

    @rule(knows_window=st.booleans())
    def call_comes(self, *, knows_window: bool) -> None:
        """Publish as `DebouncedPublish` does, which may have looked for the open window before."""
        number, own = len(self.calls), f"{len(self.calls)}/1"
        window = self.calls[-1] if knows_window and self.calls else own
        requests = 0
        while not isinstance(answer := self._enqueue(window, number), Parked):
            window = answer.by[0].id if isinstance(answer, Held) else own
            requests += 1
            assert requests < MOST_REQUESTS
        assert window not in self.runs
        self.calls.append(window)

    @rule()
    def last_call_repeats_its_request(self) -> None:
        if self.calls:
            assert isinstance(self._enqueue(self.calls[-1], len(self.calls) - 1), (Parked, Applied))

    @rule(time=TIMES)
    def time_passes(self, time: int) -> None:
        self.windows.now += time

    @rule()
    def reaper_comes(self) -> None:
        self._request(Reap())

    @rule(position=POSITIONS)
    def copy_is_delivered(self, position: int) -> None:
        for copy in self.queue[position : position + 1]:
            self.queue.remove(copy)
            self.tokens += 1
            facts = {"redelivered": copy.redelivered, "was_admitted": copy.redelivered}
            outcome = self.admit(delivery(f"{self.tokens}", task_id(copy.window), **facts))
            if outcome.kind == "run":
                assert copy.window not in self.ended, "it runs after it has run"
                self.runs.setdefault(copy.window, []).append(copy.call)
                self.running.append(copy)

    @rule(position=POSITIONS)
    def worker_dies_with_a_copy(self, position: int) -> None:
        for copy in self.queue[position : position + 1]:
            self.queue.remove(copy)
            self.queue.append(copy._replace(redelivered=True))

    @rule(position=POSITIONS)
    def worker_dies_in_a_run(self, position: int) -> None:
        for copy in self.running[position : position + 1]:
            self.running.remove(copy)
            self.queue.append(copy._replace(redelivered=True))

    @rule(position=POSITIONS)
    def run_ends(self, position: int) -> None:
        for copy in self.running[position : position + 1]:
            self.running.remove(copy)
            self.ended.add(copy.window)
            self.end(delivery("any", task_id(copy.window)))
            self._publish()

    @invariant()
    def at_most_one_window_is_open(self) -> None:
        assert sum(entry.is_window for entry in self.windows.entries.values()) <= 1

    def teardown(self) -> None:
        """Let everything end: each window has run then, with the arguments of its newest call alone."""
        for _ in range(100):
            while self.queue or self.running:
                self.copy_is_delivered(0)
                self.run_ends(0)
            if not self.windows.entries:
                break
            self.time_passes(700 * SECOND)
            self.reaper_comes()
        newest = {window: number for number, window in enumerate(self.calls)}
        assert {window: {*calls} for window, calls in self.runs.items()} == {
            window: {number} for window, number in newest.items()
        }
        assert not self.windows.entries

    def _enqueue(self, window: str, call: int) -> Answer:
        return self._request(Enqueue(window, f"{call}".encode(), waits=WAITS))

    def _request(self, operation: KeyOperation | Reap) -> Answer:
        windows = self.windows
        read = reach(windows.document, 1, ids_of(operation), windows.now)
        assert windows.look(operation) == windows.look(operation, count=read), "it reads too little"
        answer = windows.ask(operation)
        self._publish()
        return answer

    def _publish(self) -> None:
        """Publish what the last request has woken."""
        for id in self.windows.last.wake:
            self.queue.append(Copy(id, int(self.windows.messages[id])))


@pytest.mark.promise(
    "In any order of calls, deliveries, deaths and ends at most one window of a key is open, each call is "
    "covered by a run that begins after it, and each window runs its newest call alone, never after its end",
    broke="a call joins a window that was offered; a redelivered copy runs after the run of another one",
    figure="300 random histories without a violation",
)
@pytest.mark.timeout(600)
def test_any_history_of_calls_is_covered() -> None:
    run_state_machine_as_test(Windows, settings=settings(max_examples=300, stateful_step_count=40))
