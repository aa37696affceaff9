"""Long runs, one line each.

    python -m tests.stress --store pickle: --mode storm --rounds 20 --factor 5
    python -m tests.stress --store redis --seed 17 --rounds 1

`--store redis` starts a server of its own; any URL that several processes can share will do.
"""

# ruff: noqa: T201 - this output is what it is for

from __future__ import annotations

import argparse
import random
import sys
from contextlib import ExitStack
from dataclasses import replace

from tests.servers import RedisServer
from tests.stress.plan import calm, storm
from tests.stress.run import run
from tests.stress.verdict import Verdict

MODES = {"calm": calm, "storm": storm}
COLUMNS = (
    "tasks parks stale kills pauses overlaps refused again lost twice seconds".split()  # noqa: SIM905 - a table's head
)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.stress",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=(Verdict.__doc__ or "") + "\nEnds with 1 at the first round with a fault.",
    )
    parser.add_argument(
        "--store", action="append", help="redis, pickle:, sqlite: or a URL; several times: in turns"
    )
    parser.add_argument("--mode", choices=MODES, action="append", help="both if not given")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--factor", type=float, default=1, help="so much more work and trouble than in the tests"
    )
    parser.add_argument("--workers", type=int, default=5)
    parser.add_argument("--seed", type=int, help="of the first round; the next ones count on")
    options = parser.parse_args()
    seed = random.randrange(10**6) if options.seed is None else options.seed
    print(f"{'store':6} {'mode':6} {'seed':>8}", *(f"{name:>8}" for name in COLUMNS))
    with ExitStack() as servers:
        stores = {
            name: servers.enter_context(RedisServer()).url if name == "redis" else name
            for name in options.store or ["redis"]
        }
        for number in range(options.rounds):
            for name, url in stores.items():
                for mode in options.mode or MODES:
                    plan = replace(MODES[mode](url).scaled(options.factor), workers=options.workers)
                    verdict = run(replace(plan, seed=seed + number, prefix=f"stress{number}{mode}"))
                    figures = [getattr(verdict, column) for column in COLUMNS]
                    print(
                        f"{name[:6]:6} {mode:6} {seed + number:8}",
                        *(f"{round(x):8}" for x in figures),
                        flush=True,
                    )
                    if verdict.faults:
                        print(*verdict.faults[:20], sep="\n")
                        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
