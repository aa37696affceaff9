"""A message that only this worker has: while its lock is held, the worker delivers it to itself again.

Redis publishes to a fanout exchange for those who listen just then. Such a message cannot be published again
for one worker alone, and is lost with its worker, as in plain Celery.
"""

from __future__ import annotations

from typing import Any

from celery.exceptions import Ignore
from celery.utils.functional import noop

from celery_exclusive.messages.header import HEADER


class DeliverAgain(Ignore):
    """The ending of a delivery that is to come again: with this header of ours, and not before this time."""

    def __init__(self, header: dict[str, Any], eta: str) -> None:
        super().__init__(header, eta)
        self.header, self.eta = header, eta


def deliver_again(consumer: Any, task: str, message: Any, ending: DeliverAgain) -> None:
    """Deliver an acknowledged message once more: until its time has come Celery keeps it, in no slot."""
    message.headers.update({HEADER: ending.header, "eta": ending.eta})
    consumer.call_soon(consumer.strategies[task], message, None, noop, noop, ())
