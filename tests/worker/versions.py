"""What a test needs of Celery; what older ones need to be tested. support.md says what differs."""

from __future__ import annotations

import os
from typing import Any

import celery
import kombu
import pytest

# kombu before 5.7 cannot be told how often to look for lost messages on Redis.
SETTINGS: dict[str, Any] = {"imports": ["tests.worker.old_kombu"]} if kombu.VERSION[:2] < (5, 7) else {}


IS_FAST = os.environ.get("EXCLUSIVE_FAST") != "0"
"""Whether what only makes things faster is on: `make test-all` runs these tests without it once more."""
of_fast_part = pytest.mark.skipif(not IS_FAST, reason="what it tests only makes things faster, and is off")


def needs_celery(version: str, what: str) -> pytest.MarkDecorator:
    """Leave a test or a parameter out before this version: `@needs_celery("5.5", "soft shutdown")`."""
    return pytest.mark.skipif(_is_before(version), reason=_reason(version, what))


def leave_out_before(version: str, what: str) -> None:
    """The same from inside a test, where it is for one of its cases only."""
    if _is_before(version):
        pytest.skip(_reason(version, what))


def _is_before(version: str) -> bool:
    wanted = tuple(int(part) for part in version.split("."))
    installed: tuple[Any, ...] = celery.VERSION
    return installed[: len(wanted)] < wanted


def _reason(version: str, what: str) -> str:
    return f"needs Celery {version}: {what}"
