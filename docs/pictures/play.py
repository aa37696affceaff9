"""Real workers on a real Redis play what the pictures show. The result is a record of events."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from celery import chain

from docs.pictures.draw import POLICIES
from tests.worker.journal import Event
from tests.worker.lab import Lab

BETWEEN, BODY = 0.6, 2.5
"""The seconds between two calls, and those of a body."""
TTL = 4.0
"""The seconds of a lease in the picture of a death."""
CONF: dict[str, Any] = {"task_acks_late": True, "task_reject_on_worker_lost": True}


def play(folder: Path, url: str) -> dict[str, Any]:
    """Return the record of all pictures, played in this folder on this Redis."""
    return {
        "policies": policies(folder, url),
        "death": death(folder / "death", url),
        "chains": chains(folder / "chains", url),
    }


def policies(folder: Path, url: str) -> dict[str, list[Event]]:
    """Send three calls of each policy, and return the events of each."""
    with Lab(url, folder, CONF, "tests.worker.shop_pictures") as lab:
        worker = lab.start_worker("w1", concurrency=10)
        lab.send("wait", "another", "another", 0.0).get(timeout=60)  # the first call of a process connects
        tags: dict[str, str] = {}
        begin = time.monotonic_ns()
        for number in (1, 2, 3):
            pause_until(begin, (number - 1) * BETWEEN)
            for policy in POLICIES:
                tag = f"{policy} {number}"
                lab.journal.write("sent", tag=tag)
                call = lab.send(policy, "k", tag, BODY)
                lab.journal.write("answered", tag=tag, outcome=call.outcome)
                tags.setdefault(call.id, tag)
            lab.journal.wait_for("start", len(POLICIES) - 1)  # before another call can overtake one of these
        lab.open(*(f"supersede {number}" for number in (1, 2, 3)))
        lab.journal.wait_for("end", tag="wait 3")
        worker.stop()  # after it has acknowledged all messages, else workers of the next picture get them
        events = [{"tag": tags.get(event.get("id", "")), **event} for event in lab.journal.events()]
    return {
        policy: timed([event for event in events if (event["tag"] or "").startswith(policy)], begin)
        for policy in POLICIES
    }


def death(folder: Path, url: str) -> list[Event]:
    """Kill the worker of a run, and return the events until both calls have ended."""
    folder.mkdir()
    with Lab(url, folder, {**CONF, "exclusive_ttl": TTL}, "tests.worker.shop_pictures") as lab:
        workers = [lab.start_worker(name, concurrency=1) for name in ("w1", "w2")]
        lab.send("wait", "k", "A1", BODY)
        (start,) = lab.journal.wait_for("start")
        pause_until(start["at"], BETWEEN)
        lab.journal.write("sent", tag="A2")
        lab.send("wait", "k", "A2", BODY)
        pause_until(start["at"], 2 * BETWEEN)
        (killed,) = [worker for worker in workers if start["pid"] in worker.children]
        killed.kill()
        lab.journal.write("killed", tag="A1")
        lab.journal.wait_for("end", 2)
        return timed([event for event in lab.journal.events() if "tag" in event], start["at"])


def chains(folder: Path, url: str) -> list[Event]:
    """Call a chain of two unique steps three times, and return the events until all have ended."""
    folder.mkdir()
    with Lab(url, folder, CONF, "tests.worker.shop_pictures") as lab:
        worker = lab.start_worker("w1", concurrency=4)
        generate, send = lab.task("generate"), lab.task("send")
        generate.delay("another", "another", 0.0).get(timeout=60)  # the first call of a process connects
        begin, results = time.monotonic_ns(), []
        for number in (1, 2, 3):
            pause_until(begin, (number - 1) * BETWEEN)
            lab.journal.write("sent", tag=f"chain {number}")
            steps = generate.s("k", f"generate {number}", BODY), send.s("k", f"send {number}", BODY)
            results.append(chain(*steps).apply_async())
        for number, result in enumerate(results, 1):
            file = result.get(timeout=60)
            lab.journal.write("ended", tag=f"chain {number}", outcome=f"{result.state}: {file}")
        worker.stop()
        return timed(
            [event for event in lab.journal.events() if event.get("tag") not in (None, "another")], begin
        )


def pause_until(begin: int, seconds: float) -> None:
    time.sleep(max(0.0, begin / 1e9 + seconds - time.monotonic()))


def timed(events: list[Event], begin: int) -> list[Event]:
    """Return what the pictures need of the events, with their seconds since the begin."""
    kept = ("what", "tag", "kind", "outcome", "fence")
    return [
        {
            "at": round((event["at"] - begin) / 1e9, 2),
            **{name: event[name] for name in kept if event.get(name)},
        }
        for event in events
    ]
