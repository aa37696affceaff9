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
from contextlib import ExitStack, closing

from tests.concurrent.client import Process
from tests.concurrent.play import play
from tests.concurrent.round import Round
from tests.concurrent.stage import Stage
from tests.concurrent.stages import STAGES
from tests.concurrent.verdict import Verdict, judge
from tests.servers import NoServer

CLIENTS = 6


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
    with ExitStack() as stack:
        processes = [stack.enter_context(closing(Process())) for _ in range(CLIENTS)]
        for name in options.store or STAGES:
            try:
                stage = stack.enter_context(STAGES[name]())
            except NoServer as why:
                print(f"{name:12} left out: {why}")
                continue
            with stage:
                until, number = time.monotonic() + options.seconds, 0
                while number < options.rounds if options.rounds else time.monotonic() < until:
                    if faults := one(
                        name, stage, [] if name == "memory" else processes, seed + number
                    ).faults:
                        print(*faults, sep="\n\n")
                        return 1
                    number += 1
    return 0


def one(name: str, stage: Stage, processes: list[Process], seed: int, calls: int = 200) -> Verdict:
    """Play a round, and print its line."""
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
        verdict = judge(play(plan, stage, processes, [troubles[it] for it in names]))
    print(
        f"{name:12} {seed:8} {verdict.calls:8} {verdict.unanswered:6} {verdict.states:8} "
        f"{verdict.undecided:9} {time.monotonic() - began:6.1f}  {', '.join(names)}",
        flush=True,
    )
    return verdict


if __name__ == "__main__":
    sys.exit(main())
