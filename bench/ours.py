"""The measured operations of this library: acquire and release of a free key, and a heartbeat."""

from __future__ import annotations

from collections.abc import Callable
from secrets import token_hex

from celery_exclusive.core.operations import Acquire, Release, Renew
from celery_exclusive.stores.base import Store

_TTL = 30_000_000


def pair(store: Store) -> None:
    token = token_hex(8)
    store.apply("bench", Acquire("task/1", token, _TTL))
    store.apply("bench", Release("task/1", token))


def renewals(store: Store, count: int) -> Callable[[], object]:
    """Hold so many leases, and return what renews all of them."""
    for number in range(count):
        store.apply(f"task/{number}", Acquire("bench", "token", _TTL * 100))
    leases = [(f"task/{number}", Renew("bench", "token", _TTL * 100)) for number in range(count)]
    return lambda: store.renew(leases)
