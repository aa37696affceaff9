"""Measure all rows of the table, or those that are named: `python -m bench publish noop`.

`calls`, `cluster`, `holders`, `idle`, `keys`, `parts`, `room`, `steps` and `stores` are no rows: they print
what other pages state.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from bench import (
    calls,
    capacity,
    cluster,
    group,
    holders,
    idle,
    keys,
    kill,
    makespan,
    memory,
    noop,
    pair,
    parts,
    publish,
    refuse,
    report,
    room,
    steps,
    stores,
)  # fmt: skip

ROWS = {
    "publish": publish.run,
    "refuse": refuse.run,
    "noop": noop.run,
    "mixed": makespan.mixed,
    "bursts": makespan.bursts,
    "pair": pair.run,
    "group": group.run,
    "memory": memory.run,
    "kill": kill.run,
    "capacity": capacity.run,
}
OF_OTHER_PAGES = {
    "calls": calls.run,
    "cluster": cluster.run,
    "holders": holders.run,
    "idle": idle.run,
    "keys": keys.run,
    "parts": parts.run,
    "room": room.run,
    "steps": steps.run,
    "stores": stores.run,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("rows", nargs="*", choices=[[], *ROWS, *OF_OTHER_PAGES], metavar="row")
    parser.add_argument("--into", type=Path, default=report.PAGES, help="where speed.json and speed.svg are")
    options = parser.parse_args()
    kept = report.Report(options.into, ROWS)
    for name in options.rows or ROWS:
        began = time.monotonic()
        if name in ROWS:
            kept.add(name, ROWS[name]())
        else:
            OF_OTHER_PAGES[name]()
        print(f"[{name}: {time.monotonic() - began:.0f} s]\n", flush=True)


if __name__ == "__main__":
    main()
