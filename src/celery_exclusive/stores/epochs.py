"""Epochs: the string that identifies a store's data, of the second at which the data began, and of chance."""

from __future__ import annotations

import re
import time
from os import urandom

_EPOCH = re.compile("([0-9a-f]{8})[0-9a-f]{8}")


def new_epoch() -> str:
    """Return an epoch that no other store has had, of this second by the clock of this host."""
    return f"{int(time.time()):08x}{urandom(4).hex()}"


def began_at(epoch: str) -> int:
    """Return the second since 1970 at which the data of an epoch began; 0 if another program has made it."""
    found = _EPOCH.fullmatch(epoch)
    return int(found[1], 16) if found else 0
