"""Protects a release from the signal of a soft time limit."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from celery_exclusive.system.threads import is_green

_SOFT_LIMIT = getattr(signal, "SIGUSR1", None)
"""The signal of a soft time limit. Windows has none."""


@contextmanager
def undisturbed() -> Generator[None]:
    """Ignore a soft time limit within the block: the body that it was for has ended.

    A handler is replaced, not masked: a signal may come by any thread, and all run the handler here. In
    threads and greenlets there are no soft limits.
    """
    if _SOFT_LIMIT is None or is_green() or threading.current_thread() is not threading.main_thread():
        yield
        return
    # Not SIG_IGN, which programs that are started here would inherit.
    before: Any = signal.signal(_SOFT_LIMIT, _ignore)
    try:
        yield
    finally:
        signal.signal(_SOFT_LIMIT, before)


def _ignore(*_: object) -> None: ...
