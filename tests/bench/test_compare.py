"""The comparison: complete adapters, a page with the verdicts that were reached, and a scene that runs."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from bench.compare import rate
from bench.compare.__main__ import settings_of
from bench.compare.body import Event
from bench.compare.rate import Rated
from bench.compare.rows import ROWS, slot
from bench.compare.speed import LOADS, Figures, figures, hand_offs, loads_of, overtaking
from bench.compare.stage import Stage
from bench.compare.system import HERE, NAMES, ONLY_RATED, RATED, load
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
    assert bool(system.rate) == (name in RATED)
    pins = system.requirements.read_text().splitlines()
    assert all(PIN.fullmatch(pin) for pin in pins)
    assert {*system.versions()} == {*system.packages}


@pytest.mark.parametrize("name", ONLY_RATED)
def test_adapter_of_a_rate_is_complete(name: str) -> None:
    system, module = load(name), import_module(f"bench.compare.systems.{name}")
    assert callable(module.work)
    assert callable(module.send)
    assert name in RATED
    assert system.rate
    assert all(PIN.fullmatch(pin) for pin in system.requirements.read_text().splitlines())
    assert {*system.versions()} == {*system.packages}


def test_each_file_of_an_adapter_takes_part() -> None:
    files = {path.stem for path in (HERE / "systems").glob("*.py") if not path.stem.startswith("_")}
    assert files == {*NAMES, *ONLY_RATED} == {path.stem for path in (HERE / "requirements").glob("*.txt")}


@pytest.mark.promise(
    "The tables of the comparison have the verdicts and figures that the scripts reached, with their "
    "options, versions and dates. Each other cell says that it was not run",
    name="comparison",
    broke="a verdict changed by hand; a cell that was not run left empty; a load that was not run left empty",
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


@pytest.mark.proves("comparison")
def test_table_of_speed_has_the_figures_of_each_load_that_was_run(tmp_path: Path) -> None:
    verdicts = Verdicts(tmp_path / "verdicts.json")
    verdicts.add(load("docket"), "one key", {}, Figures(100, 99, 0, 1.5, 0, 0.01, 0.02))
    cells = "not run | not run | 99 of 100 in 1.5 s<br>next run after 10.0 ms, p99 20.0 ms | not run"
    assert f"| docket | {cells} |" in verdicts.speed()
    assert "| docket, tuned | - | not run | not run |" in verdicts.speed()


@pytest.mark.proves("comparison")
def test_table_of_rates_has_the_figures_of_each_system_that_has_a_rate(tmp_path: Path) -> None:
    verdicts = Verdicts(tmp_path / "verdicts.json")
    verdicts.add(load("docket"), rate.ROW, {}, Rated(11, 7.5, 30))
    found = [line for line in verdicts.rates().splitlines() if line.startswith("| docket")]
    assert "| 11 | 7.5 | 30 | pydocket 0.27.0, redis 8.1.0 | 2" in found[0]
    assert "| not run | - | - |" in found[1]
    assert len(found) == 2


def test_rate_of_a_journal_has_the_most_starts_in_a_second_and_those_out_of_order() -> None:
    at = {0: 0.0, 1: 0.5, 3: 0.75, 2: 0.875, 4: 1.5, 5: 1.75}
    starts = [Event(when, 1, "start", f"noop#{number}") for number, when in at.items()]
    assert rate.rated(starts, 2) == Rated(4, 3.0, 1)
    assert rate.rated([], 2) == Rated(0, 0.0, 0)


def test_system_without_a_sensible_setting_is_played_by_its_defaults_alone() -> None:
    assert settings_of("child", load("once")) == [{}, {"is_tuned": True}]
    plain = replace(load("dbos"), tuned="")
    assert settings_of("worker", plain) == [{}]
    assert settings_of("child", plain) == []


@pytest.mark.promise(
    "The figures of speed are counted from the starts and ends that each run has written: a run is out of "
    "order if it began before any earlier call of its key, and a killed run gives no time until the next one",
    name="comparison-speed",
    broke="neighbours alone compared; the start of a killed run taken as its end",
)
def test_speed_of_a_journal_has_runs_makespan_hand_off_and_order() -> None:
    keys = {"noop#0": "a", "noop#1": "a", "noop#2": "a", "noop#3": "b", "noop#4": "b"}
    starts = [Event(float(at), 1, "start", f"noop#{n}") for at, n in enumerate((0, 2, 1, 3))]
    ends = [event._replace(at=event.at + 0.5, what="end") for event in starts]
    found = figures(keys, 5, starts, ends, dropped=1)
    assert found == Figures(5, 4, 1, 3.5, 1, 0.5, 0.5)
    text = "4 of 5 in 3.5 s<br>1 dropped<br>next run after 500.0 ms, p99 500.0 ms<br>1 out of order"
    assert str(found) == text


@pytest.mark.proves("comparison-speed")
def test_speed_of_a_noisy_tenant_says_when_the_quiet_ones_were_done() -> None:
    keys = {"noop#0": "tenant-0", "noop#1": "noisy", "noop#2": "noisy"}
    starts = [Event(float(n), 1, "start", f"noop#{n}") for n in range(3)]
    ends = [event._replace(at=event.at + 0.5, what="end") for event in starts]
    assert figures(keys, 3, starts, ends).others == 0.5
    assert figures(keys, 3, starts, ends[1:]).others is None


@pytest.mark.proves("comparison-speed")
def test_a_killed_run_leaves_no_hand_off() -> None:
    events = [
        Event(float(at), 1, what, "noop#1") for at, what in enumerate(("start", "start", "end", "start"))
    ]
    assert hand_offs(events) == [1.0]


@pytest.mark.proves("comparison-speed")
@pytest.mark.parametrize(
    ("order", "count"), [([1, 2, 3], 0), ([3, 1, 2], 1), ([5, 6, 7, 1, 2, 3], 3), ([2, 1], 1)]
)
def test_a_run_is_out_of_order_if_it_began_before_an_earlier_call(order: list[int], count: int) -> None:
    assert overtaking(order) == count


def test_speed_has_the_loads_that_mean_something_for_a_system() -> None:
    assert loads_of(load("ours")) == [*LOADS]
    assert loads_of(load("once")) == ["a key each", "killed worker"]
    assert loads_of(load("cookbook")) == [*LOADS][1:]
    assert loads_of(load("docket")) == [*LOADS]
    assert loads_of(load("bullmq")) == []


def test_compared_scene_is_played_with_real_processes() -> None:
    with Stage(load("ours"), Path(sys.executable)) as stage:
        assert slot.play(stage) == "yes"


def test_rate_is_played_with_real_processes() -> None:
    with Stage(load("ours"), Path(sys.executable), slots=rate.SLOTS, rate=rate.RATE) as stage:
        assert rate.measure(stage, 3).most >= rate.RATE
