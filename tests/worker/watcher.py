"""What a monitor sees: the events that workers started with `-E` send."""

from __future__ import annotations

from threading import Thread
from typing import Any

from typing_extensions import Self

from tests.worker.journal import eventually
from tests.worker.lab import Lab, Worker

SENDS_EVENTS = ("-E",)
"""The option of a worker that is watched."""


class Watcher:
    """Receives events as monitors do, in a thread of its own.

    worker = lab.start_worker(options=SENDS_EVENTS)
    with Watcher(lab, worker) as watcher:
        (event,) = watcher.wait_for("lock-lost")
    """

    def __init__(self, lab: Lab, *workers: Worker) -> None:
        self._lab, self._workers = lab, workers
        self._seen: list[dict[str, Any]] = []
        self._thread = Thread(target=self._run, name="watcher", daemon=True)

    def __enter__(self) -> Self:
        """Return when it has heard of all its workers."""
        self._connection = self._lab.app.connection_for_read()
        self._receiver = self._lab.app.events.Receiver(self._connection, {"*": self._seen.append})
        self._thread.start()
        for worker in self._workers:
            eventually(lambda name=worker.name: self.events("worker-heartbeat", hostname=name), "heartbeats")
        return self

    def __exit__(self, *_: object) -> None:
        self._receiver.should_stop = True
        self._thread.join(30)
        self._connection.release()

    def events(self, kind: str, **fields: Any) -> list[dict[str, Any]]:
        """Those of a kind, with these fields."""
        return [
            event
            for event in list(self._seen)
            if event["type"] == kind and all(event.get(name) == value for name, value in fields.items())
        ]

    def wait_for(self, kind: str, count: int = 1, **fields: Any) -> list[dict[str, Any]]:
        """Wait until there are so many, and return them."""
        return eventually(
            lambda: found if len(found := self.events(kind, **fields)) >= count else None,
            f"{count} x {kind} {fields}",
        )

    def _run(self) -> None:
        for _ in self._receiver.consume(limit=None, timeout=None, safety_interval=0.2):
            pass
