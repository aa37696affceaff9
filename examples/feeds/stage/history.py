"""The journal's lines put together: submissions, deliveries, runs, the kill, outcomes. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from .journal import Event

Nanoseconds = int


@dataclass(frozen=True)
class Submission:
    """A producer put a task into the queue."""

    id: str
    feed: str
    kind: str
    at: Nanoseconds


@dataclass(frozen=True)
class Run:
    """One execution of a body. `open`: it has no end, and its worker was not killed."""

    id: str
    feed: str
    worker: str
    begin: Nanoseconds
    end: Nanoseconds
    how: Literal["done", "failed", "cut", "open"]


@dataclass(frozen=True)
class Kill:
    """The runner sent SIGKILL to a worker, because of this feed."""

    worker: str
    feed: str
    at: Nanoseconds


@dataclass(frozen=True)
class Outcome:
    """The final state and result of a task in the result backend."""

    state: str
    skipped: bool
    at: Nanoseconds


@dataclass
class History:
    """Everything that happened in one run of the demo."""

    submissions: dict[str, Submission] = field(default_factory=dict)
    received: dict[str, list[Nanoseconds]] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    kill: Kill | None = None
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    @classmethod
    def of(cls, events: Iterable[Event]) -> History:
        """Put the events together, in the order of their clock."""
        ordered = sorted(events, key=lambda event: event["at"])
        history = cls()
        begun: dict[int, Event] = {}  # by process: a process runs one body at a time
        for event in ordered:
            at, task_id = event["at"], event.get("id", "")
            match event["event"]:
                case "submitted":
                    history.submissions[task_id] = Submission(task_id, event["feed"], event["kind"], at)
                case "received":
                    history.received.setdefault(task_id, []).append(at)
                case "start":
                    if unfinished := begun.get(event["pid"]):  # numbers of dead processes come back
                        history.runs.append(history._unfinished(unfinished, at))
                    begun[event["pid"]] = event
                case "end":
                    history.runs.append(_run(begun.pop(event["pid"]), at, event["how"]))
                case "kill":
                    history.kill = Kill(event["worker"], event["feed"], at)
                case "outcome":
                    history.outcomes[task_id] = Outcome(event["state"], event["skipped"], at)
        for start in begun.values():
            history.runs.append(history._unfinished(start, ordered[-1]["at"]))
        history.runs.sort(key=lambda run: run.begin)
        return history

    def _unfinished(self, start: Event, last: Nanoseconds) -> Run:
        if self.kill and start["worker"] == self.kill.worker:
            return _run(start, max(self.kill.at, start["at"]), "cut")
        return _run(start, last, "open")


def _run(start: Event, end: Nanoseconds, how: Literal["done", "failed", "cut", "open"]) -> Run:
    return Run(start["id"], start["feed"], start["worker"], start["at"], end, how)
