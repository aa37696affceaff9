"""What befalls the workers and servers of a round; the journal is told each of these facts."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from subprocess import TimeoutExpired

from tests.soak.stack import TTL, Stack
from tests.worker.lab import Lab, Worker, command

SLOTS = 2


class Staff:
    """The workers of a round, and those who trouble them."""

    def __init__(self, lab: Lab, stack: Stack, chance: random.Random, pools: Sequence[str]) -> None:
        self._lab, self._stack, self._chance, self._pools = lab, stack, chance, pools
        self._workers = [self._start(number) for number in range(len(pools))]
        self.faults: dict[str, Callable[[], None]] = {
            "kill": self._kill,
            "kill child": self._kill_child,
            "stall": self._stall,
            "warm restart": self._restart,
            "outage": self._outage,
            "revoke": self._revoke,
            "force": self._force,
        }

    def _start(self, number: int) -> Worker:
        pool = self._pools[number]
        return self._lab.start_worker(
            f"w{number}-{time.monotonic_ns()}", 1 if pool == "solo" else SLOTS, pool=pool
        )

    def _kill(self) -> None:
        number = self._chance.randrange(len(self._workers))
        worker = self._workers[number]
        since, pids = time.monotonic_ns(), [worker.pid, *worker.children]
        worker.kill()
        self._lab.journal.write("killed", since=since, pids=pids, slots=SLOTS)
        self._workers[number] = self._start(number)

    def _kill_child(self) -> None:
        children = [pid for it in self._workers if it.pool == "prefork" for pid in it.children]
        if not children:
            return
        at_work = [event["pid"] for event in self._lab.journal.events("begin") if event["pid"] in children]
        pid = at_work[-1] if at_work else self._chance.choice(children)
        since = time.monotonic_ns()
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self._lab.journal.write("killed", since=since, pids=[pid], slots=1)

    def _stall(self) -> None:
        worker = self._chance.choice(self._workers)
        since, pids = time.monotonic_ns(), [worker.pid, *worker.children]
        worker.pause()
        time.sleep(self._chance.choice([0.5, 2, TTL * 1.5]))
        worker.resume()
        self._lab.journal.write("stalled", since=since, pids=pids)

    def _restart(self) -> None:
        number = self._chance.randrange(len(self._workers))
        worker = self._workers[number]
        since, pids, what = time.monotonic_ns(), [worker.pid, *worker.children], "restarted"
        try:
            worker.stop(90)
        except TimeoutExpired:  # plain Celery's gevent worker may not stop if its RabbitMQ has restarted
            worker.kill()
            what = "killed"
        self._lab.journal.write(what, since=since, pids=pids, slots=SLOTS)
        self._workers[number] = self._start(number)

    def _outage(self) -> None:
        outages = self._stack.outages()
        name = self._chance.choice([*outages])
        since = time.monotonic_ns()
        outages[name]()
        self._lab.journal.write("outage", since=since, servers=name)

    def _revoke(self) -> None:
        called = self._lab.journal.events("called")  # one that was skipped has the id of another
        if sent := [it for it in called if it.get("ids") and it["outcome"] in (None, "published")]:
            event = self._chance.choice(sent[-20:])
            self._lab.journal.write("revoked", numbers=event["numbers"])
            self._lab.app.control.revoke(event["ids"][0])

    def _force(self) -> None:
        """Release the lock of a body that is open, as an operator would."""
        over = {event["run"] for event in self._lab.journal.events("end")}
        running = [event for event in self._lab.journal.events("begin") if event["run"] not in over]
        locks = [it for it in running if getattr(self._lab.task(it["task"]), "exclusive", None)]
        if locks:
            event = self._chance.choice(locks)
            task = self._lab.task(event["task"])
            key = task.lock_state(event["number"], event["key"], event["part"], event["cost"], 0, "").key
            since = time.monotonic_ns()
            command(self._lab, "locks", "release", key, "--force", "--reason", "soak", "--yes")
            self._lab.journal.write("forced", since=since, task=event["task"], key=event["key"])
