"""A broker, workers and a store around the real core, with a clock that the reader moves.

The page `explanation/line` runs this module in the browser. Everything about the lock is decided by
`celery_exclusive.core`. The broker delivers the message of a dead worker again at once, as RabbitMQ does, and
workers acknowledge late. All messages that leave the line go through the broker.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Literal

from celery_exclusive.core.admission import Policy, admit
from celery_exclusive.core.claim import Claim, task_id, worker_mark, worker_number
from celery_exclusive.core.delivery import Delivery
from celery_exclusive.core.endings import run_ended
from celery_exclusive.core.operations import Acquire, Answer, Applied, Operation, Reap
from celery_exclusive.core.plan import Ask, run_plan
from celery_exclusive.core.records import SECOND, Document, Entry, Line, Part, reach
from celery_exclusive.core.room import Share
from celery_exclusive.core.step import step

TTL, OFFER, BODY, BEAT = 9, 5, 6, 3
"""The seconds of a lease, of a first offer, of a body, and between two renewals."""
KEYS, SHARED, TENANTS = ("A", "B"), "S", ("acme", "zeta")
"""Two keys, and one that two tenants share, who start in turn: `per="tenant"`."""


@dataclass(frozen=True, slots=True)
class Message:
    """One copy of the message of a call at the broker. The copy of an offer has the epoch of the store."""

    name: str
    redelivered: bool = False
    promoted: str | None = None

    @property
    def of(self) -> str:
        """The key of the call, or its tenant."""
        return self.name.rstrip("0123456789")

    @property
    def key(self) -> str:
        return self.of if self.of in KEYS else SHARED

    @property
    def tenant(self) -> str:
        return self.of if self.key == SHARED else ""


@dataclass(slots=True)
class Run:
    """A body that runs in the slot of a worker. `done`: its seconds of work until now."""

    message: Message
    delivery: Delivery
    claim: Claim
    fence: int
    beat_at: int
    done: int = 0

    @property
    def shown(self) -> tuple[str, int, int]:
        return self.message.name, self.done, self.fence


@dataclass(slots=True)
class Worker:
    """A worker with one slot. `epoch` is the epoch of the store as its heartbeat has read it."""

    number: int
    epoch: str
    state: Literal["up", "paused", "dead"] = "up"
    run: Run | None = None

    @property
    def name(self) -> str:
        return f"w{self.number}"


@dataclass(slots=True)
class Kept:
    """The data that the store keeps of a key. `due`: when a sweep must look at the key."""

    document: Document
    entries: dict[str, Entry] = field(default_factory=dict)
    tombstones: dict[str, str] = field(default_factory=dict)
    parts: dict[str, Part] = field(default_factory=dict)
    due: int | None = None

    def line(self, id: str) -> Line:
        """Return the part of the line that a step of the operation with this id reads."""
        entries = sorted(self.entries.values(), key=lambda entry: entry.turn)
        waiting = [entry for entry in entries if entry.state == "waiting"]
        aside = sorted((e for e in entries if e.state == "aside"), key=lambda e: (e.offer_until, e.id))
        own, count = self.entries.get(id), reach(self.document)
        return Line(
            waiting=len(waiting),
            head=tuple(waiting[:count]),
            aside=tuple(aside[:count]),
            behind=tuple(entry for entry in entries if entry.state == "behind"),
            entry=own,
            ahead=sum(entry.turn < own.turn for entry in waiting) if own else len(waiting),
            tombstone=self.tombstones.get(id),
            parts=tuple(self.parts.values()),
        )

    def shown(self, now: int) -> tuple[list[object], list[object]]:
        """Return the holders and the line, with the seconds that are left to each lease and offer."""
        leases = [(one, (one.expiry - now) / SECOND) for one in self.document.holders]
        line = sorted(self.entries.values(), key=lambda entry: (entry.state != "waiting", entry.turn))
        return (
            [(task_id(one.id), f"w{worker_number(one.token)}", one.fence, left) for one, left in leases],
            [(task_id(one.id), one.state, max(one.offer_until - now, 0) / SECOND) for one in line],
        )


class World:
    """The world of the page: `do` one command after another, and `view` what is there."""

    def __init__(self) -> None:
        self.second = 0
        self.lives = 1
        self.calls = dict.fromkeys((*KEYS, *TENANTS), 0)
        self.deliveries = 0
        self.queue: list[Message] = []
        self.store: dict[str, Kept] = {}
        self.workers = [Worker(number, self.epoch) for number in (1, 2, 3)]
        self.log: list[tuple[int, str]] = []

    @property
    def now(self) -> int:
        return self.second * SECOND

    @property
    def epoch(self) -> str:
        return f"life {self.lives}"

    def do(self, command: str) -> None:
        """Execute `send A`, `send acme`, `kill 1`, `pause 1`, `resume 1`, `start 1`, `lose`, `tick`."""
        verb, _, what = command.partition(" ")
        if verb == "send":
            self._send(what)
        elif verb == "lose":
            self._lose()
        elif verb == "tick":
            self._tick()
        else:
            self._change(verb, self.workers[int(what) - 1])

    def view(self) -> str:
        """Return all that the page shows, as JSON."""
        workers = [(one.name, one.state, one.run and one.run.shown) for one in self.workers]
        queue = [(one.name, bool(one.promoted), one.redelivered) for one in self.queue]
        keys = {key: (self.store.get(key) or Kept(Document())).shown(self.now) for key in (*KEYS, SHARED)}
        return json.dumps([self.second, queue, workers, keys, self.log])

    def _send(self, of: str) -> None:
        self.calls[of] += 1
        message = Message(f"{of}{self.calls[of]}")
        self.queue.append(message)
        self._say(f"{message.name} is called. Its message goes to the broker.")

    def _tick(self) -> None:
        self.second += 1
        running = [worker for worker in self.workers if worker.state == "up"]
        runs = [(worker, worker.run) for worker in running if worker.run]
        for worker in running:
            if self.queue and not worker.run:
                self._receive(worker, self.queue.pop(0))
        for worker, run in runs:
            self._work(worker, run)
        for key, kept in self.store.items():
            if running and kept.due is not None and kept.due <= self.now:  # one of the workers sweeps
                self._apply(key, Reap())

    def _receive(self, worker: Worker, message: Message) -> None:
        self.deliveries += 1
        id, token = f"{message.name}/1", f"{worker_mark(worker.number)}{self.deliveries:012x}"
        claim = Claim(message.key, id, token, TTL * SECOND, share=Share(part=message.tenant))
        delivery = Delivery(
            id=id, token=token, exclusive=claim, acks_late=True, redelivered=message.redelivered
        )
        if message.promoted:
            delivery = replace(delivery, promoted=message.promoted, offered=message.key)
        outcome = run_plan(admit(delivery, Policy()), self._ask)
        receives = f"{worker.name} receives {message.name}{' again' if delivery.may_be_in_line else ''}"
        if outcome.kind == "run":
            worker.run = Run(message, delivery, claim, outcome.fence, self.now + BEAT * SECOND)
            self._say(f"{receives} and acquires the lock of {claim.key} with fence {outcome.fence:,}.")
        elif outcome.kind == "wait" and outcome.position:
            (owner,) = outcome.by
            owns = "is offered to" if owner.phase == "offered" else "is held by"
            parks = f"{receives}: the lock {owns} {task_id(owner.id)}. The worker parks the call in line,"
            self._say(f"{parks} at position {outcome.position}, and its slot is free.")
        elif outcome.kind == "wait":
            self._say(
                f"{receives}. The lease of its last run has not expired, so it is parked behind that run."
            )
        else:
            self._say(f"{receives} and drops this copy: the call runs as another copy, or has finished.")

    def _work(self, worker: Worker, run: Run) -> None:
        if run.beat_at <= self.now and not self._beat(worker, run):
            self._say(
                f"{worker.name} finds its lease on {run.claim.key} (fence {run.fence:,}) lost. "
                f"lease.check() raises LeaseLost in the body of {run.message.name}, which stops."
            )
        elif run.done + 1 < BODY:
            run.done += 1
            return
        else:
            self._say(f"{run.message.name} ends, and {worker.name} releases the lock of {run.claim.key}.")
        worker.run = None
        for key, operation in run_ended(run.delivery, done=True, will_be_redelivered=False):
            self._apply(key, operation)

    def _beat(self, worker: Worker, run: Run) -> bool:
        """Renew the lease, or restore it if the store has lost its data. Return whether it is held."""
        run.beat_at = self.now + BEAT * SECOND
        lives = self._apply(run.claim.key, run.claim.renew()) == Applied(True)
        if worker.epoch != self.epoch:
            lives = self._apply(run.claim.key, run.claim.restore()) == Applied(True)
            if lives:
                self._say(f"{worker.name} sees that the store is another one, and restores its lease.")
        worker.epoch = self.epoch
        return lives

    def _change(self, verb: str, worker: Worker) -> None:
        if verb == "kill" and worker.state != "dead":
            self._kill(worker)
        elif verb == "pause" and worker.state == "up":
            worker.state = "paused"
            self._say(f"{worker.name} is paused. Its heartbeat stops, too.")
        elif (verb, worker.state) in (("resume", "paused"), ("start", "dead")):
            worker.state = "up"
            self._say(f"{worker.name} {'goes on' if verb == 'resume' else 'is started'}.")

    def _kill(self, worker: Worker) -> None:
        run, worker.run, worker.state = worker.run, None, "dead"
        text = f"{worker.name} is killed."
        if run:
            self.queue.insert(0, replace(run.message, redelivered=True))
            text += f" Its lease lasts for {TTL} s after its last renewal."
            text += f" The broker delivers {run.message.name} again."
        self._say(text)

    def _lose(self) -> None:
        lost = [task_id(id) for kept in self.store.values() for id in kept.entries]
        self.store = {}
        self.lives += 1
        self._say(f"The store loses its data, and with it the calls in line: {', '.join(lost) or 'none'}.")
        for worker in self.workers:
            if not worker.run:
                worker.epoch = self.epoch

    def _ask(self, ask: Ask) -> Answer:
        assert isinstance(ask.operation, Acquire)  # noqa: S101 - a lock alone needs no other operation
        return self._apply(ask.key, replace(ask.operation, message=b"" if ask.park else None))

    def _apply(self, key: str, operation: Operation) -> Answer:
        kept = self.store.setdefault(key, Kept(Document(epoch=self.epoch)))
        line, now = kept.line(operation.id), self.now
        transition = step(kept.document, line, operation, now, OFFER * SECOND)
        for lease in kept.document.holders:
            if lease.expiry <= now and lease.id not in [one.id for one in transition.document.holders]:
                self._say(f"The lease of {task_id(lease.id)} has expired: it was not renewed for {TTL} s.")
        kept.document, kept.due = transition.document, transition.due
        kept.entries |= {entry.id: entry for entry in transition.entries}
        kept.parts |= {part.name: part for part in transition.parts}
        kept.parts = {name: part for name, part in kept.parts.items() if not part.is_idle(now)}
        for id in transition.removed:
            kept.entries.pop(id, None)
        if transition.tombstone is not None:
            kept.tombstones[operation.id] = transition.tombstone
        for id in transition.wake:
            message = Message(task_id(id), promoted=self.epoch)
            self.queue.insert(0, message)
            offered = (kept.entries[id].offer_until - now) // SECOND
            offers = f"The store offers the lock of {key} to {message.name} for {offered} s."
            self._say(f"{offers} Its message goes to the head of the queue.")
        return transition.answer

    def _say(self, text: str) -> None:
        self.log.append((self.second, text))
