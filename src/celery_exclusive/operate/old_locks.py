"""Counts the locks of other packages that a migration has left behind: they refuse calls of old releases."""

from __future__ import annotations

from collections import Counter
from contextlib import closing, suppress
from typing import Any, Final

from celery_exclusive.brokers import scheme

_PATTERNS: Final = {
    "celery-once": "qo_*",
    "celery-singleton": "SINGLETONLOCK_*",
    "celery-heimdall": "h-lock:*",
}
_AT_ONCE: Final = 1000
_ROUNDS: Final = 100
"""The most requests for each package: a Redis may have millions of names."""
_PATIENCE: Final = 2.0


def old_locks(conf: Any) -> Counter[str]:
    """Return how many locks each package has, in the Redis of the broker, of results, and of celery-once.

    Among many names some may be left out. A Redis that does not answer has none.
    """
    found = Counter[str]()
    with suppress(ImportError):
        from redis import Redis, RedisError

        once = (conf.get("ONCE") or {}).get("settings", {}).get("url")
        for url in {it for it in (conf.broker_url, conf.result_backend, once) if isinstance(it, str)}:
            if scheme(url) not in ("redis", "rediss"):
                continue
            with suppress(RedisError, ValueError, TypeError):
                redis = Redis.from_url(url, socket_timeout=_PATIENCE, socket_connect_timeout=_PATIENCE)
                with closing(redis) as client:
                    for package, pattern in _PATTERNS.items():
                        found[package] += _count(client, pattern)
    return +found


def _count(client: Any, pattern: str) -> int:
    cursor, count = 0, 0
    for _ in range(_ROUNDS):
        cursor, names = client.scan(cursor, match=pattern, count=_AT_ONCE)
        count += len(names)
        if not cursor:
            break
    return count
