"""Where every submission is right now, kept up to date from the journal. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal

from .journal import Event

State = Literal["waiting", "running", "skipped", "done", "failed"]


class Board:
    """The state of each task, by feed."""

    def __init__(self) -> None:
        self.ready: set[str] = set()
        self.submitted: dict[str, str] = {}
        self._received: set[str] = set()
        self._states: dict[str, State] = {}
        self._feeds: dict[str, str] = {}
        self._running: dict[str, str] = {}

    def follow(self, events: Iterable[Event]) -> None:
        """Take in new events of the journal."""
        for event in events:
            self._take(event)

    @property
    def unsettled(self) -> list[str]:
        """The submitted tasks that have neither finished nor been skipped."""
        return [
            task_id for task_id in self.submitted if self._states.get(task_id) in (None, "waiting", "running")
        ]

    @property
    def undelivered(self) -> set[str]:
        """The submitted tasks that no worker has received yet."""
        return self.submitted.keys() - self._received

    def count(self, feed: str | None = None) -> Counter[State]:
        """Count the states of one feed's tasks, or of all."""
        return Counter(
            state for task_id, state in self._states.items() if feed in (None, self._feeds.get(task_id))
        )

    def waiting_for(self, feed: str) -> int:
        """Return how many tasks a worker has received that have not begun to import this feed."""
        received = (task_id for task_id in self._received if self._feeds.get(task_id) == feed)
        return sum(self._states.get(task_id) == "waiting" for task_id in received)

    def workers_in(self, feed: str) -> list[str]:
        """Return the workers that are inside a body of this feed."""
        return [worker for task_id, worker in self._running.items() if self._feeds[task_id] == feed]

    def _take(self, event: Event) -> None:
        task_id: str = event.get("id", "")
        match event["event"]:
            case "ready":
                self.ready.add(event["worker"])
            case "submitted":
                self.submitted[task_id] = self._feeds[task_id] = event["feed"]
                self._states.setdefault(task_id, "waiting")  # its end may have come before this line
            case "received":
                self._received.add(task_id)
            case "start":
                self._feeds[task_id] = event["feed"]
                self._states[task_id] = "running"
                self._running[task_id] = event["worker"]
            case "end":
                self._running.pop(task_id, None)
                self._states[task_id] = "failed" if event["how"] == "failed" else "done"
            case "kill":
                for dead in [key for key, worker in self._running.items() if worker == event["worker"]]:
                    del self._running[dead]
                    self._states[dead] = "waiting"
            case "outcome" if self._states.get(task_id) not in ("done", "failed"):
                self._states[task_id] = "skipped" if event["skipped"] else "failed"
