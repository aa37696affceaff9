"""Protects a release from the signal of a soft time limit."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from celery_exclusive.seams.python import set_signal_handler
from celery_exclusive.system.threads import is_green

SOFT_LIMIT = getattr(signal, "SIGUSR1", None)
"""The signal of a soft time limit. Windows has none."""


class without_soft_limit:  # noqa: N801 - callers read it as a function
    """Ignore a soft time limit within the block, since the body that it limits has ended.

    The handler is replaced: a masked signal may come in another thread, but its handler runs in the main one.
    """

    _before: Any = None

    def __enter__(self) -> None:
        if SOFT_LIMIT is None or is_green():
            return
        try:
            # Not SIG_IGN: programs that start here would inherit it.
            self._before = set_signal_handler(SOFT_LIMIT, _ignore)
        except ValueError:  # this is not the main thread
            return

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            set_signal_handler(SOFT_LIMIT, self._before)


when_ignored: list[Callable[[], object]] = []
"""What is called for each signal that is ignored."""


def _ignore(*_: object) -> None:
    for call in when_ignored:
        call()
