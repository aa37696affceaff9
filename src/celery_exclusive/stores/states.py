"""The states of many keys."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from celery_exclusive.stores.base import Snapshot, Store

_AT_ONCE = 100


def states(store: Store, keys: Collection[str]) -> Iterator[tuple[str, Snapshot]]:
    """Yield these keys in order, each with its state. One request looks at a hundred keys."""
    ordered = sorted(keys)
    for first in range(0, len(ordered), _AT_ONCE):
        batch = ordered[first : first + _AT_ONCE]
        yield from zip(batch, store.inspect_all(batch), strict=True)
