"""A lane: a broker and a store with two workers and a publisher, on which one case follows the other.

One worker is the victim, the other one survives. When the victim dies, the survivor is the next victim, and a
new worker is the next survivor. So a case costs the start of one worker at most.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from celery_exclusive.core.claim import task_id
from tests.worker.crashes.points import Point
from tests.worker.crashes.seam import Plan, end_claims
from tests.worker.crashes.servers import Lease, Servers
from tests.worker.journal import Event, Journal
from tests.worker.lab import Lab, Worker, start

SHOP = "tests.worker.shop_crashes"
DEADLINE = 60
"""Seconds. All that a case waits for takes a few times a lease's ttl at most: what takes longer is stuck."""

QUIET = 10
"""So many looks in a row see nothing left, and no further request: a message may be between two places."""


@dataclass
class Call:
    """A call that the publisher made. One that died before it had an answer was made again: `tries`.

    `members`: the tasks of a chord whose body has this id.
    """

    name: str
    key: str
    tag: str
    tries: int = 0
    id: str = ""
    outcome: str = ""
    members: Sequence[str] = ()


@dataclass(frozen=True)
class Staff:
    """A worker, and the queue that it alone consumes while all live."""

    worker: Worker
    place: str
    queue: str

    @property
    def name(self) -> str:
        return self.worker.name.partition("@")[0]


class Lane:
    """See the module.

    lane.begin(Point("main", 3, "before", "worker"))
    lane.arm()
    lane.call("alone", "k", "a")
    lane.eventually(lambda: lane.journal.events("end", tag="a"), "the end of a")
    lane.finish()
    """

    def __init__(self, lab: Lab, prefix: str) -> None:
        self.lab, self.journal, self._prefix = lab, lab.journal, prefix
        self._ttl = float(lab.conf["exclusive_ttl"])
        self.record = Journal(lab.folder / "record")
        self._plan, self._sweepers = lab.folder / "plan", lab.folder / "plan.sweepers"
        self._names, self._cases, self._asks = count(1), count(1), count(1)
        self.point, self.calls, self.case = Point(), list[Call](), ""
        self.in_line, self.popped, self.at_broker = set[str](), set[str](), set[str]()
        self.renewed, self._unacknowledged = set[str](), set[bytes]()
        self._dead = dict[Lease, int]()
        self._is_attended, self._resumes_at, self._redelivers_at = False, 0.0, 0.0
        self._adopted: list[tuple[Staff, str]] = []
        self._queues: dict[str, str] = {}
        self.servers = Servers(lab)
        self.survivor, self.victim = self.start_worker("left"), self.start_worker("right")
        self._publisher = self._start_publisher()

    # A case

    def begin(self, point: Point) -> None:
        """Begin a case, with nothing on the record."""
        self.case, self.point = f"case-{next(self._cases)}", point
        told = self.in_line, self.popped, self.at_broker, self.renewed, self._dead, self._unacknowledged
        for noted in (self.calls, *told):
            noted.clear()
        self._is_attended, self._resumes_at, self._redelivers_at = False, 0.0, 0.0
        for journal in (self.journal, self.record):
            journal.clear()

    def arm(self) -> None:
        """Begin to count requests. At its point the victim, or the publisher, ends."""
        point = self.point
        names = [self.victim.name, "publisher"]
        Plan(self.case, names, point.role, point.number, point.moment, point.how).write(self._plan)

    def disarm(self) -> None:
        """Count no further: the scenario is over."""
        self._plan.unlink(missing_ok=True)

    def let_sweep(self, *staff: Staff) -> None:
        """Let only the reapers of these workers sweep, until the victim ends."""
        if not self.end:
            self._sweepers.write_text(" ".join(each.name for each in staff))

    def call(
        self, name: str, key: str, tag: str, *, to: Staff | None = None, id: str | None = None, **kwargs: Any
    ) -> Call:
        """Let the publisher make a call; one whose publisher dies before it returns is made again."""
        call = Call(name, key, tag)
        self.calls.append(call)
        options = {"queue": (to or self.victim).queue, "task_id": id}
        answer: dict[str, Any] | None = None
        while answer is None:
            call.tries += 1
            answer = self._ask(name, [key, tag], kwargs, options)
        call.id, call.outcome, call.members = answer["id"], answer["outcome"], answer["members"]
        return call

    def _ask(self, *call: Any) -> dict[str, Any] | None:
        """Return the answer of the publisher; None if it died before."""
        number = f"{self.case}.{next(self._asks)}"
        self.lab.doors.rpush("asks:publisher", json.dumps([number, *call]))
        found: list[bytes] = []

        def is_over() -> bool:
            if answer := self.lab.doors.lpop(f"answers:{number}"):
                found.append(answer)
            return bool(found) or self._publisher.poll() is not None

        self.eventually(is_over, f"the return of {call}")
        if found:
            return dict(json.loads(found[0]))
        self.lab.doors.delete("asks:publisher")
        self._publisher = self._start_publisher()
        return None

    def open(self, key: str) -> None:
        """Let all bodies of a key end that are held."""
        self.lab.open(*[key] * 9)

    def eventually(self, look: Callable[[], Any], what: str) -> Any:
        """Wait for something, while what ends is attended to."""
        deadline = time.monotonic() + DEADLINE
        while True:
            self.attend()
            if seen := look():
                return seen
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {DEADLINE:g} s in vain for {what}")
            time.sleep(0.02)

    def wait_for(self, what: str, tag: str) -> None:
        """Wait for this event, or until the victim has ended: then the event may never be."""
        self.eventually(lambda: self.journal.events(what, tag=tag) or self.end, f"the {what} of {tag}")

    def wait_until_in_line(self, count: int, name: str, key: str) -> None:
        """Wait until so many wait for a key, or until the victim has ended."""
        self.eventually(lambda: self.state(name, key).waiting == count or self.end, f"{count} in line")

    def state(self, name: str, key: str) -> Any:
        return self.lab.task(name).lock_state(key)

    # The end of a process

    @property
    def end(self) -> Event | None:
        """The end of the victim, or of the publisher, when it has come to its point."""
        events = self.record.events("end of process") if self.point.role else []
        return events[0] if events else None

    def is_gone(self, pid: int) -> bool:
        """Whether this process of a worker was killed in this case, or stood still."""
        if self.killed_at(pid):
            return True
        end = self.end
        if not end or end["role"] == "publisher":
            return False
        return bool(pid == end["pid"] if end["how"] == "child" else pid not in self.survivor.worker.children)

    def killed_at(self, pid: int) -> int | None:
        """Return the instant at which `kill` ended a worker with this process."""
        killed = (event["at"] for event in self.record.events("killed") if pid in event["pids"])
        return next(killed, None)

    def attend(self) -> None:
        """Let the survivor go on with the work of a victim that has ended; resume what stands still.

        The visibility timeout of a Redis broker is over at once, as with RabbitMQ, at the points with even
        numbers, at the others when the lease has expired.
        """
        if not self._is_attended and (end := self.end):
            self._is_attended = True
            self._attend(end)
        self._note_renewals()
        if self._resumes_at and time.monotonic() > self._resumes_at:
            self.resume()
        if self._redelivers_at and time.monotonic() > self._redelivers_at:
            self._redelivers_at = 0.0
            self.servers.redeliver(self._unacknowledged)

    def _attend(self, end: Event) -> None:
        self._sweepers.unlink(missing_ok=True)
        if end["how"] == "worker":
            self.victim.worker.kill()
        self.in_line.update(self.servers.in_line())
        now = time.monotonic()
        if end["how"] == "pause":
            self._resumes_at = now + self._ttl + 1
        if end["role"] == "publisher" or end["how"] == "child":
            return
        queues = self.victim.queue, *self._adopted_by(self.victim)
        self._unacknowledged.update(self.servers.unacknowledged(queues))
        if end["how"] == "worker":
            self._note_what_is_left(queues)
            end_claims(self.lab.doors)
        self._redelivers_at = now + (end["number"] % 2) * (self._ttl + 1.5)
        for queue in queues:
            self.adopt(self.survivor, queue)

    def _note_what_is_left(self, queues: Sequence[str]) -> None:
        """Note the messages of the dead victim, and the leases of runs that the survivor has not begun."""
        self.at_broker.update(self.servers.ids_of(queues))
        self.popped.update(self._popped(queues) - self.at_broker)
        alive = self.survivor.worker.children
        begun = {event["id"] for event in self.journal.events("start") if event["pid"] in alive}
        leases = self.servers.leases()
        self._dead.update((lease, left) for lease, left in leases if task_id(lease[1]) not in begun)

    def _popped(self, queues: Sequence[str]) -> set[str]:
        """Return the ids of messages that the broker had given to the dead victim, which had not noted them.

        Redis forgets a message as soon as it has sent it to a worker, and kombu notes then that it is
        unacknowledged: plain Celery loses what is in between.
        """
        told = [event for event in self.record.events("request", moment="after") if "tag" in event]
        noted = {event["tag"] for event in told if "HSET" in event["label"]}
        return {event["id"] for event in told if event.get("to") in queues and event["tag"] not in noted}

    def _note_renewals(self) -> None:
        """Note the leases of dead runs that somebody has renewed: they would never end."""
        for lease, remaining in self.servers.leases({key for key, _, _ in self._dead}):
            if remaining > self._dead.get(lease, remaining):
                self.renewed.add(lease[0])

    def resume(self) -> None:
        self._resumes_at = 0.0
        pid = self._publisher.pid if self.point.role == "publisher" else self.victim.worker.pid
        os.killpg(pid, signal.SIGCONT)

    def kill(self, doomed: Staff) -> None:
        """Kill a worker that is not the victim."""
        self.record.write("killed", pids=doomed.worker.children)
        doomed.worker.kill()
        self._unacknowledged.update(self.servers.unacknowledged([doomed.queue]))
        self._redelivers_at = time.monotonic() + self._ttl + 1.5

    def adopt(self, worker: Staff, queue: str) -> None:
        """Let a worker consume the queue of another one, too."""
        self._tell(worker, "add_consumer", queue)
        self._adopted.append((worker, queue))

    def _adopted_by(self, worker: Staff) -> list[str]:
        return [queue for adopter, queue in self._adopted if adopter is worker]

    def _tell(self, worker: Staff, verb: str, queue: str) -> None:
        command, name = getattr(self.lab.app.control, verb), worker.worker.name
        while not command(queue, destination=[name], reply=True, timeout=5, limit=1):
            pass

    @property
    def is_complete(self) -> bool:
        """Whether nothing stands still, or is still to be redelivered, or has died unnoticed."""
        end = self.end
        is_unnoticed = end and end["how"] == "child" and end["pid"] in self.victim.worker.children
        return not (self._resumes_at or self._redelivers_at or is_unnoticed)

    def settle(self) -> None:
        """Wait until nothing is at the broker, in the store or with a worker, and no process goes on.

        A worker learns of a child's death within 5 s, and RabbitMQ does not tell what it waits for.
        """
        seen: list[object] = []

        def is_quiet() -> bool:
            if not self.is_complete or self.servers.left(self._queues.values()):
                seen.clear()
                return False
            seen.append(self._requests())
            return seen[-QUIET:] == [seen[-1]] * QUIET and not self._with_workers()

        self.eventually(is_quiet, "an empty broker and a free key")

    def _with_workers(self) -> list[str]:
        """Return the ids of the tasks that a worker has got, and whose end it has not seen."""
        alive = [it.worker for it in (self.victim, self.survivor) if it.worker.process.poll() is None]
        inspect = self.lab.app.control.inspect([worker.name for worker in alive], timeout=5)
        answers = [look() or {} for look in (inspect.active, inspect.reserved)]
        return [task["id"] for answer in answers for tasks in answer.values() for task in tasks]

    def _requests(self) -> int:
        """Return how many requests were made for tasks."""
        events = self.record.events("request")
        return sum(event["role"] not in ("heartbeat", "reaper") for event in events)

    def finish(self) -> None:
        """Make the lane ready for the next case."""
        for mark in self.lab.folder.glob("plan.*"):
            mark.unlink()
        for worker, queue in self._adopted:
            if worker.worker.process.poll() is None:
                self._tell(worker, "cancel_consumer", queue)
        self._adopted.clear()
        if self.victim.worker.process.poll() is not None:
            self.victim, self.survivor = self.survivor, self.start_worker(self.victim.place)

    def story(self) -> str:
        """What has happened in this case, for people."""
        requests = [
            event
            for event in self.record.events()
            if event.get("moment") != "after" and event.get("role") not in ("heartbeat", "reaper")
        ]
        lines = sorted([*requests, *self.journal.events()], key=lambda event: event["at"])
        logs = [staff.worker.digest for staff in (self.victim, self.survivor)]
        return "\n".join(
            [*map(_line, lines), *map(str, self.calls), *self.servers.left(self._queues.values()), *logs]
        )

    # Processes

    def start_worker(self, place: str) -> Staff:
        """Start a worker that consumes the queue of this place."""
        name = f"{self._prefix}-{next(self._names)}"
        queue = self._queues.setdefault(place, f"{self._prefix}-{place}")
        options = ("-Q", queue, "--without-heartbeat")
        return Staff(self.lab.start_worker(name, 2, options=options, **self._seam(name)), place, queue)

    def _start_publisher(self) -> Any:
        conf = {**self.lab.conf, **self._seam("publisher")}
        environment = {**self.lab.environment, "LAB_CONF": json.dumps(conf)}
        log = self.lab.folder / "publisher.log"
        return start([], environment, self.lab.folder, log, module="tests.worker.crashes.publisher")

    def close(self) -> None:
        """End all processes."""
        self.servers.close()
        self._publisher.send_signal(signal.SIGKILL)
        self._publisher.wait(60)
        for staff in (self.victim, self.survivor):
            staff.worker.kill()

    def _seam(self, name: str) -> dict[str, str]:
        return {"crash_name": name, "crash_plan": str(self._plan), "crash_record": str(self.record.path)}


def _line(event: Event) -> str:
    details = [str(value) for name, value in event.items() if name not in ("at", "what", "case", "key")]
    return f"{event['at'] / 1e9:.6f} {event['what']}: {' '.join(details)}"
