"""What tests ask a lease."""

from __future__ import annotations

from typing import Any

from celery_exclusive import LeaseLost


def is_lost(lease: Any) -> bool:
    """Whether its holder is told to stop."""
    try:
        lease.check()
    except LeaseLost:
        return True
    return False
