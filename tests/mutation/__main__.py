"""Change the code between Celery and the stores in one place at a time: which changes does no test see?

python -m tests.mutation --sample 200
python -m tests.mutation --rooms leases,local --lines FOLDER

First it notes which test passes which line, in workers too. Then each mutation meets the quickest tests that
pass its lines: those of the unit suite, and if all pass, some of the worker suite. What does not pass has to
pass without the mutation, or it is "flaky" and does not count. It works in copies.
"""

# ruff: noqa: T201 - this output is what it is for

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.mutation.copy import PACKAGE, REPOSITORY, Copy
from tests.mutation.mutants import Mutant, mutants
from tests.mutation.suites import SUITES, Passing

ROOMS = ("worker", "publishing", "messages", "leases", "local")
SURVIVES = ("passed", "no test")
SEEN = ("failed", "not collected", "timed out")


def main() -> None:
    options = _options()
    package = REPOSITORY / PACKAGE
    files = [path for room in options.rooms.split(",") for path in sorted((package / room).glob("*.py"))]
    found = [mutant for path in files for mutant in mutants(path, package)]
    print(f"{len(found)} mutations of {len(files)} files", flush=True)
    random.Random(options.seed).shuffle(found)
    found = found[: options.sample]
    verdicts = Counter[str]()
    with tempfile.TemporaryDirectory() as folder, options.into.open("w") as into:
        passing = _passing(options.lines or Path(folder), Path(folder))
        copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(options.processes):
            copies.put(Copy(Path(folder, f"copy-{number}")))

        def run(mutant: Mutant) -> str:
            copy = copies.get()
            try:
                return judge(mutant, copy, passing)
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(options.processes) as pool:
            for mutant, verdict in zip(found, pool.map(run, found), strict=True):
                verdicts[verdict] += 1
                into.write(json.dumps({"mutation": str(mutant), "verdict": verdict}) + "\n")
                into.flush()
                if not verdict.startswith(SEEN):
                    print(f"{verdict}: {mutant}", flush=True)
    seen = sum(count for verdict, count in verdicts.items() if verdict.startswith(SEEN))
    counted = seen + sum(verdicts[verdict] for verdict in SURVIVES)
    print(f"{seen} of {counted} mutations were seen: {dict(verdicts)}")


def judge(mutant: Mutant, copy: Copy, passing: dict[str, Passing]) -> str:
    """What the tests say of this mutation: "failed (unit)", "flaky (worker)", "passed", "no test" ..."""
    verdict = "no test"
    for suite in SUITES:
        tests = passing[suite.name].quickest(mutant, suite.most)
        if not tests:
            continue
        words = ("-x", *(test.id for test in tests))
        limit = 20 + 5 * sum(test.seconds for test in tests)
        with copy.changed(mutant):
            verdict = copy.test(*words, timeout=limit)
        if verdict != "passed":
            sound = copy.test(*words, timeout=limit) == "passed"
            return f"{verdict if sound else 'flaky'} ({suite.name})"
    return verdict


def _passing(kept: Path, scratch: Path) -> dict[str, Passing]:
    for suite in SUITES:
        if not (kept / suite.name).exists():
            print(f"noting the lines that {suite.folder} passes ...", flush=True)
            suite.note_lines(kept / suite.name, scratch)
    return {suite.name: Passing(kept / suite.name) for suite in SUITES}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rooms", default=",".join(ROOMS), help="folders of the package; default: %(default)s"
    )
    parser.add_argument("--sample", type=int, help="so many of the mutations; default: all")
    parser.add_argument("--seed", type=int, default=1, help="which of them; default: %(default)s")
    parser.add_argument("--lines", type=Path, help="the folder that keeps the lines for the same commit")
    parser.add_argument(
        "--into", type=Path, default=Path(os.devnull), help="a file for each verdict, as JSON"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="default: %(default)s")
    return parser.parse_args()


if __name__ == "__main__":
    main()
