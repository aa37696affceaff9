"""Delivers a message whose key is held again later, after longer and longer pauses with random jitter."""

from __future__ import annotations

import random
import time
from typing import Any

from celery.exceptions import Ignore
from celery.utils.functional import noop

from celery_exclusive.messages.header import HEADER, Header
from celery_exclusive.messages.stored import StoredMessage
from celery_exclusive.seams.celery_request import strategies_of

FIRST, LONGEST = 1, 60
"""Seconds: the delay doubles from one to the other. Random jitter shortens it by up to a half."""
_DOUBLINGS = 6


def next_try(
    stored: StoredMessage, give_up_after: float | None, opens_in: float | None = None
) -> tuple[StoredMessage, float] | None:
    """Return the copy to publish, and its delay in seconds. None: the time of `give_up_after` is over."""
    header = Header.of(stored.our_header)
    tries, since = (header.tries, header.since) if header else (0, None)
    now = time.time()
    since = since or now
    pause = min(FIRST * 2 ** min(tries, _DOUBLINGS), LONGEST) * random.uniform(0.5, 1)
    if opens_in is not None:
        pause = max(FIRST, min(opens_in, LONGEST))
    if give_up_after is not None:
        left = since + give_up_after - now
        if left <= 0:
            return None
        pause = min(pause, left)
    return stored.delayed(pause, tries=tries + 1, since=since), pause


class DeliverAgain(Ignore):
    """The ending of a delivery whose message only this worker has, and has to deliver again itself.

    A message to a fanout exchange of Redis reaches the workers that listen at that moment. It cannot be
    published again for one worker alone, and is lost with its worker, as in plain Celery.
    """


def deliver_again(consumer: Any, task: str, message: Any, ending: DeliverAgain) -> None:
    """Deliver an acknowledged message once more. Celery keeps it until its eta, without a worker slot."""
    message.headers[HEADER], message.headers["eta"] = ending.args
    consumer.call_soon(strategies_of(consumer)[task], message, None, noop, noop, ())
