"""The key of a call: of ordinary arguments, and of as many as there may be."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from functools import partial
from typing import Any

from bench.clock import table, timed
from celery_exclusive import Exclusive
from celery_exclusive.options.canonical import MOST_CHARACTERS
from celery_exclusive.options.keys import key_of

URL = "https://planet.example/rss"
VALUES = 4_999
CALLS: dict[str, tuple[Exclusive, Any]] = {
    "the whole task": (Exclusive(), URL),
    "by one argument": (Exclusive("url"), URL),
    "by all arguments": (Exclusive("*"), URL),
    "by a template": (Exclusive(key="feed:{url}"), URL),
}
LARGEST: dict[str, Any] = {
    "a list of numbers": list(range(VALUES)),
    "a list of times": [datetime.now(timezone.utc)] * VALUES,
    "a list of empty dicts": [{}] * VALUES,
    "a list of dates as kombu writes them": [{"__type__": "date", "__value__": "2026-01-05"}] * VALUES,
    "a dict": {f"{number:090}": None for number in range(VALUES)},
    "texts with halves of characters": ["\ud83d\ude00" * (MOST_CHARACTERS // VALUES // 2 - 1)] * VALUES,
}


def load(url: Any, full: str = "", depth: int = 1) -> None: ...


def run() -> None:
    calls = {
        name: partial(key_of, "feeds.load", load, option, (value,), {})
        for name, (option, value) in CALLS.items()
    }
    table("the key of a call", timed(calls))
    print("the key of a call with as many values, or characters, as there may be")
    for name, value in LARGEST.items():
        print(f"  {name:<58} {_slowest(value):8.1f} ms")


def _slowest(value: Any) -> float:
    """Milliseconds of the processor, the longest of twenty."""
    times = []
    for _ in range(20):
        began = time.process_time()
        key_of("feeds.load", load, Exclusive("*"), (value,), {})
        times.append(time.process_time() - began)
    return max(times) * 1e3
