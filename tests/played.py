"""The commands of a page, with the lines that the page shows, for tests that run them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, NamedTuple

DIGIT: Final = re.compile(r"\d")
ID: Final = re.compile(r"([0-9a-f]{8}-…)")
PRINTED: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
"""What is printed where the page shows such an ID."""


class Step(NamedTuple):
    """A command of the page, with the lines that it is shown to print."""

    command: str
    lines: list[str]


def steps_of(section: str) -> list[Step]:
    """Return the commands in the indented blocks of a section, each with its prompt."""
    steps = list[Step]()
    for line in re.findall(r"^    (.*)$", section, re.MULTILINE):
        if line.startswith(("$ ", ">>> ")):
            steps.append(Step(line, []))
        elif steps:
            steps[-1].lines.append(line)
    return steps


@dataclass
class Names:
    """The names and task ids (`17b1b7b3-…`) of the page, with what they are in this run.

    A word of a shown line in which `varies` finds something may be any word, and … is anything. The first
    time that a task id of the page is shown, it becomes a name of the id that is printed there.
    """

    given: dict[str, str] = field(default_factory=dict)
    varies: re.Pattern[str] = DIGIT

    def named(self, text: str) -> str:
        """Return a text of the page with the names of this run."""
        if not self.given:
            return text
        names = "|".join(map(re.escape, self.given))
        return re.sub(rf"(?<!\w)({names})(?!\w)", lambda name: self.given[name[0]], text)

    def missing(self, lines: list[str], printed: str) -> str | None:
        """Return the first of these lines that was not printed behind those before it."""
        rest = iter(printed.splitlines())
        return next((line for line in lines if not any(self._is(line, one) for one in rest)), None)

    def _is(self, line: str, printed: str) -> bool:
        new = [id for id in dict.fromkeys(ID.findall(line)) if id not in self.given]
        pattern = r"\s*" + r"\s+".join(self._word(word, new) for word in line.split())
        if found := re.match(pattern, printed):
            self.given |= {id: found[f"id{number}"] for number, id in enumerate(new)}
        return bool(found)

    def _word(self, word: str, new: list[str]) -> str:
        if word == "…":
            return ".*"
        parts = ID.split(word)
        if len(parts) > 1:
            parts[::2] = [re.escape(part) for part in parts[::2]]
            parts[1::2] = [self._id(id, new) for id in parts[1::2]]
            return "".join(parts)
        named = self.named(word)
        if named == word and self.varies.search(word):
            return r"\S+"
        return f"(?:{re.escape(word)}|{re.escape(named)})"  # KEY is a column, too

    def _id(self, id: str, new: list[str]) -> str:
        return self.given[id] if id in self.given else f"(?P<id{new.index(id)}>{PRINTED})"
