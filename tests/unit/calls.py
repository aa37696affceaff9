"""How many Python functions something calls, which is the same on any machine."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable


def calls(do: Callable[[], object]) -> int:
    count = 0

    def note(_: object, event: str, __: object) -> None:
        nonlocal count
        count += event == "call"

    gc.collect()  # what the collector calls is of others
    gc.disable()
    sys.setprofile(note)
    try:
        do()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count
