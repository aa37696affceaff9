"""What we measure against others: an acquire and a release of a free key."""

from __future__ import annotations

from secrets import token_hex

from celery_exclusive.core.operations import Acquire, Release
from celery_exclusive.stores.base import Store

_TTL = 30_000_000


def pair(store: Store) -> None:
    token = token_hex(8)
    store.apply("bench", Acquire("task/1", token, _TTL))
    store.apply("bench", Release("task/1", token))
