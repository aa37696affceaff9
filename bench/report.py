"""The measured figures: for a terminal, in the tables of speed.md and of docs/evidence, and as JSON."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench import carries, peers
from bench.chart import svg
from bench.row import Figure, Row
from tests.servers import RedisServer

PAGES = Path(__file__).parents[1] / "docs/project"
PACKAGES = ("celery", "kombu", "redis", "python-redis-lock", *peers.UNIQUE)
CORES = {1: "one core", 2: "two cores"}
HEAD = "| what | floor | the best other | ours | goal |\n|---|---|---|---|---|\n"
SHORT_HEAD = "| what | celery-exclusive | the best other package |\n|---|---|---|\n"
SHORT = ("publish", "publish-exclusive", "refuse", "noop", "mixed", "mixed-order", "pair", "beside", "kill")
"""The rows that speed.md has. The page of figures in docs/evidence has all."""


class Report:
    """The rows of this run and, for those that it did not measure, of the runs before, in `folder`."""

    def __init__(self, folder: Path = PAGES, order: Iterable[str] = ()) -> None:
        self._folder, self._file, self._order = folder, folder / "speed.json", list(order)
        kept = json.loads(self._file.read_text())["rows"] if self._file.exists() else {}
        self._rows = {group: [Row.from_json(row) for row in rows] for group, rows in kept.items()}

    @property
    def rows(self) -> list[Row]:
        return [row for group in self._order for row in self._rows.get(group, ())]

    def add(self, group: str, rows: list[Row]) -> None:
        """Print what was measured, and keep it."""
        for row in rows:
            print("\n".join(lines(row)), flush=True)
        self._rows[group] = rows
        self._write()

    def _write(self) -> None:
        rows = {
            group: [row.as_json() for row in self._rows[group]]
            for group in self._order
            if group in self._rows
        }
        machine = CORES.get(os.cpu_count() or 0, f"{os.cpu_count()} cores")
        kept = {"machine": machine, "versions": versions(), "rows": rows}
        self._file.write_text(json.dumps(kept, indent=1) + "\n")
        (self._folder / "speed.svg").write_text(svg(self.rows))
        for page in pages(self._folder):
            if page.exists():
                page.write_text(with_tables(page.read_text(), kept, self.rows))


def pages(folder: Path = PAGES) -> tuple[Path, Path]:
    """Return the page of the site and the page of all figures."""
    return folder / "speed.md", folder.parent / "evidence/speed-figures.md"


def with_tables(page: str, kept: dict[str, Any], rows: list[Row]) -> str:
    """Return the text of a page with the tables of these rows, and what they were measured on."""
    under = ", ".join([kept["machine"], *(f"{name} {number}" for name, number in kept["versions"].items())])
    page = replaced(page, "table", f"{markdown(rows)}\n({under}.)\n")
    page = replaced(page, "short", short(rows))
    return replaced(page, "carries", carries.tables(rows))


def lines(row: Row) -> Iterable[str]:
    """Return what a terminal shows of a row."""
    yield f"{row.what}{'' if row.goal is None else f': goal {row.shown(row.goal)}'}"
    for name, figure in row.figures.items():
        yield f"  {name:<48} {with_spread(figure, row):>24}"
    for name, reason in row.missing.items():
        yield f"  {name:<48} {'':>24} ({reason})"
    for name, number in row.notes.items():
        yield f"    {name}: {number:,.6g}"


def markdown(rows: list[Row]) -> str:
    """Return the table, with what is missing below it."""
    cells = [_cells(row) for row in rows if row.goal is not None]
    reasons = {f"{name}: {reason}" for row in rows for name, reason in row.missing.items()}
    table = "".join(f"| {' | '.join(each)} |\n" for each in cells)
    return f"{HEAD}{table}\n" + "".join(f"* {reason}\n" for reason in sorted(reasons))


def short(rows: list[Row]) -> str:
    """Return the table of the rows that say most, with numbers as people say them."""
    lines = []
    for row in rows:
        if row.name in SHORT and row.ours in row.figures:
            best = next(iter(row.others.items()), None)
            other = f"{row.told(best[1].median)}, {best[0]}" if best else "-"
            lines.append(f"| {row.what} | {row.told(row.figures[row.ours].median)} | {other} |\n")
    return SHORT_HEAD + "".join(lines)


def _cells(row: Row) -> tuple[str, str, str, str, str]:
    best = next(iter(row.others.items()), None)
    floor = with_spread(row.figures[row.floor], row) if row.floor in row.figures else ""
    return (
        row.what,
        floor or ("1" if row.unit in ("share", "times") else "0"),
        f"{with_spread(best[1], row)}, {best[0]}" if best else "-",
        f"**{with_spread(row.figures[row.ours], row)}**"
        if row.ours in row.figures
        else row.missing[row.ours],
        row.shown(row.goal or 0),
    )


def with_spread(figure: Figure, row: Row) -> str:
    if figure.low == figure.high:
        return row.shown(figure.median)
    return f"{row.shown(figure.median)} ({row.shown(figure.low)} to {row.shown(figure.high)})"


@cache
def versions() -> dict[str, str]:
    """Return the versions of all that takes part."""
    found: dict[str, Any] = {"Python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    with RedisServer() as server, server.client() as client:
        about = client.info("server")
    name = about.get("server_name", "redis")
    return {**found, f"{name} server": about.get(f"{name}_version", about["redis_version"])}


def replaced(text: str, name: str, new: str) -> str:
    """Return the text of a page with another content between the marks of this name."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
    return re.sub(f"{begin}.*{end}", lambda _: begin + new + end, text, flags=re.DOTALL)
