"""The independent log: what really happened, written by the example and never by the library.

One JSON object per line, each written by a single `write` to a file opened with O_APPEND, so lines
of many processes do not mix. `at` is CLOCK_MONOTONIC in nanoseconds, one clock for the machine.

| event | written by | when |
|---|---|---|
| `ready` | worker | it takes tasks |
| `submitted` | producer | the broker has the message |
| `received` | worker | a delivery of the task reached it (again: delivered again) |
| `start`, `end` | task body | first and last line; `how` is done, failed or cut |
| `kill` | runner | just before SIGKILL |
| `outcome` | runner | the result backend has a final state |
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from celery import current_task

VARIABLE = "FEEDS_JOURNAL"
"""Environment variable with the journal's path."""

Event = dict[str, Any]


def write(event: str, **fields: object) -> None:
    """Append one event; without the variable do nothing."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    line = json.dumps({"event": event, "at": time.monotonic_ns(), "pid": os.getpid(), **fields})
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode() + b"\n")
    finally:
        os.close(descriptor)


@contextmanager
def body(feed: str) -> Iterator[None]:
    """Note begin and end of the body of the current task."""
    request = current_task.request
    task_id, how = request.id, "cut"
    write("start", id=task_id, feed=feed, worker=request.hostname)
    try:
        yield
        how = "done"
    except Exception:
        how = "failed"
        raise
    finally:
        write("end", id=task_id, feed=feed, how=how)


class Reader:
    """Follows a journal: every call of `fresh` returns the events since the last one."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._rest = b""

    def fresh(self) -> list[Event]:
        """Return the new events; an unfinished last line waits for the next call."""
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Close the file."""
        self._file.close()
