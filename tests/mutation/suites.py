"""The tests that a mutation meets: the quickest ones that pass its lines."""

from __future__ import annotations

import shutil
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.copy import Copy
from tests.mutation.mutants import Mutant

_OTHER_STAGES = (
    *("postgres", "maria", "mysql", "sqlite", "memcached", "django", "cluster", "brokers", "rabbit", "sqs"),
    *("gevent", "eventlet", "threads", "solo", "pubsub", "one_call", "priorities", "misuse", "seams"),
)


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
        """Run all chosen tests, and note the lines that each passes."""
        copy = Copy(scratch / f"traced-{self.name}")
        found = copy.trace()
        copy.test("-p", "sitecustomize", "-m", "not large", "-k", self.chosen, self.folder)
        shutil.copytree(found, into)


SUITES = (Suite("tests/unit", 10), Suite("tests/worker", 60, f"not ({' or '.join(_OTHER_STAGES)})"))


class Passing:
    """The tests that pass each line, as a traced run has noted them in this folder."""

    def __init__(self, folder: Path) -> None:
        self._tests: defaultdict[str, set[Test]] = defaultdict(set)
        for file in folder.glob("[0-9]*"):
            *places, last = file.read_text().splitlines()
            word, _, rest = last.partition(" ")
            if word == "test":  # else it was killed
                seconds, _, id = rest.partition(" ")
                for place in places:
                    self._tests[place].add(Test(id, float(seconds)))

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
