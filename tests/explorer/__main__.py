"""`python -m tests.explorer [--large]`: how many worlds there are, and how each planted fault is found."""

from __future__ import annotations

import sys

from tests.explorer.explore import explore, search
from tests.explorer.messages import controls, settings
from tests.explorer.messages.model import Model
from tests.explorer.settings import CONTROLS, LARGE, SETTINGS


def main() -> int:
    is_step_broken, is_life_broken = steps(), messages()
    return int(is_step_broken or is_life_broken)


def steps() -> bool:
    """Explore the worlds of `step`, and tell whether anything is wrong."""
    broken = False
    for setting in (*SETTINGS, *(LARGE if "--large" in sys.argv else ())):
        explored = explore(setting)
        broken = broken or bool(explored.broken)
        sys.stdout.write(f"{explored}\n")
        sys.stdout.flush()
    for name, (setting, protocol) in CONTROLS.items():
        explored = explore(setting, protocol)
        broken = broken or not explored.broken
        sys.stdout.write(f"\nplanted: {name}\n{explored}\n")
    return broken


def messages() -> bool:
    """Explore the worlds of messages, and tell whether anything is wrong."""
    broken = False
    for setting in (*settings.SETTINGS, *(settings.LARGE if "--large" in sys.argv else ())):
        explored = search(Model(setting))
        broken = broken or bool(explored.broken)
        sys.stdout.write(f"{explored}\n")
        sys.stdout.flush()
    for name, control in controls.CONTROLS.items():
        explored = control.explore()
        broken = broken or control.finds not in explored.broken
        sys.stdout.write(f"\nplanted: {name}\n{explored}\n")
    return broken


sys.exit(main())
