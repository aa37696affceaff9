"""The parent of test processes: a child without threads that imports once, and forks when it is asked."""

from __future__ import annotations

import gc
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from threading import Lock
from typing import Any


class Nursery:
    """What all nurseries have: the child, and how it is asked. See `questions` and `answer`."""

    def __init__(self, command: list[str], **options: Any) -> None:
        self._lock = Lock()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options
        )

    def ask(self, *words: object) -> Any:
        with self._lock:
            assert self._process.stdin
            assert self._process.stdout
            self._process.stdin.write(json.dumps(words) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())


def questions() -> Iterator[list[Any]]:
    """In the child: what it is asked, until its parent closes or is gone."""
    gc.freeze()  # Celery collects garbage before each fork of a pool: what is imported here is none
    for line in sys.stdin:
        yield json.loads(line)


def answer(value: object) -> None:
    sys.stdout.write(f"{json.dumps(value)}\n")
    sys.stdout.flush()


def read_versions_once() -> None:
    """Let this process remember the versions of packages: redis-py looks for its own at each connection."""
    importlib.metadata.version = cache(importlib.metadata.version)
