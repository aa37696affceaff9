"""The bench measures: each row with next to nothing to do, so that it cannot rot between two releases."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench.__main__ import ROWS
from bench.chart import svg
from bench.makespan import ARRIVED, disorder, least
from bench.report import PAGES, Report, markdown, pages, short, with_tables
from bench.row import OURS, Figure, Row, shares, times
from bench.steps import Steps
from bench.tally import Spell, Tally
from bench.trace import Call

ROOT = Path(__file__).parents[2]
QUICK = ("publish", "refuse", "pair", "group", "memory", "kill")
OTHERS = (("noop",), ("mixed", "bursts"), ("capacity",))
"""They start many workers, and are left to `make test-all`."""


def measure(folder: Path, *rows: str) -> list[Row]:
    done = subprocess.run(
        [sys.executable, "-m", "bench", *rows, "--into", folder],
        env={**os.environ, "BENCH_SMOKE": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return Report(folder, ROWS).rows


@pytest.mark.proves("speed page")
@pytest.mark.timeout(600)  # workers of each contender
@pytest.mark.parametrize(
    "rows", [QUICK, *(pytest.param(rows, marks=pytest.mark.large) for rows in OTHERS)], ids="-".join
)
def test_each_row_is_measured(rows: tuple[str, ...], tmp_path: Path) -> None:
    for row in measure(tmp_path, *rows):
        assert row.goal is None or row.ours in row.figures or row.missing[row.ours], row
        assert all(0 <= figure.low <= figure.median <= figure.high for figure in row.figures.values()), row
    assert ET.parse(tmp_path / "speed.svg").getroot().tag.endswith("svg")


@pytest.mark.large
@pytest.mark.parametrize("row", ["calls", "idle"])
def test_a_call_is_measured_that_other_pages_state(row: str, tmp_path: Path) -> None:
    assert measure(tmp_path, row) == []


def test_all_rows_are_measured_here() -> None:
    assert sorted(row for part in (QUICK, *OTHERS) for row in part) == sorted(ROWS)


@pytest.mark.proves("speed page")
def test_a_worker_that_is_killed_leaves_its_task_to_the_other() -> None:
    """In a process of its own: Celery adds the shared tasks of other tests to any app that is there."""
    code = (
        "from bench.kill import seconds_until_it_begins_again as measure; "
        "soon = dict(visibility_timeout=1, unacked_restore_interval=1, unacked_restore_throttle=1); "
        "print(measure(broker_transport_options=soon))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=100
    )
    assert float(done.stdout or 0) > 0, done.stderr[-2000:]


def row(name: str, median: float) -> Row:
    return Row(
        name, f"`{name}` < all", "share", 0.9, {OURS: Figure(median, 0.1, 0.7), "other": Figure(1, 1, 1)}
    )


@pytest.mark.proves("speed page")
def test_a_part_that_is_measured_again_leaves_the_other_rows_as_they_were(tmp_path: Path) -> None:
    Report(tmp_path, ["a", "b"]).add("b", [row("second", 0.2)])
    Report(tmp_path, ["a", "b"]).add("a", [row("first", 0.3)])
    Report(tmp_path, ["a", "b"]).add("b", [row("third", 0.4)])
    assert [each.name for each in Report(tmp_path, ["a", "b"]).rows] == ["first", "third"]


@pytest.mark.proves("speed page")
def test_the_table_shows_median_and_spread_and_why_a_field_is_empty() -> None:
    empty = Row("late", "late", "share", 0.86, {}, missing={OURS: "it is not there yet"})
    table = markdown([row("noop", 0.5), empty])
    assert "| `noop` < all | 1 | 1.00, other | **0.50 (0.10 to 0.70)** | 0.90 |" in table
    assert "| late | 1 | - | it is not there yet | 0.86 |" in table


@pytest.mark.proves("speed page")
def test_ratios_are_taken_within_each_round() -> None:
    rounds = {"bare": [1.0, 10.0, 100.0], OURS: [2.0, 20.0, 400.0]}
    assert shares(rounds, "bare") == {OURS: Figure(0.5, 0.25, 0.5)}
    assert times(rounds, "bare") == {OURS: Figure(2.0, 2.0, 4.0)}


@pytest.mark.proves("speed page")
def test_the_least_makespan_is_the_time_of_the_work_or_of_the_longest_key() -> None:
    assert least([1, 2] * 8) == pytest.approx(8 * 0.02)
    assert least(list(range(16))) == pytest.approx(2 * 0.02)


@pytest.mark.proves("speed page")
def test_a_start_after_the_start_of_a_later_task_of_its_key_is_out_of_order(tmp_path: Path) -> None:
    spells = [Spell(0, begun, 9) for begun in (5.0, 1.0, 2.0, 3.0, 4.0)]
    assert disorder([1, 1, 2, 2, 1], spells) == 1
    assert disorder([1, 2, 2, 2, 3], spells) == 0


@pytest.mark.proves("speed page")
def test_a_makespan_and_the_order_beside_it_are_of_one_option_that_the_row_names() -> None:
    rows = {row.name: row for row in Report(PAGES, ROWS).rows}
    for name in ("mixed", "bursts"):
        for part, ours, options in ((name, OURS, ""), (f"{name}-arrived", ARRIVED, 'order="arrived"')):
            assert {rows[part + figure].ours for figure in ("", "-blocked", "-order")} == {ours}
            assert options in rows[part].what


@pytest.mark.proves("speed page")
def test_a_tally_counts_the_tasks_that_have_ended(tmp_path: Path) -> None:
    tally, same = Tally(tmp_path / "tally", 3), Tally(tmp_path / "tally")
    same.begin(2)
    assert tally.ended() == 0
    same.end(2)
    assert tally.ended() == 1
    assert tally.spells()[2].ended >= tally.wait_for_begin_of(2)
    tally.clear()
    assert same.ended() == 0


@pytest.mark.proves("speed page")
def test_a_step_from_file_to_file_is_a_move_and_a_function_counts_once() -> None:
    there, back = Call("a.py", "f:1"), Call("b.py", "g:1")
    assert Steps.of([there, there, back, there]) == Steps(files=2, functions=2, calls=4, moves=2)


@pytest.mark.proves("speed page")
@pytest.mark.large
def test_the_steps_of_a_task_are_traced_in_each_process() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "steps"],
        env={**os.environ, "BENCH_SMOKE": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    for process in ("publisher", "main process", "child"):
        assert re.search(rf"exclusive +{process} +[1-9]\d* / ", done.stdout), done.stderr[-2000:]


@pytest.mark.promise(
    "[speed.md](project/speed.md) states what was measured, each row beside plain Celery and other packages "
    "in the same run",
    name="speed page",
    broke=(
        "ratios of medians, a start compared with another key's, the longest key left out, tasks counted "
        "when they begin, the other rows forgotten, the least for the median, a worker that is not killed"
    ),
    figure="three parts of four are measured in `make test-all`",
    command="make bench",
)
@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_the_page_states_what_was_measured(page: Path) -> None:
    kept, text = json.loads((PAGES / "speed.json").read_text()), page.read_text()
    assert with_tables(text, kept, Report(PAGES, ROWS).rows) == text


@pytest.mark.proves("speed page")
def test_the_chart_is_drawn_from_what_was_measured() -> None:
    assert (PAGES / "speed.svg").read_text() == svg(Report(PAGES, ROWS).rows)


@pytest.mark.proves("speed page")
def test_short_table_and_chart_have_whole_labels_and_numbers_that_people_read() -> None:
    late = Row(
        "kill",
        "a `late` task " + "again " * 12,
        "times",
        1.3,
        {OURS: Figure(1.16, 1, 2), "plain": Figure(1200, 1, 2)},
    )
    assert f"| {late.what} | 1.16 times as long | 1,200 times as long, plain |" in short([late])
    chart = svg([late])
    assert late.what.replace("`", "") in chart
    assert ">1,200 times as long<" in chart
