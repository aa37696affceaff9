"""The alert rules that come with the library, in incidents: promtool of Prometheus evaluates them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
RULES = ROOT / "docs/operating/alerts.yml"
PLACES = os.pathsep.join([str(ROOT / ".venv/prometheus/usr/bin"), os.environ.get("PATH", os.defpath)])
MINUTES = 240
BEGINS, ENDS = 30, 90
"""The minutes in which an incident begins and is over."""
LATE = 85
"""A minute near its end."""
Series = dict[str, str]
WELL = {
    "up": "1",
    "writable": "1",
    "epoch": "7",
    "last_sweep_age_seconds": "1",
    "waiting_tasks": "5",
    "aside_tasks": "0",
    "dead_holders": "0",
    "longest_line_tasks": "5",
    "oldest_wait_seconds": "60",
    "damaged_keys": "0",
    "paused_keys": "0",
    "running": "3",
    "queued": "0",
    "period": "9",
}
"""The metrics of a store, the holders by their state, with values at which no alert fires."""


def lasting(well: str, bad: str) -> str:
    """The values of a metric that is bad during the incident."""
    return f"{well}x{BEGINS - 1} {bad}x{ENDS - BEGINS - 1} {well}x{MINUTES - ENDS - 1}"


def once(before: str, after: str) -> str:
    """The values of a metric that changes when the incident begins."""
    return f"{before}x{BEGINS - 1} {after}x{MINUTES - BEGINS}"


def exporter(instance: str, **changed: str) -> Series:
    """The series of one store, in which all is well but what is changed. "": there are none meanwhile."""
    found = {f'up{{job="locks",instance="{instance}"}}': changed.pop("target", f"1x{MINUTES}")}
    for name, well in WELL.items():
        labels = f'job="locks",instance="{instance}"'
        labels += ',task="t"' * (name.endswith(("_tasks", "_holders", "damaged_keys", "wait_seconds")))
        labels += f',task="t",state="{name}"' * (name in ("running", "queued", "period"))
        metric = "holders" if "state=" in labels else name
        found[f"celery_exclusive_{metric}{{{labels}}}"] = changed.pop(name, f"{well}x{MINUTES}")
    assert not changed
    return found


def workers(instance: str = "w", **counts: str) -> Series:
    names = {"acquired": f"0+9x{MINUTES}", "recovered": f"0x{MINUTES}", "lost": f"0x{MINUTES}", **counts}
    what = 'celery_exclusive_outcomes_total{job="workers",instance="%s",task="t",outcome="%s"}'
    return {what % (instance, name): values for name, values in names.items()}


GONE = {name: lasting(well, "_") for name, well in WELL.items()}
NEW = {name: f"_x{BEGINS} {well}x{MINUTES}" for name, well in WELL.items()}
IDLE = lasting("1", "60+60")
"""The age of the last sweep while no worker runs."""

INCIDENTS: dict[str, tuple[set[str], int, Series]] = {
    "all is well": (set(), LATE, {}),
    "a burst that runs off": (
        set(),
        LATE,
        exporter("a", waiting_tasks=lasting("5", "900-10"), longest_line_tasks=lasting("5", "900-10")),
    ),
    "all workers restart": (
        set(),
        BEGINS + 3,
        exporter("a", last_sweep_age_seconds=f"1x{BEGINS - 1} 60 90 1x{MINUTES - BEGINS}"),
    ),
    "a worker dies": (
        set(),
        BEGINS + 3,
        {
            **exporter("a", dead_holders=f"0x{BEGINS - 1} 1 0x{MINUTES - BEGINS}"),
            **workers(recovered=once("0", "1")),
        },
    ),
    "locks of web processes alone": (
        set(),
        LATE,
        exporter("a", last_sweep_age_seconds=IDLE, waiting_tasks="0x240"),
    ),
    "the store is down": ({"LockStoreDown"}, LATE, exporter("a", **{**GONE, "up": lasting("1", "0")})),
    "the store is full": ({"LockStoreRefuses"}, LATE, exporter("a", writable=lasting("1", "0"))),
    "the store lost its data": (
        {"LockDataLost"},
        LATE,
        exporter("a", epoch=once("7", "8"), waiting_tasks=once("500", "0")),
    ),
    "one of two exporters is gone": (
        {"LockMetricsMissing"},
        LATE,
        exporter("a", target=lasting("1", "0"), **GONE),
    ),
    "one of two exporters is no target any more": (
        {"LockMetricsMissing"},
        BEGINS + 25,
        exporter("a", target=lasting("1", "_"), **GONE),
    ),
    "an exporter is replaced by another": (
        set(),
        BEGINS + 25,
        {
            **exporter("a", target=lasting("1", "_"), **GONE),
            **exporter("c", **NEW, target=f"_x{BEGINS} 1x{MINUTES}"),
        },
    ),
    "both exporters are gone": (
        {"LockMetricsMissing"},
        LATE,
        {
            **exporter("a", target=lasting("1", "_"), **GONE),
            **exporter("b", target=lasting("1", "_"), **GONE),
        },
    ),
    "no worker, and tasks wait": (
        {"LocksNotSwept", "TaskWaitsLong"},
        LATE,
        exporter("a", last_sweep_age_seconds=IDLE, oldest_wait_seconds=lasting("60", "60+60")),
    ),
    "no worker, and only unique calls are queued": (
        {"LocksNotSwept"},
        LATE,
        exporter("a", last_sweep_age_seconds=IDLE, waiting_tasks="0x240", queued=lasting("0", "400")),
    ),
    "no worker for one queue": ({"TasksAside"}, LATE, exporter("a", aside_tasks=lasting("0", "5"))),
    "a dead run that is not recovered": (
        {"LockHolderDead"},
        LATE,
        exporter("a", dead_holders=lasting("0", "1")),
    ),
    "a task kills three workers": (
        {"LockRunsDie"},
        BEGINS + 5,
        workers(recovered=f"0x{BEGINS - 1} 1 1 2 2 3x{MINUTES - BEGINS - 4}"),
    ),
    "a task kills workers that three hosts recover, one each": (
        {"LockRunsDie"},
        BEGINS + 5,
        {
            **workers("w", recovered=once("0", "1")),
            **workers("x", recovered=once("0", "1")),
            **workers("y", given_up=once("0", "1")),
        },
    ),
    "a task kills three workers that count nothing": (
        {"LockRunsDie"},
        BEGINS + 8,
        exporter("a", dead_holders=f"0x{BEGINS - 1} 1 0 0 1 0 0 1 0x{MINUTES - BEGINS - 7}"),
    ),
    "a lease is lost": ({"LockNotKept"}, BEGINS + 3, workers(lost=once("0", "1"))),
    "a body hangs, and the line grows": (
        {"LineGrows", "TaskWaitsLong"},
        LATE,
        exporter(
            "a",
            **dict.fromkeys(("waiting_tasks", "longest_line_tasks"), lasting("5", "0+60")),
            oldest_wait_seconds=lasting("60", "60+60"),
        ),
    ),
    "a pause that is forgotten": ({"LockPaused"}, LATE, exporter("a", paused_keys=lasting("0", "1"))),
    "a pause without waiting tasks": (
        set(),
        LATE,
        exporter("a", paused_keys=lasting("0", "1"), waiting_tasks="0x240"),
    ),
    "a damaged key": ({"LockDamaged"}, LATE, exporter("a", damaged_keys=lasting("0", "1"))),
}


def promtool() -> str:
    program = shutil.which("promtool", path=PLACES)
    if program is None:
        pytest.skip("no promtool here: install prometheus")
    return program


@pytest.mark.promise(
    "Each alert fires in its incident alone, and ends with it: a store that is down, full or has lost its "
    "data, an exporter that is gone, no worker, runs that die, lost leases, a forgotten pause, a line that "
    "grows, a damaged key",
    name="alerts in incidents",
    broke="absent() alone of two exporters; a sweep without queued keys; increase without a zero: each red",
)
def test_each_alert_fires_in_its_incident_and_ends_with_it(tmp_path: Path):
    rules = [
        rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    ]
    assert set().union(*(alerts for alerts, _, _ in INCIDENTS.values())) == {*rules}
    tests = [
        {
            "name": name,
            "interval": "1m",
            "input_series": [
                {"series": series, "values": values}
                for series, values in {**exporter("a"), **exporter("b"), **workers(), **changed}.items()
            ],
            "promql_expr_test": [
                firing(set(), BEGINS - 1), firing(alerts, minute), firing(set(), MINUTES - 1)
            ],
        }
        for name, (alerts, minute, changed) in INCIDENTS.items()
    ]  # fmt: skip
    told = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "incidents.yml").write_text(json.dumps(told))
    done = subprocess.run(
        [promtool(), "test", "rules", tmp_path / "incidents.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def firing(alerts: set[str], minute: int) -> dict[str, Any]:
    return {
        "expr": 'group by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": f"{minute}m",
        "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(alerts)],
    }


@pytest.mark.proves("alerts in incidents")
def test_promtool_finds_no_fault_in_the_rules():
    for options in ((), ("--lint=all", "--lint-fatal")):
        done = subprocess.run(
            [promtool(), "check", "rules", *options, RULES], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.promise(
    "A command that an alert names has no label in it, so nothing that others wrote is pasted into a shell",
    broke="ls --task {{ $labels.task }}: red",
)
def test_no_alert_names_a_command_with_a_label():
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            assert "{{" not in rule["annotations"]["description"], rule
