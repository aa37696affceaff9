"""Rounds of concurrent histories, one line each.

python -m tests.concurrent --seconds 60
python -m tests.concurrent --store redis --seed 17 --rounds 1
"""

# ruff: noqa: T201 - this output is what it is for

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from tests.concurrent.calls import write
from tests.concurrent.client import Process
from tests.concurrent.play import play
from tests.concurrent.round import KEYS, Round
from tests.concurrent.stage import Stage
from tests.concurrent.stages import STAGES
from tests.concurrent.verdict import Verdict, judge
from tests.servers import NoServer

CLIENTS = 6
UNDECIDED = 0.05
"""The largest share of keys whose search may take too long. Such a key has shown nothing."""

FAULTS = Path(".histories")
"""Keeps the calls of each round with a fault, as its searches have read them."""

OFTEN = 3
"""Rounds in one of which a trouble has to meet a call. All troubles of a run together always have to."""


class Run:
    """What the rounds of a run have come to. `left_out`: stores whose server is not installed."""

    def __init__(self) -> None:
        self.keys = self.undecided = 0
        self.faults: list[str] = []
        self.left_out: list[str] = []
        self.met: dict[str, list[int]] = {}

    def add(self, store: str, troubles: Sequence[str], met: Sequence[int], verdict: Verdict) -> None:
        self.keys += len(KEYS)
        self.undecided += verdict.undecided
        self.faults += verdict.faults
        for trouble, calls in zip(troubles, met, strict=True):
            self.met.setdefault(f"{store}: {trouble}", []).append(calls)

    def problems(self, named: Collection[str]) -> Iterator[str]:
        """Yield what makes the run fail. `named`: the stores that were asked for."""
        yield from self.faults
        if missing := sorted({*self.left_out} & {*named}):
            yield f"not installed: {', '.join(missing)}"
        if not self.keys:
            yield "no store could be tested"
        if self.undecided > UNDECIDED * self.keys:
            yield f"{self.undecided} of {self.keys} keys are undecided, and at most {UNDECIDED:.0%} may be"
        unmet = [name for name, calls in self.met.items() if not any(calls)]
        if names := [name for name in unmet if len(self.met[name]) >= OFTEN or len(unmet) == len(self.met)]:
            yield f"no call met this trouble: {', '.join(names)}"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.concurrent",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--store", action="append", choices=STAGES, help="several times: one after the other")
    parser.add_argument("--seconds", type=float, default=60, help="for each store")
    parser.add_argument("--rounds", type=int, help="for each store, however long they take")
    parser.add_argument("--seed", type=int, help="of the first round; the next ones count on")
    options = parser.parse_args()
    seed = random.randrange(10**6) if options.seed is None else options.seed
    print(
        f"{'store':12} {'seed':>8} {'calls':>8} {'open':>6} {'states':>8} {'undecided':>9} {'s':>6}  trouble"
    )
    run = Run()
    with ExitStack() as stack:
        processes = [stack.enter_context(closing(Process())) for _ in range(CLIENTS)]
        for name in options.store or STAGES:
            try:
                stage = stack.enter_context(STAGES[name]())
            except NoServer as why:
                print(f"{name:12} left out: {why}")
                run.left_out.append(name)
                continue
            with stage:
                until, number = time.monotonic() + options.seconds, 0
                while number < options.rounds if options.rounds else time.monotonic() < until:
                    one(run, name, stage, [] if name == "memory" else processes, seed + number)
                    number += 1
                    if run.faults:
                        break
            if run.faults:
                break
    if run.left_out:
        print(f"left out, as their servers are not installed: {', '.join(run.left_out)}")
    problems = [*run.problems(options.store or ())]
    print(*problems, sep="\n\n")
    return int(bool(problems))


def one(run: Run, name: str, stage: Stage, processes: list[Process], seed: int, calls: int = 200) -> None:
    """Play a round, and print its line: behind each trouble the number of calls that it met."""
    began = time.monotonic()
    chance = random.Random(seed)
    troubles = stage.troubles()
    names = chance.sample(sorted(troubles), min(len(troubles), stage.troubles_at_once))
    with tempfile.TemporaryDirectory(prefix="concurrent-") as folder:
        plan = Round(
            url=stage.url,
            directory=folder,
            prefix=f"c{seed}",
            seed=seed,
            calls=calls,
            is_timed=bool(seed % 2),
            has_line=stage.has_line,
            pushes=stage.pushes,
            patience=stage.patience,
        )
        searches = play(plan, stage, processes, [troubles[it] for it in names])
    verdict = judge(searches)
    if verdict.faults:
        FAULTS.mkdir(exist_ok=True)
        write(FAULTS / f"{name}-{seed}.calls", [call for it in searches.values() for call in it.calls])
    print(
        f"{name:12} {seed:8} {verdict.calls:8} {verdict.unanswered:6} {verdict.states:8} "
        f"{verdict.undecided:9} {time.monotonic() - began:6.1f}  "
        f"{', '.join(f'{trouble} {met}' for trouble, met in zip(names, stage.met, strict=True))}",
        flush=True,
    )
    run.add(name, names, stage.met, verdict)


if __name__ == "__main__":
    sys.exit(main())
