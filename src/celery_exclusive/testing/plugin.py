"""The pytest plugin: the fixture for tests of tasks with options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from celery_exclusive.testing.lock_store import LockStore

__all__ = ["lock_store"]


@pytest.fixture
def lock_store(monkeypatch: pytest.MonkeyPatch) -> LockStore:
    """Keep the locks of all apps in memory for one test, and let eager tasks conflict as real ones do.

    Example:
        def test_a_feed_that_is_being_imported_is_skipped(lock_store):
            with lock_store.held(import_feed, "https://planet.example/rss"):
                assert import_feed.delay("https://planet.example/rss").result["skipped"]

    No server is used. The store's clock stands still until the test calls `lock_store.advance(seconds)`.
    """
    from celery_exclusive.services import Services
    from celery_exclusive.testing.lock_store import LockStore

    store = LockStore()
    monkeypatch.setattr(Services, "store", property(lambda _: store))
    monkeypatch.setattr(Services, "conflicts_when_eager", True)
    return store
