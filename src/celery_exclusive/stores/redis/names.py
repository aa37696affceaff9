"""Lists the names of data on a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from celery_exclusive.stores.redis.client import Server


def literal(text: str) -> str:
    """Return a pattern that this text alone matches."""
    return "".join(f"\\{char}" if char in "*?[]^-\\" else char for char in text)


def names_like(server: Server, pattern: str) -> Iterator[bytes]:
    """Yield the names that match a pattern. What changes meanwhile may be missed, or come twice."""
    cursor: Any = 0
    while True:
        cursor, found = server.ask("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
        yield from found
        if int(cursor) == 0:
            return
