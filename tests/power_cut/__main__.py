"""What a power cut costs: rows of docs/evidence/power-cut.md.

python -m tests.power_cut --rounds 30
python -m tests.power_cut --store redis --setting everysec
"""

# ruff: noqa: T201 - this output is what it is for

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from tests.power_cut.disk import Disk
from tests.power_cut.play import play
from tests.power_cut.stages import STAGES
from tests.power_cut.verdict import KINDS, Verdict
from tests.servers import NoServer

LONGEST = 3.0
HEAD = (
    "| store | setting | cuts | answers | cuts with a loss | lost in a cut: median, most | oldest lost, ms: "
    "median, most | leases | queued calls | waiting calls | ended runs | may overlap | noticed | damaged |"
)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.power_cut",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--store", action="append", choices=STAGES)
    parser.add_argument("--setting", action="append")
    parser.add_argument("--rounds", type=int, default=30, help="of each setting")
    options = parser.parse_args()
    print(HEAD, "|---" * HEAD.count(" | ") + "|---|", sep="\n", flush=True)
    is_wrong = False
    try:
        with Disk() as disk, tempfile.TemporaryDirectory() as folder:
            for store in options.store or STAGES:
                make, settings = STAGES[store]
                for setting in options.setting or settings:
                    with make(disk, setting) as stage:
                        verdicts = [
                            play(disk, stage, Path(folder, "journal"), lasts=random.uniform(0.1, LONGEST))
                            for _ in range(options.rounds)
                        ]
                    print(row(store, setting, verdicts), flush=True)
                    is_wrong |= settings[setting] and any(it.lost or it.damage for it in verdicts)
    except NoServer as why:
        print(why)
        return 1
    return int(is_wrong)


def row(store: str, setting: str, verdicts: Sequence[Verdict]) -> str:
    lost = [verdict.lost.total() for verdict in verdicts]
    oldest = [1000 * verdict.oldest for verdict in verdicts]
    lossy = [verdict for verdict in verdicts if verdict.lost]
    lives = any(verdict.notices for verdict in verdicts)
    noticed = sum(bool(verdict.notices.get("noticed")) for verdict in lossy)
    cells = [
        *(store, setting, len(verdicts), sum(verdict.answered for verdict in verdicts), len(lossy)),
        *(f"{median(lost):g}, {max(lost)}", f"{median(oldest):.0f}, {max(oldest):.0f}"),
        *(sum(verdict.lost[kind] for verdict in verdicts) for kind in KINDS),
        *((sum(it.overlaps for it in verdicts), f"{noticed} of {len(lossy)}") if lives else ("-", "-")),
        sum(bool(verdict.damage) for verdict in verdicts),
    ]
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    sys.exit(main())
