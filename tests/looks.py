"""How often a test looks whether something has happened."""

from __future__ import annotations

import time
from collections.abc import Iterator


def looks(seconds: float) -> Iterator[None]:
    """Yield at once, and for so many seconds again: the longer it takes, the less often.

    Ten that look cost what they wait for its time.
    """
    deadline, pause = time.monotonic() + seconds, 0.005
    yield
    while time.monotonic() <= deadline:
        time.sleep(pause)
        pause = min(1.2 * pause, 0.05)
        yield
