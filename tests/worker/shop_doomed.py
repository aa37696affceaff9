"""The shop, in a worker that dies when it has just parked a task and has not acknowledged it yet."""

from __future__ import annotations

import logging
import os
import signal

from tests.worker.shop_arrived import app

__all__ = ["app"]


class _Death(logging.Filter):
    """The library says in the child that a task is parked; its main process does not know it yet."""

    def filter(self, record: logging.LogRecord) -> bool:
        if " parked: " in record.getMessage():
            os.kill(os.getppid(), signal.SIGKILL)
            signal.pause()  # the child dies with it
        return True


logging.getLogger("celery_exclusive").addFilter(_Death())
