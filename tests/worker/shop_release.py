"""The tasks of two releases on one queue. As a program, a publisher that answers one question per line.

Both releases import it: it uses only what the older one has, too.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from celery import Task

import celery_exclusive
from celery_exclusive import Debounce, Exclusive, Unique
from tests.worker.shop import act, app, noted, task

__all__ = ["app"]

PACKAGE = str(Path(celery_exclusive.__file__).parents[1])


def body(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    noted("package", self, tag, package=PACKAGE)
    act(self, key, tag, hold=hold)
    return tag


@task(name="release.line", exclusive=Exclusive("key"))
def line(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return body(self, key, tag, hold)


@task(name="release.two", exclusive=Exclusive("key", limit=2))
def two(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return body(self, key, tag, hold)


@task(name="release.once", unique=Unique("key"))
def once(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return body(self, key, tag, hold)


@task(name="release.burst", unique=Debounce("key", wait=8, max_wait=60))
def burst(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return body(self, key, tag, hold)


@task(name="release.retried", exclusive=Exclusive("key"), max_retries=1)
def retried(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    if self.request.retries:
        return body(self, key, f"{tag}, again")
    body(self, key, tag, hold)
    raise self.retry(countdown=0)


def main() -> None:
    for question in sys.stdin:
        verb, name, args, options = json.loads(question)
        asked = app.tasks[f"release.{name}"]
        answer = publish(asked, args, options) if verb == "publish" else state(asked, args)
        print(json.dumps({"package": PACKAGE, **answer}), flush=True)  # noqa: T201


def publish(asked: Any, args: list[Any], options: dict[str, Any]) -> dict[str, Any]:
    result = asked.apply_async(args, **options)
    return {"id": result.id, "outcome": result.outcome, "existing_id": result.existing_id}


def state(asked: Any, args: list[Any]) -> dict[str, Any]:
    seen = asked.lock_state(*args)
    unique = seen.unique_holder
    return {
        "holders": [holder.task_id for holder in seen.holders],
        "line": [waiting.task_id for waiting in seen.line],
        "unique_holder": unique and unique.task_id,
    }
