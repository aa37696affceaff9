"""Threads that share a store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from celery_exclusive.core.operations import Applied, Granted
from celery_exclusive.stores.base import Store
from tests.store.operations import give, take


def threads_hold_a_key_one_at_a_time(store: Store, times: int) -> None:
    """Four threads, each of which tries to acquire the same key so many times."""
    inside: set[str] = set()

    def work(name: str) -> int:
        granted = 0
        for _ in range(times):
            if isinstance(store.apply("key", take(name, message=None)).answer, Granted):
                assert not inside
                inside.add(name)
                granted += 1
                inside.remove(name)
                assert store.apply("key", give(name)).answer == Applied(True)
        return granted

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(work, "abcd")) > 0
