"""However a task ends: its hooks, signals, results, callbacks and chords get what plain Celery gives them."""

from __future__ import annotations

import difflib
import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from threading import Thread
from typing import Any

import celery
import pytest
from celery import chain, chord
from celery.utils import uuid

from celery_exclusive import lock
from tests.worker.lab import Lab, Worker, eventually
from tests.worker.stage import Stage, on_stages
from tests.worker.versions import needs_celery

MODULE = "tests.worker.shop_twins"
ENDINGS = {
    "return": ("usual", "return"),
    "return, own call": ("called", "return"),
    "return, tracked": ("tracked", "return"),
    "return, ignored": ("ignored", "return"),
    "call itself": ("usual", "call itself"),
    "call itself, own call": ("called", "call itself"),
    "raise": ("usual", "raise"),
    "raise, own call": ("called", "raise"),
    "raise, tracked": ("tracked", "raise"),
    "raise, ignored": ("ignored", "raise"),
    "raise, error stored": ("ignored_errors", "raise"),
    "raise, expected": ("throws", "raise"),
    "raise, unacked": ("unacked", "raise"),
    "raise what cannot be pickled": ("usual", "raise what cannot be pickled"),
    "return what cannot be stored": ("usual", "return what cannot be stored"),
    "retry": ("usual", "retry"),
    "retry, own call": ("called", "retry"),
    "retry, ignored": ("ignored", "retry"),
    "retry later": ("tracked", "retry later"),
    "retry in vain": ("usual", "retry in vain"),
    "retry an error in vain": ("usual", "retry an error in vain"),
    "retry by itself": ("auto", "raise"),
    "retry by itself, own call": ("auto_called", "raise"),
    "ignore": ("tracked", "ignore"),
    "reject": ("tracked", "reject"),
    "requeue": ("tracked", "requeue"),
    "replace": ("tracked", "replace"),
    "replace by a chain": ("usual", "replace by a chain"),
    "revoked": ("usual", "return"),
    "expired": ("usual", "return"),
    "soft limit": ("soft", "sleep"),
    "hard limit": ("hard", "sleep"),
    "killed": ("doomed", "die"),
    "killed, runs again": ("doomed_again", "die"),
    "killed, is retried": ("doomed_retried", "die"),
    "exit": ("doomed", "exit"),
    "SystemExit": ("doomed", "system exit"),
    "terminated": ("doomed", "be terminated"),
}
"""By their names: which twins, and what their body does."""
OF_PROCESSES = list(ENDINGS)[list(ENDINGS).index("soft limit") :]
CUT_SHORT = {"hard limit", "terminated"}
"""Their child may or may not come to `task_postrun` before it is killed."""
IN_CANVASES = {
    *("return", "raise", "retry", "ignore", "reject", "requeue", "replace", "replace by a chain"),
    *("revoked", "expired", "soft limit", "hard limit", "killed", "SystemExit", "terminated"),
}
"""What is also tried as a member of a chord, and as the first step of a chain."""
UNLIKE = {("hard limit", "chord")} if celery.VERSION < (5, 6) else set()
"""Before 5.6 Celery calls the errback of a chord twice for a plain member over its hard time limit."""
SKIPPING = ("return", "retry", "retry by itself", "requeue", "replace", "killed, runs again")
"""What is also tried with twins that would skip."""
TIME_TO_PARK = timedelta(seconds=20)
"""Within it a message comes to its place in line, and after it, it may have expired there."""
AROUND = {"steady", "errback by id"}
"""What runs as a task of its own, at its own time."""


@dataclass(frozen=True)
class Call:
    """One twin that is sent: with callbacks, as a member of a chord, or as the first step of a chain."""

    lab: Lab
    ending: str
    shape: str
    kind: str
    is_held: bool = False
    id: str = field(default_factory=uuid)

    @property
    def label(self) -> str:
        return f"{self.ending}, {self.shape}, {self.kind}{', held' * self.is_held}"

    @property
    def name(self) -> str:
        return f"{self.kind}_{ENDINGS[self.ending][0]}"

    @property
    def after(self) -> str:
        """The id of what follows: the chord's body, or the chain's next step."""
        return f"{self.id} after"

    def send(self) -> None:
        steady, errback, errback_by_id = map(self.lab.task, ("steady", "errback", "errback_by_id"))
        options: dict[str, Any] = {"task_id": self.id}
        if self.ending == "expired":
            options["expires"] = now() + (TIME_TO_PARK if self.is_held else -TIME_TO_PARK)
        twin = self.lab.task(self.name).s(ENDINGS[self.ending][1], label=self.label).set(**options)
        after = steady.s(label=self.after).set(task_id=self.after)
        after.on_error(errback.s(label=self.after))
        if self.shape == "chord":
            chord([twin, steady.s(label=self.after)], after).apply_async()
        elif self.shape == "chain":
            chain(twin, after).apply_async()
        else:
            twin.link(steady.s(label=self.after))
            twin.on_error(errback.s(label=self.id))
            twin.on_error(errback_by_id.s(label=self.after))
            twin.apply_async()


@dataclass(frozen=True)
class Records:
    """All that is known of many calls after they have ended."""

    events: dict[str, list[dict[str, Any]]]
    monitored: dict[str, list[dict[str, Any]]]
    log: str

    def parked(self, call: Call) -> int:
        return self.log.count(f"[{call.id}] parked: ")

    def deliveries_besides(self, call: Call) -> int:
        """Those of a message that was parked, or dropped since another copy of it had run or ran."""
        return self.parked(call) + self.log.count(f"[{call.id}] dropped: ")

    def of(self, call: Call, *, without: str = "") -> str:
        """What is known of a call, without what tells one call from another, and without one kind of event.

        Apart are its attempts, and in each the main process and the child; and what came after it.
        """
        told: defaultdict[str, list[Any]] = defaultdict(list)
        for event in self.events[call.id]:
            is_after = event["what"] in AROUND
            told["after" if is_after else f"{event['where']} {event['attempt']}"].append(
                [event["what"], event["told"]]
            )
        for event in self.events[call.after]:
            told["after"].append([event["what"], event["told"]])
        told["after"].sort(key=repr)
        for where, events in told.items():
            unwanted = {without, "task_received" if where.startswith("parent") else ""}
            unwanted |= {"task_postrun"} if call.ending in CUT_SHORT else set()
            told[where] = [event for event in events if event[0] not in unwanted]
        received = [event for event in self.events[call.id] if event["what"] == "task_received"]
        told["received"] = [len(received) - self.deliveries_besides(call)]
        told["monitor"] = self.of_monitor(call)
        told["results"] = [stored(call, id) for id in (call.id, call.after)]
        return normal(json.dumps(told, indent=1, sort_keys=True), call)

    def of_monitor(self, call: Call) -> list[str]:
        """The events of a monitor such as Flower, without those of deliveries that run nothing."""
        fields = ("exception", "result", "terminated", "expired", "signum")
        seen = [
            f"{event['type']} {[event.get(name) for name in fields]}" for event in self.monitored[call.id]
        ]
        for _ in range(self.deliveries_besides(call)):
            for kind in ("task-received", "task-started"):
                seen.remove(next(event for event in seen if event.startswith(kind)))
        return sorted(seen)


def now() -> datetime:
    return datetime.now(timezone.utc)


def stored(call: Call, id: str) -> Any:
    """All that the result backend has of a task."""
    backend = call.lab.app.backend
    text = backend.get(backend.get_key_for_task(id))
    found = json.loads(text) if text else None
    if found and call.shape == "chord" and id == call.after:  # by whom its last member was counted
        found["parent_id"] = found["children"] = "..."
    return found


def normal(text: str, call: Call) -> str:
    for own, name in (
        (call.after, "AFTER"),
        (call.id, "ID"),
        (call.label, "LABEL"),
        (f"{MODULE}.{call.name}", "NAME"),
    ):
        text = text.replace(own, name)
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID", text)
    text = re.sub(r'("traceback": ")(\\.|[^"\\])*', r"\1...", text)
    text = re.sub(r'("date_done": "|"pid": )[^",]*', r"\1...", text)
    return re.sub(r"Job: \d+", "Job: ...", text)


def run_all(stage: Stage, endings: Collection[str], canvases: Collection[str] = ()) -> None:
    """Let all twins end at once, on one worker, and compare."""
    lab = stage.make_lab(MODULE, exclusive_ttl=600, exclusive_offer=600, result_extended=True)
    worker = stage.start_worker(lab, slots=6, options=("-E",))
    shapes = [(ending, "alone") for ending in endings]
    shapes += [(ending, shape) for ending in canvases for shape in ("chord", "chain")]
    shapes = [shape for shape in shapes if shape not in UNLIKE]
    free = [Call(lab, ending, shape, kind) for ending, shape in shapes for kind in ("plain", "exclusive")]
    free += [Call(lab, ending, "alone", "skip") for ending in SKIPPING if ending in endings]
    held = [Call(lab, ending, shape, "exclusive", True) for ending, shape in shapes]
    skipped = Call(lab, "return", "alone", "skip", True)
    with monitor(lab) as monitored, ExitStack() as locks:
        for call in (skipped, *held):
            locks.enter_context(lock(call.label, ttl=600, app=lab.app))
        skipped.send()
        for is_last in (False, True):  # for those that expire there is a worker with nothing else to do
            calls = [call for call in held if (call.ending == "expired") == is_last]
            for call in calls:
                call.send()
            for call in calls:
                lab.wait_for_line(1, call.name, "", call.label)
        expired = now() + TIME_TO_PARK
        revoked = [call.id for call in (*free, *held) if call.ending == "revoked"]
        assert lab.app.control.revoke(revoked, reply=True, limit=1, timeout=60)
        for call in free:
            call.send()
        eventually(lambda: "expired" not in endings or now() > expired, "the end of what expires in line")
        assert lab.app.AsyncResult(skipped.id).get(timeout=60) == ["a result"]
        locks.close()
        wait_for_rest(stage, lab, worker)
        last = lab.send("steady", label="last")
        eventually(lambda: len(monitored[last.id]) == 3, "the last event")
    by_id = defaultdict(list)
    for event in lab.journal.events():
        by_id[event["id"]].append(event)
    records = Records(by_id, monitored, worker.log)
    plain = {(call.ending, call.shape): records.of(call) for call in free if call.kind == "plain"}
    differences = [
        f"{call.label}:\n{difference(plain[call.ending, call.shape], records.of(call))}"
        for call in (*free, *held)
        if records.of(call) != plain[call.ending, call.shape]
    ]
    assert not differences, "\n".join(differences)
    assert not difference(records.of(free[0], without="body"), records.of(skipped))
    assert all(records.parked(call) for call in held)
    stage.assert_nothing_is_left(lab)


def difference(plain: str, ours: str) -> str:
    lines = difflib.unified_diff(plain.splitlines(), ours.splitlines(), "plain", "ours", lineterm="")
    return "\n".join(lines)


@contextmanager
def monitor(lab: Lab) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """Collect the events of tasks, by their ids, as a monitor does."""
    seen: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    with lab.app.connection_for_read() as connection:
        receiver = lab.app.events.Receiver(
            connection, handlers={"*": lambda event: seen[event.get("uuid", "")].append(event)}
        )
        listening = Thread(target=lambda: receiver.capture(wakeup=False), daemon=True)
        listening.start()
        eventually(lambda: seen, "the first event")
        try:
            yield seen
        finally:
            receiver.should_stop = True
            listening.join(20)


def wait_for_rest(stage: Stage, lab: Lab, worker: Worker) -> None:
    """Wait until the worker has nothing more to do."""

    def is_idle() -> bool:
        """What is acknowledged early may come and start between two looks: then one more was received."""
        received = worker.log.count("] received")
        look = lab.app.control.inspect([worker.name], timeout=60, limit=1)
        busy = [ask() for ask in (look.scheduled, look.reserved, look.active)]
        is_empty = stage.messages_at_the_broker(lab) == 0 and busy == [{worker.name: []}] * 3
        return is_empty and worker.log.count("] received") == received

    eventually(is_idle, "an idle worker", 120)


@pytest.mark.promise(
    "Hooks, signals, events, states, results, callbacks and chord counts are plain Celery's, also after "
    "waiting in line; a skipped run is an ordinary success without its body",
    name="as plain Celery",
    broke=(
        "parked through the tracer; parked as Reject; a direct call that hides its request; our delivery "
        "shown to errbacks; lost `reply_to`; skip enters the body"
    ),
    figure="38 endings, 15 of them in chords and chains",
)
@on_stages("prefork", brokers=("redis",), early_is_large=True)
def test_every_ending_is_reported_as_plain_celery_reports_it(stage: Stage) -> None:
    run_all(stage, list(ENDINGS), IN_CANVASES)


@pytest.mark.proves("as plain Celery")
@needs_celery("5.7", "errbacks that are given their arguments by name")
@on_stages("threads", brokers=("redis",), lates=(True,))
def test_every_ending_in_a_thread_is_reported_as_plain_celery_reports_it(stage: Stage) -> None:
    of_threads = [ending for ending in ENDINGS if ending not in OF_PROCESSES]
    run_all(stage, of_threads, IN_CANVASES.difference(OF_PROCESSES))


@pytest.mark.proves("as plain Celery")
@on_stages("prefork", brokers=("rabbitmq",), lates=(True,))
@pytest.mark.large
def test_endings_of_messages_of_rabbitmq_are_reported_as_plain_celery_reports_them(stage: Stage) -> None:
    endings = ["return", "raise", "retry", "reject", "requeue", "replace", "revoked", "soft limit"]
    run_all(stage, [*endings, "killed", "killed, runs again", "terminated"])
