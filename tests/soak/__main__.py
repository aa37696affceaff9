"""A soak for a night: one line for each round, its findings, and a digest at the end.

    python -m tests.soak --hours 8
    python -m tests.soak --seed 17 --round 3    # that round once more

The judge reads the journal of the bodies. Journal and logs of a round with a finding stay in `.soak/`.
"""

# ruff: noqa: T201 - this output is what it is for

from __future__ import annotations

import argparse
import hashlib
import json
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.soak.judge import judge
from tests.soak.round import SHORT, Round
from tests.soak.stack import STACKS

_FAULTS = ("killed", "stalled", "restarted", "outage", "revoked", "forced")
_LONGEST = 1200
"""Seconds that a round may take."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hours", type=float, default=8)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument(
        "--stack", choices=STACKS, default="", help="of all rounds; else a random one for each"
    )
    parser.add_argument("--round", type=int, help="play this one alone")
    parser.add_argument(
        "--short", action="store_true", help="play that for some seconds, as `make test` does"
    )
    parser.add_argument("--unlocked", action="store_true", help="play it without exclusive=: a control")
    parser.add_argument("--out", type=Path, default=Path(".soak"))
    options = parser.parse_args()
    if options.round is None:
        return many(options)
    plan = Round(options.seed, options.round, options.stack, is_unlocked=options.unlocked)
    return one(replace(plan, **SHORT) if options.short else plan, options.out)


def many(options: argparse.Namespace) -> int:
    """Play rounds, each in a process of its own, until the time is over."""
    until, totals, digest = time.monotonic() + options.hours * 3600, Counter[str](), hashlib.sha256()
    words = ["--seed", f"{options.seed}", "--out", str(options.out)]
    words += ["--stack", options.stack] if options.stack else []
    with suppress(KeyboardInterrupt):  # a night may end early
        while time.monotonic() < until:
            totals["rounds"] += 1
            told, facts = apart([*words, "--round", f"{totals['rounds']}"])
            print(*words[:2], "--round", totals["rounds"], *(f"{name} {it}" for name, it in facts.items()))
            print("".join(f"{line}\n" for line in told), end="", flush=True)
            digest.update(facts.pop("sha256", "").encode())
            totals.update({name: it for name, it in facts.items() if isinstance(it, int)})
    sums = ", ".join(f"{totals[name]} {name}" for name in ("rounds", "calls", "bodies", "faults", "findings"))
    print(f"seed {options.seed}: {sums}, sha256 of the journals {digest.hexdigest()}")
    return int(bool(totals["findings"]))


def apart(words: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Play a round in a process of its own; return what it prints: its findings, and its figures."""
    command = [sys.executable, "-m", "tests.soak", *words]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=_LONGEST)
        *told, last = done.stdout.splitlines() or [""]
        return told, json.loads(last)
    except (subprocess.TimeoutExpired, ValueError) as error:
        return [f"the round did not come to its end: {error!r}"], {"findings": 1}


def one(plan: Round, out: Path) -> int:
    """Play and judge a round; print its findings, and its figures as JSON."""
    folder = out.absolute() / f"{plan.seed}-{plan.number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began = time.monotonic()
    with (folder / "said").open("w") as said, redirect_stdout(said), redirect_stderr(said):
        journal = plan.play(folder)
    findings = judge(journal.events())
    for finding in findings:
        print(f"{finding}\n    {journal.path}")
    counts = Counter(event["what"] for event in journal.events())
    facts = {
        "stack": journal.events("round")[0]["stack"],
        "calls": counts["calling"],
        "bodies": counts["begin"],
        "faults": sum(counts[name] for name in _FAULTS),
        "findings": len(findings),
        "seconds": f"{time.monotonic() - began:.0f}",
        "sha256": hashlib.sha256(journal.path.read_bytes()).hexdigest(),
    }
    print(json.dumps(facts))
    if not findings:
        shutil.rmtree(folder)
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
