"""The capacity of one core of a server, calculated from measured costs: the tables of speed.md."""

from __future__ import annotations

import re

from bench.row import OURS, Row
from celery_exclusive.core.records import RENEWALS_PER_TTL

TTL = 30
TASKS = {"bare": "a bare task", OURS: "with `exclusive=`"}
WAITING = "bytes of Redis per waiting message of 600"
OF_TASKS = (
    "| no-op task, all in one Redis | us to publish | us to run | it carries | us of the worker |\n"
    "|---|---|---|---|---|\n"
)
OF_SERVERS = (
    "| locks in | us per acquire and release | one core carries | us per renewal | held at a ttl of 30 s |\n"
    "|---|---|---|---|---|\n"
)


def tables(rows: list[Row]) -> str:
    """Return the table of tasks on one Redis, and the table of the stores' servers."""
    notes = {name: number for row in rows for name, number in row.notes.items()}
    waiting = notes.get(WAITING, 0)
    return (
        f"{_of_tasks(notes)}\n{_of_servers(notes)}\n{WAITING[0].upper()}{WAITING[1:]}: {_rounded(waiting)}.\n"
    )


def _of_tasks(notes: dict[str, float]) -> str:
    table = OF_TASKS
    for who, what in TASKS.items():
        both = [notes.get(f"{who}, us of Redis{to_publish}") for to_publish in (" to publish", "")]
        known = [us for us in both if us]
        if len(known) == len(both):
            publish, run = known
            worker = notes[f"{who}, us of the worker"]
            table += f"| {what} | {publish:.0f} | {run:.0f} | {_a_second(publish + run)} | {worker:,.0f} |\n"
    return table


def _of_servers(notes: dict[str, float]) -> str:
    table = OF_SERVERS
    for server in re.findall(r"^(\w+), us per pair$", "\n".join(notes), re.MULTILINE):
        pair, renewal = notes[f"{server}, us per pair"], notes[f"{server}, us per renewed lease"]
        held = TTL / RENEWALS_PER_TTL * _per_second(renewal)
        table += f"| {server} | {pair:.0f} | {_a_second(pair)} | {renewal:.1f} | {_rounded(held)} |\n"
    return table


def _a_second(us: float) -> str:
    return f"{_rounded(_per_second(us))} a second"


def _per_second(us: float) -> float:
    return 1e6 / us if us else 0.0


def _rounded(number: float) -> str:
    """Return two digits of it: the rest is chance."""
    return f"{float(f'{number:.2g}'):,.0f}"
