"""A call of a key with rates and with a cost, beside a plain one: `make bench ROWS=room`."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any

from bench.clock import one_processor, timed
from bench.holders import stores
from celery_exclusive.core.operations import Acquire, Release
from celery_exclusive.core.records import SECOND
from celery_exclusive.stores.base import Store

LIMIT = 1_000_000
DAY = 86_400 * SECOND
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "a rate, one grain": {"rates": ((1_000_000, DAY),)},
    "a rate, 33 grains": {"rates": ((1_000_000, SECOND),)},
    "both": {"rates": ((1_000_000, SECOND), (1_000_000, DAY))},
    "cost 3": {"cost": 3},
}


def run() -> None:
    print("a call of a key with a rate or a cost, and how many times a plain one that is:")
    with one_processor(), ExitStack() as stack:
        for name, store in stores(stack):
            if store.capabilities.line:
                figures = timed({way: partial(pair, store, way) for way in WAYS}, calls=80)
                plain = median(figures["plain"])
                shown = (
                    f"{way} {median(own):.0f} us ({median(own) / plain:.2f})" for way, own in figures.items()
                )
                print(f"  {name:<12} {'  '.join(shown)}", flush=True)


def pair(store: Store, way: str) -> None:
    store.apply(way, Acquire("task", "token", DAY, LIMIT, **WAYS[way]))
    store.apply(way, Release("task", "token"))
