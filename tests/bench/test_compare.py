"""The comparison: complete adapters, a page with the verdicts that were reached, and a scene that runs."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

from bench.compare.__main__ import settings_of
from bench.compare.body import Event
from bench.compare.rows import ROWS, slot
from bench.compare.speed import figures
from bench.compare.stage import Stage
from bench.compare.system import HERE, NAMES, load
from bench.compare.verdicts import PAGE, Verdicts

PIN = re.compile(r"[A-Za-z0-9._-]+==\S+")


@pytest.mark.parametrize("name", NAMES)
def test_adapter_of_a_compared_system_is_complete(name: str) -> None:
    system, module = load(name), import_module(f"bench.compare.systems.{name}")
    assert callable(module.work)
    assert callable(module.send)
    assert callable(getattr(module, "chord", None)) or "chord" in system.lacks
    assert {*system.lacks} <= {*ROWS, "speed"}
    assert system.server in ("redis", "postgres")
    assert system.keys or "stuck" in system.lacks
    pins = system.requirements.read_text().splitlines()
    assert all(PIN.fullmatch(pin) for pin in pins)
    assert {*system.versions()} == {*system.packages}


def test_each_file_of_an_adapter_takes_part() -> None:
    files = {path.stem for path in (HERE / "systems").glob("*.py") if not path.stem.startswith("_")}
    assert files == {*NAMES} == {path.stem for path in (HERE / "requirements").glob("*.txt")}


@pytest.mark.promise(
    "The tables of the comparison have the verdicts that the scripts reached, with their options, versions "
    "and dates. Each other cell says that it was not run",
    name="comparison",
    broke="a verdict changed by hand; a cell that was not run left empty",
)
def test_comparison_page_has_the_verdicts_that_the_scripts_reached() -> None:
    text = PAGE.read_text()
    assert Verdicts().page(text) == text


@pytest.mark.proves("comparison")
def test_cell_without_a_verdict_says_that_it_was_not_run(tmp_path: Path) -> None:
    verdicts = Verdicts(tmp_path / "verdicts.json")
    assert verdicts.cell(load("ours"), "order") == "not run"
    assert verdicts.cell(load("docket"), "child") == "not run: its worker is one process"


@pytest.mark.proves("comparison")
def test_verdict_of_the_tuned_setting_stands_beside_the_default_where_they_differ(tmp_path: Path) -> None:
    verdicts = Verdicts(tmp_path / "verdicts.json")
    once = load("once")
    verdicts.add(once, "child", {}, "lost")
    assert verdicts.cell(once, "child") == "lost"
    verdicts.add(once, "child", {"is_tuned": True}, "ran again")
    assert verdicts.cell(once, "child") == "default: lost<br>tuned: ran again"
    verdicts.add(once, "child", {}, "ran again")
    assert verdicts.cell(once, "child") == "ran again"


def test_system_without_a_sensible_setting_is_played_by_its_defaults_alone() -> None:
    assert settings_of("child", load("once")) == [{}, {"is_tuned": True}]
    assert settings_of("worker", load("dbos")) == [{}]
    assert settings_of("child", load("dbos")) == []


def test_speed_of_a_journal_has_runs_makespan_hand_off_and_order() -> None:
    keys = {"noop#0": "a", "noop#1": "a", "noop#2": "a", "noop#3": "b", "noop#4": "b"}
    starts = [Event(float(at), 1, "start", f"noop#{n}") for at, n in enumerate((0, 2, 1, 3))]
    ends = [event._replace(at=event.at + 0.5, what="end") for event in starts]
    found = figures(keys, starts, ends)
    assert found == (4, 3.5, 0.5, 0.5, 1)
    assert str(found) == "4 in 3.5 s; 500.0 and 500.0 ms; 1 overtaken"


def test_compared_scene_is_played_with_real_processes() -> None:
    with Stage(load("ours"), Path(sys.executable)) as stage:
        assert slot.play(stage) == "yes"
