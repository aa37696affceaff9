"""The tests that a mutation meets: the quickest ones that pass its lines."""

from __future__ import annotations

import shutil
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.copy import Copy
from tests.mutation.mutants import Mutant

_OTHER_STAGES = (
    *("postgres", "maria", "mysql", "sqlite", "memcached", "django", "cluster", "brokers", "rabbit", "sqs"),
    *("gevent", "eventlet", "threads", "solo", "pubsub", "one_call", "priorities", "misuse", "seams"),
    *("crashes", "releases", "frozen"),
)
SHARES = 6
"""Copies that note lines at one time: tests of workers mostly wait."""


@dataclass(frozen=True)
class Test:
    """A test, and how long it took with its lines noted."""

    id: str
    seconds: float


@dataclass(frozen=True)
class Suite:
    """A folder of tests, those that are chosen of it, and the seconds of tests for each mutation."""

    folder: str
    most: float
    chosen: str = ""

    @property
    def name(self) -> str:
        return Path(self.folder).name

    def note_lines(self, into: Path, scratch: Path) -> None:
        """Run all chosen tests, a share in each copy, and note the lines that each passes."""

        def note(share: int) -> Path:
            copy = Copy(scratch / f"traced-{self.name}-{share}")
            found = copy.trace()
            words = ("-p", "sitecustomize", "-m", "not large", "-k", self.chosen, self.folder)
            verdict = copy.test(*words, LINES_SHARE=f"{share} of {SHARES}")
            if verdict not in ("passed", "failed"):
                raise RuntimeError(f"the lines of {self.folder} are unknown: its tests were {verdict!r}")
            return found

        with ThreadPoolExecutor(SHARES) as pool:
            folders = list(pool.map(note, range(SHARES)))
        into.mkdir(parents=True)  # not before: what is there is whole
        for share, folder in enumerate(folders):
            for file in folder.glob("[0-9]*"):
                shutil.copy(file, into / f"{file.name}-{share}")


SUITES = (Suite("tests/unit", 10), Suite("tests/worker", 60, f"not ({' or '.join(_OTHER_STAGES)})"))


class Passing:
    """The tests that pass each line, as a traced run has noted them in this folder."""

    def __init__(self, folder: Path) -> None:
        self._tests: defaultdict[str, set[Test]] = defaultdict(set)
        for file in folder.glob("[0-9]*"):
            lines = file.read_text().splitlines()
            ends = [line.split(" ", 2) for line in lines if line.startswith("test ")]
            for _, seconds, id in ends:  # none if the process of the tests was killed
                for line in lines:
                    self._tests[line].add(Test(id, float(seconds)))

    def quickest(self, mutant: Mutant, most: float) -> list[Test]:
        """The quickest tests that pass the lines of this mutation: one, and others for so many seconds."""
        tests = {test for line in mutant.lines for test in self._tests.get(f"{mutant.path}:{line}", ())}
        found, seconds = list[Test](), 0.0
        for test in sorted(tests, key=lambda test: (test.seconds, test.id)):
            seconds += test.seconds
            if found and seconds > most:
                break
            found.append(test)
        return found
