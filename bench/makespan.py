"""How long 2,000 tasks take that share 200 keys, of the least that their work and their longest key need."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from bench import peers, size
from bench.row import OURS, Figure, Row
from bench.tally import Spell, Tally, span
from bench.tasks import BARE_LOCK
from bench.worker import Worker
from tests.servers import RedisServer

TASKS, KEYS, SLOTS, SECONDS, ROUNDS = 2_000, 200, 8, 0.02, 3
ARRIVED = f"{OURS}, as they arrive"
AS_THEY_ARRIVE = 'the same with `order="arrived"`'
MAKESPAN, BLOCKED = "total time (least possible = 1)", "share of the slots that waited"
DISORDER = "starts before an earlier call of the same key"
NAMES = [OURS, ARRIVED, *peers.LOCKS]
FLOOR = "a bare lock in each body, and the longest key never waits for a slot"
HOPS, PASSES = 100, 500


class Outcome(NamedTuple):
    """The makespan of the least, the share of slots that waited, and starts before an earlier task's."""

    times: float
    blocked: float
    disorder: int


def mixed() -> list[Row]:
    return _rows("mixed", "2,000 tasks of 20 ms on 200 keys, 8 slots, mixed", 1.10, _keys())


def bursts() -> list[Row]:
    keys = _keys()
    by_key = [key for key in random.Random(17).sample(range(KEYS), KEYS) for _ in range(keys.count(key))]
    return _rows("bursts", "the 2,000 tasks, each key's in a burst", 1.20, by_key)


def _keys() -> list[int]:
    """Return the keys of the tasks, in the order of publishing, the same each time: by Zipf, with 1.1."""
    weights = [number**-1.1 for number in range(1, KEYS + 1)]
    return random.Random(16).choices(range(KEYS), weights, k=size.scaled(TASKS))


def _rows(name: str, what: str, goal: float, keys: list[int]) -> list[Row]:
    absent = peers.missing("python-redis-lock")
    with TemporaryDirectory() as folder, RedisServer() as server, ExitStack() as stack:
        teams = [_Team(name, server, folder, stack, len(keys)) for name in NAMES if name not in absent]
        outcomes: dict[str, list[Outcome]] = {team.name: [] for team in teams}
        for number in range(size.scaled(ROUNDS)):
            for team in teams:
                if team.name.startswith(OURS) or number == 0 or size.FULL:  # others take half a minute each
                    outcomes[team.name].append(team.outcome(keys))
        floors = _Floor(server, folder, stack).measure(keys)
    figures = {
        field: {who: Figure.of([getattr(one, field) for one in rounds]) for who, rounds in outcomes.items()}
        for field in Outcome._fields
    }
    figures["times"][FLOOR] = Figure.of(floors)
    return [
        row
        for ours, part, tasks in ((OURS, name, what), (ARRIVED, f"{name}-arrived", AS_THEY_ARRIVE))
        for row in (
            Row(part, f"{tasks}: {MAKESPAN}", "times", goal, figures["times"], FLOOR, ours, absent),
            Row(f"{part}-blocked", BLOCKED, "percent", 0, figures["blocked"], ours=ours),
            Row(f"{part}-order", DISORDER, "count", 0, figures["disorder"], ours=ours),
        )
    ]


class _Team:
    """A contender's worker."""

    def __init__(
        self, name: str, server: RedisServer, folder: str, stack: ExitStack, tasks: int, slots: int = SLOTS
    ) -> None:
        self.name = name
        self._tally = Tally(Path(folder, name), tasks)
        self._worker = stack.enter_context(
            Worker(name, server.url, folder, slots=slots, tally=self._tally.path)
        )
        self._numbers = count()

    def spells(self, keys: Sequence[int], seconds: float = SECONDS) -> list[Spell]:
        """Publish all, then let the worker begin."""
        queue = f"{self.name} {next(self._numbers)}"
        for number, key in enumerate(keys):
            self._worker.task.apply_async((f"{queue} {key}", number, seconds), queue=queue)
        self._tally.clear()
        self._worker.consume(queue)
        self._tally.wait_for_end(len(keys))
        return self._tally.spells()

    def outcome(self, keys: list[int]) -> Outcome:
        spells = self.spells(keys)
        makespan = max(spell.ended for spell in spells) - min(spell.taken for spell in spells)
        waited = sum(spell.begun - spell.taken for spell in spells)
        return Outcome(makespan / least(keys), waited / (SLOTS * makespan), disorder(keys, spells))


class _Floor:
    """Measures how soon a worker can come to the longest key, and how soon its next task can begin.

    Every message before it passes through the worker, as a bare task that does nothing. Then the tasks of the
    key follow each other as in a worker with one slot, which has the next message already.
    """

    def __init__(self, server: RedisServer, folder: str, stack: ExitStack) -> None:
        self._hops, self._passes = size.scaled(HOPS), size.scaled(PASSES)
        self._one = _Team(BARE_LOCK, server, folder, stack, self._hops, slots=1)
        self._bare = _Team("bare", server, folder, stack, self._passes)

    def measure(self, keys: list[int]) -> list[float]:
        """Return the makespan of the least, round by round."""
        longest, tasks = Counter(keys).most_common(1)[0]
        ahead = keys.index(longest)
        floors = []
        for _ in range(size.scaled(ROUNDS)):
            per_pass = span(self._bare.spells(range(self._passes), seconds=0)) / self._passes
            per_task = span(self._one.spells([0] * self._hops)) / self._hops
            floors.append(max((ahead * per_pass + tasks * per_task) / least(keys), 1))
        return floors


def least(keys: list[int]) -> float:
    """Seconds in which they could be done: all slots work, or the longest key is never idle."""
    return max(len(keys) / SLOTS, *Counter(keys).values()) * SECONDS


def disorder(keys: list[int], spells: list[Spell]) -> int:
    """Count the tasks that began after a task of their key that was published later."""
    latest: dict[int, int] = {}
    late = 0
    for number in sorted(range(len(keys)), key=lambda number: spells[number].begun):
        late += number < latest.get(keys[number], -1)
        latest[keys[number]] = max(number, latest.get(keys[number], -1))
    return late
