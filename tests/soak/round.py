"""One round: a stack, tasks, calls and faults, drawn from a seed and played by real workers."""

from __future__ import annotations

import gc
import json
import math
import random
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.soak import declared, load
from tests.soak.faults import SLOTS, Staff
from tests.soak.record import Record
from tests.soak.stack import STACKS, TTL, VISIBILITY, Stack
from tests.worker.journal import Journal, eventually
from tests.worker.lab import Lab, command

_POOLS = ("prefork", "prefork", "prefork", "threads", "gevent", "solo")
SHORT: dict[str, Any] = {
    "seconds": 5,
    "calls": 50,
    "pools": ("prefork", "threads"),
    "faults": ("kill child", "revoke"),
}
_LONGEST = 300
"""Seconds in which all has to be quiet after the last call."""
_BUSY = ("holders", "waiting", "aside")


@dataclass(frozen=True)
class Round:
    """What a round is drawn from. `stack`: "" for a random one; `is_unlocked`: a control, without locks."""

    seed: int
    number: int
    stack: str = ""
    seconds: float = 60
    calls: int = 360
    pools: tuple[str, ...] = ()
    faults: tuple[str, ...] = ("kill", "kill child", "stall", "warm restart", "outage", "revoke", "force")
    is_unlocked: bool = False

    def play(self, folder: Path) -> Journal:
        """Play it; return the journal with all that happened."""
        chance = random.Random(f"{self.seed}.{self.number}")
        stack_name, pools = self.stack or chance.choice(STACKS), self.pools or chance.choices(_POOLS, k=3)
        tasks = declared.draw(chance)
        with ExitStack() as servers:
            stack = Stack(stack_name, folder, servers)
            conf = {"soak_tasks": tasks, "soak_is_unlocked": self.is_unlocked, **stack.conf}
            with Lab(stack.desk.url, folder, conf, "tests.soak.shop") as lab:
                facts = {"ttl": TTL, "visibility": VISIBILITY, "slots": SLOTS, "tasks": tasks}
                lab.journal.write("round", stack=stack_name, pools=pools, **facts)
                orders = load.draw(chance, tasks, self.seconds, self.calls)
                self._trouble(Staff(lab, stack, chance, pools), load.Load(lab, orders), chance)
                _settle(lab, stack)
                gc.collect()  # results that end later would look for their server
                return lab.journal

    def _trouble(self, staff: Staff, calls: load.Load, chance: random.Random) -> None:
        """Make all calls, and trouble meanwhile: of some kinds, often, seldom, or never."""
        every = chance.choice([0, 3, 6]) if self.faults else 0
        kinds = chance.sample(self.faults, k=chance.randint(1, len(self.faults))) if every else ()
        with calls:
            until = time.monotonic() + self.seconds
            while every and (left := until - time.monotonic()) > 0:
                time.sleep(min(left, chance.expovariate(1 / every)))
                staff.faults[chance.choice(kinds)]()


def _settle(lab: Lab, stack: Stack) -> None:
    """Wait until nothing is at the broker, in a body or in the store; tell what is left, and all results."""
    busy: list[Any] = []

    def is_quiet() -> bool:
        runs = Record(lab.journal.events()).runs.values()
        bodies = [run.begin for found in runs for run in found if math.isinf(run.until)]
        messages = stack.messages()
        busy[:] = [f"{messages} messages at the broker"] * bool(messages) or bodies or _left(lab)
        return not busy

    try:
        for _ in range(2):  # a message may be on its way from one to the other
            eventually(is_quiet, "quiet", _LONGEST)
            time.sleep(1)
    except AssertionError:
        lab.journal.write("left", busy=[*busy, *_left(lab)])
    for event in lab.journal.events("called"):
        for number, id in zip(event["numbers"], event.get("ids") or (), strict=bool(event.get("ids"))):
            meta = lab.app.backend.get_task_meta(id)
            value = f"{meta['result']!r}"[:200]
            lab.journal.write("result", number=number, id=id, state=meta["status"], value=value)


def _left(lab: Lab) -> list[Any]:
    """Return the keys that are held or waited for, as the command lists them."""
    done = command(lab, "locks", "ls", "--json")
    keys = [json.loads(line) for line in done.stdout.splitlines()]
    return [key for key in keys if key.get("state") != "period" and any(key.get(name) for name in _BUSY)]
