"""`python -m tests.explorer [--large]`: how many worlds there are, and how each planted fault is found."""

from __future__ import annotations

import sys

from tests.explorer.explore import explore
from tests.explorer.settings import CONTROLS, LARGE, SETTINGS


def main() -> int:
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
    return int(broken)


sys.exit(main())
