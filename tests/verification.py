"""Write docs/verification.md from the promises that the tests declare: `python -m tests.verification`.

A promise stands at the test that proves it, the other tests of the same promise name it:

    @pytest.mark.promise("The fence of a key only grows", name="fence grows", broke="it stands still")
    def test_the_fence_grows_over_releases_on_every_key(): ...

    @pytest.mark.proves("fence grows")
    def test_a_restart_without_data_is_another_epoch_and_fences_still_grow(): ...

`broke` is the break that turned a test red, `figure` what was measured, `command` how to run it if not by
pytest, `also` a proof that is no single test. Both may stand at a class or, as `pytestmark`, for a file.
tests/verification.md has the chapters, and says which files belong to each. Nothing is imported: the files
are parsed.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/verification.md"
TESTS = ROOT / "tests"
SOURCE = TESTS / "verification.md"
KIT = TESTS / "kit"
CHAPTER = re.compile(r"^<!-- promises: ([^>]+) -->$", re.MULTILINE)
FIELDS = ("name", "broke", "figure", "command", "also")
HEAD = "| promise | tests | break seen to turn one red, or figure |\n|---|---|---|\n"


class MistakeError(Exception):
    """A promise, or the source of the page, that cannot be understood."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A test, a class or a whole file, as the page names it: `worker/test_line.py::test_name`."""

    file: str
    line: int
    test: str

    def __str__(self) -> str:
        return f"`{self.file}::{self.test}`" if self.test else f"all of `{self.file}`"


@dataclass(frozen=True, slots=True)
class Promise:
    """What a test promises, with all places that prove it: its own first."""

    text: str
    places: list[Place] = field(default_factory=list)
    name: str = ""
    broke: str = ""
    figure: str = ""
    command: str = ""
    also: str = ""

    def row(self) -> str:
        tests = "; ".join(", ".join(_names(of_file)) for of_file in _by_file(self.places))
        tests += f"; {self.also}" if self.also else ""
        figure = self.figure[:1].upper() + self.figure[1:]
        seen = ". ".join(text for text in (self.broke, figure) if text)
        seen += f" (`{self.command}`)" if self.command else ""
        cells = (text.replace("|", "\\|") for text in (self.text, tests, seen))
        return f"| {' | '.join(cells)} |\n"


def page() -> str:
    """The text of docs/verification.md. Raises `MistakeError` if a declaration cannot be right."""
    source = SOURCE.read_text()
    promises = collect()
    chapters = [pattern.split() for pattern in CHAPTER.findall(source)]
    _check_chapters(chapters, promises)
    of_chapter: defaultdict[int | None, list[Promise]] = defaultdict(list)
    for promise in promises:
        of_chapter[_chapter(promise, chapters)].append(promise)
    rows: list[str] = []
    for number, patterns in enumerate(chapters):
        mine = of_chapter[number]
        mine.sort(key=lambda promise: (_rank(promise, patterns), promise.places[0]))
        rows.append(HEAD + "".join(promise.row() for promise in mine).rstrip("\n"))
    table = iter(rows)
    text = CHAPTER.sub(lambda _: next(table), source)
    tests = {place for promise in promises for place in promise.places}
    text = text.replace("{promises}", str(len(promises))).replace("{tests}", str(len(tests)))
    _check_names(text)
    return text


def collect() -> list[Promise]:
    """All promises that the tests and the kit declare, each with its places."""
    declared: list[Promise] = []
    proofs: list[tuple[str, Place]] = []
    for path in [*sorted(TESTS.rglob("test_*.py")), *sorted(KIT.glob("*.py"))]:
        text = path.read_text()
        if "mark.promise(" not in text and "mark.proves(" not in text:
            continue
        for place, kind, call in _marks(path, ast.parse(text)):
            if kind == "promise":
                declared.append(_promise(place, call))
            else:
                proofs += [(_text(place, name), place) for name in call.args]
    named = {promise.name: promise for promise in declared if promise.name}
    twice = [name for name, times in Counter(p.name for p in declared).items() if name and times > 1]
    if twice:
        raise MistakeError(f"two promises have the name {twice[0]!r}")
    for name, place in proofs:
        if name not in named:
            raise MistakeError(f"{place}, line {place.line}: no promise has the name {name!r}")
        named[name].places.append(place)
    for name, promise in named.items():
        if len(promise.places) == 1:
            raise MistakeError(f"{promise.places[0]}: nothing else proves {name!r}, so it needs no name")
    return declared


def _marks(path: Path, tree: ast.Module) -> Iterator[tuple[Place, str, ast.Call]]:
    file = "kit" if path.parent == KIT else path.relative_to(TESTS).as_posix()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            test, found = node.name, node.decorator_list
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            test, found = "", node.value.elts if isinstance(node.value, ast.List) else [node.value]
        else:
            continue
        for mark in found:
            kind = (
                mark.func.attr if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Attribute) else ""
            )
            if isinstance(mark, ast.Call) and kind in {"promise", "proves"}:
                yield Place(file, node.lineno, test), kind, mark


def _promise(place: Place, call: ast.Call) -> Promise:
    if len(call.args) != 1 or not {keyword.arg for keyword in call.keywords} <= set(FIELDS):
        raise MistakeError(f"{place}: a promise has one text, and {', '.join(FIELDS)}")
    values = {str(keyword.arg): _text(place, keyword.value) for keyword in call.keywords}
    return Promise(_text(place, call.args[0]), [place], **values)


def _text(place: Place, node: ast.expr) -> str:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        raise MistakeError(f"{place}: a promise is declared by literal strings, not by {ast.unparse(node)}")
    return node.value


def _by_file(places: list[Place]) -> list[list[Place]]:
    first = {place.file: number for number, place in reversed(list(enumerate(places)))}
    ordered = sorted(places, key=lambda place: (first[place.file], place is not places[0], place.line))
    return [list(found) for _, found in groupby(ordered, key=lambda place: place.file)]


def _names(places: list[Place]) -> Iterator[str]:
    for number, place in enumerate(places):
        yield f"`::{place.test}`" if number and place.test and places[0].test else str(place)


def _rank(promise: Promise, patterns: list[str]) -> int:
    return next(n for n, pattern in enumerate(patterns) if fnmatch(promise.places[0].file, pattern))


def _chapter(promise: Promise, chapters: list[list[str]]) -> int | None:
    """The chapter that names its file, or else the first whose pattern fits."""
    file = promise.places[0].file
    fits = [n for n, patterns in enumerate(chapters) if any(fnmatch(file, each) for each in patterns)]
    exact = [n for n in fits if file in chapters[n]]
    return next(iter(exact or fits), None)


def _check_chapters(chapters: list[list[str]], promises: list[Promise]) -> None:
    for promise in promises:
        if _chapter(promise, chapters) is None:
            raise MistakeError(f"name {promise.places[0].file} in a chapter of {SOURCE.relative_to(ROOT)}")
    files = {promise.places[0].file for promise in promises}
    for pattern in (pattern for patterns in chapters for pattern in patterns):
        if not any(fnmatch(file, pattern) for file in files):
            raise MistakeError(f"{SOURCE.relative_to(ROOT)}: no promise stands in {pattern}")


def _check_names(text: str) -> None:
    """The tests that prose names, as `file::name`, are there."""
    for file, test in re.findall(r"`(\w+/[\w/]+\.py)::(\w+)`", text):
        path = TESTS / file
        if not path.exists() or not re.search(rf"(def|class) {test}\b", path.read_text()):
            raise MistakeError(f"{file}::{test} is named, and is not there")


if __name__ == "__main__":
    try:
        PAGE.write_text(page())
    except MistakeError as mistake:
        sys.exit(f"{PAGE.relative_to(ROOT)}: {mistake}")
