"""Play the rows with the systems, and write the page: `python -m bench.compare once --row child`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

from bench.compare import environment, rate, speed
from bench.compare.rows import ROWS
from bench.compare.stage import Stage
from bench.compare.system import NAMES, ONLY_RATED, RATED, System, load
from bench.compare.verdicts import Verdicts

_KEEPING = Lock()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    names = (*NAMES, *ONLY_RATED)
    parser.add_argument("systems", nargs="*", choices=[[], *names], metavar="system", help=", ".join(names))
    parser.add_argument("--row", action="append", choices=ROWS, help="only this row; may be repeated")
    parser.add_argument("--jobs", type=int, default=2, help="how many systems are played at the same time")
    parser.add_argument("--environments", type=Path, help="keep the environments here, for the next time")
    parser.add_argument("--page", action="store_true", help="only write the page from verdicts.json")
    parser.add_argument("--speed", action="store_true", help="measure speed instead, on a quiet machine")
    parser.add_argument("--rate", action="store_true", help="measure a rate over four workers instead")
    parser.add_argument("--load", action="append", choices=speed.LOADS, help="only this load of --speed")
    asked = parser.parse_args()
    if not {*asked.systems} <= {*(known := RATED if asked.rate else NAMES)}:
        parser.error(f"these can be measured: {', '.join(known)}")
    kept = Verdicts()
    if asked.rate:
        with TemporaryDirectory(prefix="compare-") as folder:
            for system in map(load, asked.systems or RATED):
                measure_rate(kept, system, asked.environments or Path(folder))
    elif asked.speed:
        with TemporaryDirectory(prefix="compare-") as folder:
            for system in map(load, asked.systems or NAMES):
                measure(asked.load or list(speed.LOADS), kept, system, asked.environments or Path(folder))
    elif not asked.page:
        with TemporaryDirectory(prefix="compare-") as folder, ThreadPoolExecutor(asked.jobs) as pool:
            run = partial(play_all, asked.row or list(ROWS), kept, asked.environments or Path(folder))
            list(pool.map(run, map(load, asked.systems or NAMES)))
    kept.write()


def play_all(rows: list[str], kept: Verdicts, folder: Path, system: System) -> None:
    """Play these rows with one system."""
    python = environment.make(system, folder)

    def play(row: str, setting: dict[str, Any]) -> str:
        with Stage(system, python, **setting) as stage:
            return ROWS[row].play(stage)

    keep_each(system, [(row, it) for row in rows for it in settings_of(row, system)], play, kept)


def measure(loads: list[str], kept: Verdicts, system: System, folder: Path) -> None:
    """Measure one system."""
    wanted = [name for name in speed.loads_of(system) if name in loads]
    settings = [(name, it) for name in wanted for it in speed.settings_of(system, speed.LOADS[name])]
    keep_each(system, settings, partial(speed.run, system, environment.make(system, folder)), kept)


def measure_rate(kept: Verdicts, system: System, folder: Path) -> None:
    """Measure how one system keeps a rate."""
    python = environment.make(system, folder)
    settings = [(rate.ROW, setting) for setting in rate.settings_of(system)]
    keep_each(system, settings, lambda _, setting: rate.run(system, python, setting), kept)


def keep_each(
    system: System,
    settings: list[tuple[str, dict[str, Any]]],
    run: Callable[[str, dict[str, Any]], str | speed.Figures | rate.Rated],
    kept: Verdicts,
) -> None:
    """Run each row or load with its setting. One that fails leaves its verdict as it was, and says so."""
    for name, setting in settings:
        began = time.monotonic()
        try:
            verdict = run(name, setting)
        except Exception as error:  # noqa: BLE001 - the others go on
            print(f"{system.name} {name} {setting}: NOT RUN: {type(error).__name__}: {error}", flush=True)
            continue
        print(f"{system.name} {name} {setting}: {verdict} [{time.monotonic() - began:.0f} s]", flush=True)
        with _KEEPING:
            kept.add(system, name, setting, verdict)


def settings_of(row: str, system: System) -> list[dict[str, Any]]:
    """Return the settings with which a row is played: none that the system lacks."""
    settings: tuple[dict[str, Any], ...] = () if row in system.lacks else ROWS[row].SETTINGS
    by_default = [setting for setting in settings if not setting.get("is_tuned")]
    return [*settings] if system.tuned or not by_default else by_default


if __name__ == "__main__":
    main()
