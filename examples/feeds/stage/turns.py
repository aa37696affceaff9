"""A moment without traffic: producers submit in shared turns, the runner asks for one of its own."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from . import journal


@contextmanager
def submitting() -> Iterator[None]:
    """Submit inside; other producers may, too."""
    with _file() as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield


@contextmanager
def quiet() -> Iterator[bool]:
    """Keep producers from submitting within the block; yield False if one is submitting right now."""
    with _file() as descriptor:
        is_quiet = False
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_quiet = True
        yield is_quiet


@contextmanager
def _file() -> Iterator[int]:
    descriptor = os.open(os.environ[journal.VARIABLE] + ".turn", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
