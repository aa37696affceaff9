"""Checks whether a process lives."""

from __future__ import annotations

import os


def is_gone(pid: int | None) -> bool:
    """Whether a child of this process has ended. Celery does not notice it while the broker is down."""
    if pid is None or pid == os.getpid() or not hasattr(os, "waitid"):
        return False
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True
