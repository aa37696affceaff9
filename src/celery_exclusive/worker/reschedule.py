"""When a message comes again that found its key taken: later and later, and no two at the same moment."""

from __future__ import annotations

import random
import time

from celery_exclusive.messages.header import HEADER, Header
from celery_exclusive.messages.stored import StoredMessage

FIRST, LONGEST = 1, 60
"""Seconds: the delay doubles from one to the other. By chance it is up to half as long."""
_DOUBLINGS = 6


def next_try(stored: StoredMessage, give_up_after: float | None) -> tuple[StoredMessage, float] | None:
    """The copy to send, and in how many seconds it comes. None: it has tried for as long as it may."""
    header = Header.of(stored.headers[HEADER])
    tries, since = (header.tries, header.since) if header else (0, None)
    now = time.time()
    since = since or now
    pause = min(FIRST * 2 ** min(tries, _DOUBLINGS), LONGEST) * random.uniform(0.5, 1)
    if give_up_after is not None:
        left = since + give_up_after - now
        if left <= 0:
            return None
        pause = min(pause, left)
    return stored.delayed(pause, tries=tries + 1, since=since), pause
