"""Tasks that newer calls supersede: they look, or do not, clean up, retry, or catch what interrupts them."""

from __future__ import annotations

import time
from typing import Any

from celery import Task
from celery.exceptions import SoftTimeLimitExceeded

from celery_exclusive import Exclusive, Superseded
from tests.worker.shop import app, doors, journal, noted, task

__all__ = ["app"]
LONGEST = 30
SUPERSEDE = Exclusive(key="over:{key}", on_conflict="supersede")
OPTIONS: dict[str, dict[str, Any]] = {
    "doc": {"exclusive": SUPERSEDE},
    "named": {"exclusive": SUPERSEDE.replace(skip_result="superseded")},
    "kept": {"exclusive": SUPERSEDE.replace(keep_on_retry=True)},
    "auto": {
        "exclusive": SUPERSEDE,
        "autoretry_for": (Exception,),
        "retry_backoff": False,
        "default_retry_delay": 0,
    },
    "impatient": {"exclusive": SUPERSEDE.replace(grace=0)},
}


def note_and_wait(what: str, run: Task, tag: str, lingers: bool) -> None:
    noted(what, run, tag, superseded=run.lease.superseded)
    if lingers:
        doors.blpop([f"door:{tag}, told"], timeout=LONGEST)


def end(run: Task, tag: str, does: str) -> Any:
    """End a body that was told of a newer call, as it likes."""
    if does == "retry":
        raise run.retry(countdown=0) from None
    if does == "replace":
        return run.replace(collect.si(tag) | collect.si(f"after {tag}"))
    if does == "fail":
        raise ValueError("as it likes") from None
    if does == "return":
        return f"{tag} half"
    raise  # noqa: PLE0704 - what has ended it


def work(
    self: Task, key: str, tag: str = "", does: str = "look", hold: bool = False, lingers: bool = False
) -> Any:
    """Run until a newer call is seen, and end at once as a retry; `does` says what becomes of it then."""
    journal.write("start", task=self.name, id=self.request.id, tag=tag, retries=self.request.retries)
    if self.request.retries:
        return f"{tag} again"
    if hold:
        doors.blpop([f"door:{tag}"], timeout=LONGEST)
    until = time.monotonic() + LONGEST
    try:
        while does != "end" and time.monotonic() < until:
            if does != "sleep":
                self.lease.check()
            time.sleep(0.05)
    except Superseded:
        note_and_wait("told", self, tag, lingers)
        return end(self, tag, does)
    except SoftTimeLimitExceeded:
        note_and_wait("interrupted", self, tag, lingers)
        if does == "sleep" and tag == "tidy":
            return "tidied up"
        raise
    finally:
        journal.write("end", task=self.name, id=self.request.id, tag=tag)
    return tag


for name, options in OPTIONS.items():
    task(name=f"{__name__}.{name}", **options)(work)


@task()
def collect(self: Task, results: Any) -> Any:
    doors.rpush("collected", repr(results))
    return results
