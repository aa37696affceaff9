"""One stress run: a broker, workers, a reaper, the trouble they get, and the verdict."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
from dataclasses import replace

from tests.stress.broker import Broker, Message
from tests.stress.journal import Journal, read
from tests.stress.nursery import Nursery
from tests.stress.plan import Plan
from tests.stress.verdict import Verdict, judge


def run(plan: Plan) -> Verdict:
    """Do what the plan says and judge it. Leaves no process and no file behind."""
    directory = tempfile.mkdtemp(prefix="stress-")
    try:
        if plan.url == "pickle:":
            plan = replace(plan, url=f"pickle://{directory}/store")
        if plan.url == "sqlite:":
            plan = replace(plan, url=f"sqlite:///{directory}/locks.db")
        return _Lab(replace(plan, directory=directory)).run()
    finally:
        shutil.rmtree(directory)


class _Lab:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.random = random.Random(plan.seed)
        self.store = plan.open_store()
        self.journal = Journal(plan.path("journal"))
        self.offset = 0
        self.tasks = {f"task {number}": plan.key(number) for number in range(plan.tasks)}
        self.todo = set(self.tasks)
        self.ids: dict[str, str] = {}
        self.inside: dict[str, int] = {}
        self.nursery = Nursery(plan)
        self.pids: dict[str, int] = {}
        self.paused: dict[int, float] = {}
        self.started = time.monotonic()

    def run(self) -> Verdict:
        plan = self.plan
        broker = Broker(
            str(plan.path("broker")),
            workers=plan.workers,
            seed=plan.seed,
            lost_acks=plan.lost_acks,
            visibility=plan.visibility,
        )
        for id in self.random.sample(sorted(self.tasks), plan.tasks):
            broker.publish(Message(id, self.tasks[id]))
        names = [f"worker {number}" for number in range(plan.workers)] + ["reaper"] * plan.reaper
        try:
            for name in names:
                self.start(name)
            faults = self.watch(broker)
        finally:
            self.resume(everybody=True)
            broker.close()
            faults_of_end = self.end()
        events, _ = read(plan.path("journal"))
        verdict = judge(events, self.tasks)
        verdict.seconds = time.monotonic() - self.started
        verdict.faults += faults + faults_of_end
        self.store.close()
        self.journal.close()
        return verdict

    def watch(self, broker: Broker) -> list[str]:
        """Wait until everything is done, and make trouble each time a further part of it is."""
        trouble = self.trouble()
        deadline = self.started + self.plan.deadline
        while time.monotonic() < deadline:
            self.resume()
            self.read()
            if trouble and len(self.tasks) - len(self.todo) >= trouble[0][0]:
                if not self.inside and self.todo:
                    time.sleep(0.001)
                    continue
                self.make(trouble.pop(0)[1])
                continue
            if broker.is_quiet() and not self.paused:
                self.read()
                if self.todo and not self.plan.reaper:
                    return ["the last wake-up was lost"]
                if not self.todo and not trouble:
                    left = self.left()
                    if not left:
                        return []
                    if not self.plan.reaper:
                        return [f"{left} were left in the store"]
            time.sleep(0.005)
        return [f"not done after {self.plan.deadline:.0f} s: {len(self.todo)} tasks, {self.left()}"]

    def left(self) -> list[str]:
        """The keys that have a holder or a line."""
        if self.store.capabilities.listing:
            return list(self.store.scan())
        return [key for key in set(self.tasks.values()) if self.store.inspect(key).holders]

    def trouble(self) -> list[tuple[int, str]]:
        """At how many finished tasks what is to happen."""
        plan = self.plan
        kinds = ["kill"] * plan.kills + ["pause"] * plan.pauses + ["kill reaper"] * (plan.kills // 5)
        self.random.shuffle(kinds)
        step = plan.tasks * 0.9 / max(len(kinds), 1)
        return [(round(number * step), kind) for number, kind in enumerate(kinds)]

    def make(self, kind: str) -> None:
        name = "reaper" if kind == "kill reaper" else self.victim()
        pid = self.pids[name]
        if kind == "pause":
            os.kill(pid, signal.SIGSTOP)
            self.paused[pid] = time.monotonic() + self.plan.pause
            self.journal.write("paused", data=pid)
        else:
            self.nursery.end(pid)
            self.paused.pop(pid, None)
            self.journal.write("killed", data=pid)
            self.start(name)

    def victim(self) -> str:
        """A worker that is not paused; twice of three times one that runs a task, as far as we know."""
        workers = {name: pid for name, pid in self.pids.items() if name != "reaper"}
        free = [name for name, pid in workers.items() if pid not in self.paused]
        busy = [name for name in free if workers[name] in self.inside.values()]
        if busy and self.random.random() < 0.67:
            return self.random.choice(busy)
        return self.random.choice(free or list(workers))

    def resume(self, *, everybody: bool = False) -> None:
        for pid, until in list(self.paused.items()):
            if everybody or until <= time.monotonic():
                os.kill(pid, signal.SIGCONT)
                del self.paused[pid]

    def read(self) -> None:
        events, self.offset = read(self.plan.path("journal"), self.offset)
        for event in events:
            if event.what == "attempt":
                self.ids[event.delivery] = event.data[0]
            elif event.what == "effect":
                self.todo.discard(self.ids[event.delivery])
            elif event.what == "lease":
                self.inside[event.delivery] = event.pid
            elif event.what == "left":
                self.inside.pop(event.delivery, None)

    def start(self, name: str) -> None:
        self.pids[name] = self.nursery.start(name.partition(" ")[0], str(self.random.random()))

    def end(self) -> list[str]:
        """The workers end when the broker has no more for them; the reaper is told."""
        faults = []
        for name, pid in self.pids.items():
            code = self.nursery.end(pid, seconds=0 if name == "reaper" else 20)
            if code != 0 and name != "reaper":
                faults.append(f"{name} ended with {code}")
        self.nursery.close()
        return faults
