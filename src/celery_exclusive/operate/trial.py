"""Tries whether a store grants locks."""

from __future__ import annotations

from secrets import token_hex
from typing import TYPE_CHECKING, Final

from celery_exclusive.core.operations import Acquire, Release
from celery_exclusive.core.records import SECOND
from celery_exclusive.options.key_text import absolute_key

if TYPE_CHECKING:
    from celery_exclusive.stores.base import Store

_TTL: Final = 5 * SECOND


def try_lock(store: Store) -> None:
    """Acquire a lock of its own, and release it. StoreError: the store is down, full, or refuses to write."""
    key, id, token = absolute_key(f"celery-exclusive trial {token_hex(4)}"), "trial/0", "0" * 16
    store.apply(key, Acquire(id, token, _TTL))
    store.apply(key, Release(id, token, "open"))
