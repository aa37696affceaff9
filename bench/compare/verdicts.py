"""The verdicts so far: as JSON beside the scripts, and as tables in docs/evidence/comparison-figures.md."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.compare import rate
from bench.compare.rate import Rated
from bench.compare.rows import ROWS
from bench.compare.speed import LOADS, Figures, loads_of, settings_of
from bench.compare.system import FAMILY, HERE, NAMES, RATED, System, load
from bench.report import replaced

FILE = HERE / "verdicts.json"
PAGE = HERE.parents[1] / "docs/evidence/comparison-figures.md"
NOT_RUN = "not run"
TABLES = {"celery": FAMILY, "queues": ("ours", *(name for name in NAMES if name not in FAMILY))}
"""The tables of the page, by their marks."""


class Verdicts:
    """All verdicts by system, row and setting. A later run replaces those that it reaches again."""

    def __init__(self, file: Path = FILE) -> None:
        self._file = file

    @property
    def kept(self) -> dict[str, Any]:
        """All verdicts, as the file has them now."""
        return dict(json.loads(self._file.read_text())) if self._file.exists() else {}

    def add(self, system: System, row: str, setting: dict[str, Any], verdict: str | Figures | Rated) -> None:
        """Keep a verdict, with its date, its options and the versions that reached it."""
        kept = self.kept
        kept.setdefault(system.name, {}).setdefault(row, {})[_name(setting)] = {
            "verdict": _plain(verdict),
            "date": dt.datetime.now(tz=dt.timezone.utc).date().isoformat(),
            "stage": setting,
            "options": options(system, row, is_tuned=bool(setting.get("is_tuned"))),
            "versions": system.versions(),
        }
        self._file.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")

    def cell(self, system: System, row: str) -> str:
        """Return the text of a cell: the verdict by default, and the tuned verdict if it differs."""
        if reason := system.lacks.get(row):
            return f"{NOT_RUN}: {reason}"
        found = {name: cell["verdict"] for name, cell in self.kept.get(system.name, {}).get(row, {}).items()}
        if not found:
            return NOT_RUN
        if len(set(found.values())) == 1:
            return next(iter(found.values()))
        return "<br>".join(f"{name}: {found[name]}" for name in sorted(found))

    def table(self, names: tuple[str, ...]) -> str:
        """Return a table with a row per scene and a column per system."""
        systems = [load(name) for name in names]
        head = ["", *(system.title for system in systems)]
        lines = [[file.WHAT, *(self.cell(system, row) for system in systems)] for row, file in ROWS.items()]
        return _table(head, lines)

    def speed(self) -> str:
        """Return a table with a row per system and setting, and a column per load."""
        lines = []
        for system in map(load, NAMES):
            if reason := system.lacks.get("speed"):
                lines.append([system.title, f"{NOT_RUN}: {reason}", *("-" * (len(LOADS) - 1))])
                continue
            for name in ("default", "tuned") if system.tuned else ("default",):
                title = f"{system.title}, tuned" if name == "tuned" else system.title
                lines.append([title, *(self._figures(system, load, name) for load in LOADS)])
        return _table(["", *LOADS], lines)

    def rates(self) -> str:
        """Return a table with a row per system and setting that has a rate."""
        lines = []
        for system in map(load, RATED):
            cells = self.kept.get(system.name, {}).get(rate.ROW, {})
            for name in map(_name, rate.settings_of(system)):
                title = f"{system.title}, tuned" if name == "tuned" else system.title
                cell = cells.get(name)
                figures = map(str, Rated(**cell["verdict"])) if cell else (NOT_RUN, "-", "-")
                versions = ", ".join(f"{package} {number}" for package, number in system.versions().items())
                lines.append([title, f"`{system.rate}`", *figures, versions, cell["date"] if cell else "-"])
        return _table(
            ["", "declared", "most in a second", "a second", "out of order", "versions", "run on"], lines
        )

    def _figures(self, system: System, load: str, setting: str) -> str:
        if load not in loads_of(system) or setting not in map(_name, settings_of(system, LOADS[load])):
            return "-"
        cell = self.kept.get(system.name, {}).get(load, {}).get(setting)
        return str(Figures(**cell["verdict"])) if cell else NOT_RUN

    def declared(self) -> str:
        """Return a table of the options and the versions with which each system was run."""
        lines = ["| system | by default | tuned: also | versions | run on |\n", "|---|---|---|---|---|\n"]
        for system in map(load, NAMES):
            rows = self.kept.get(system.name, {})
            cells = [cell for row in rows if row != rate.ROW for cell in rows[row].values()]
            dates = sorted({cell["date"] for cell in cells})
            numbers = {name: number for cell in cells for name, number in cell["versions"].items()}
            used = ", ".join(f"{name} {number}" for name, number in numbers.items())
            when = " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else NOT_RUN
            tuned = f"`{system.tuned}`" if system.tuned else "-"
            lines.append(f"| {system.title} | `{system.default}` | {tuned} | {used} | {when} |\n")
        return "".join(lines)

    def write(self, page: Path = PAGE) -> None:
        """Write the tables into the page."""
        page.write_text(self.page(page.read_text()))

    def page(self, text: str) -> str:
        """Return the text of the page with its tables."""
        for mark, names in TABLES.items():
            text = replaced(text, mark, self.table(names))
        text = replaced(text, "rates", self.rates())
        text = replaced(text, "speed", self.speed())
        return replaced(text, "declared", self.declared())


def _plain(verdict: str | Figures | Rated) -> str | dict[str, Any]:
    if isinstance(verdict, str):
        return verdict
    return asdict(verdict) if isinstance(verdict, Figures) else verdict._asdict()


def options(system: System, row: str, *, is_tuned: bool) -> str:
    """Return how the task was declared, as text."""
    declared = system.rate if row == rate.ROW else system.default
    return f"{declared}; {system.tuned}" if is_tuned else declared


def _table(head: list[str], lines: list[list[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, ["---"] * len(head), *lines))


def _name(setting: dict[str, Any]) -> str:
    return "tuned" if setting.get("is_tuned") else "default"
