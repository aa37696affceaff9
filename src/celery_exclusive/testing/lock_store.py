"""The store of one test: in memory, empty, with a clock that only the test moves."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from typing import Any
from uuid import uuid4

from celery_exclusive.core.operations import Acquire, Granted, Release
from celery_exclusive.core.records import SECOND
from celery_exclusive.core.room import Share
from celery_exclusive.options.declared import Exclusive
from celery_exclusive.options.key_text import absolute_key
from celery_exclusive.options.keys import share_of
from celery_exclusive.options.values import option_of_call
from celery_exclusive.stores.base import Snapshot
from celery_exclusive.stores.memory import MemoryStore

__all__ = ["LockStore"]

_numbers = count()


class LockStore(MemoryStore):
    """The value of the `lock_store` fixture: the store of all locks of a test, and its clock.

    Example:
        def test_a_feed_that_is_being_imported_is_skipped(lock_store):
            with lock_store.held(import_feed, "https://planet.example/rss"):
                assert import_feed.delay("https://planet.example/rss").result["skipped"]
                lock_store.advance(31)      # its worker is dead for longer than ttl
                assert import_feed.delay("https://planet.example/rss").result == "imported"
    """

    def __init__(self) -> None:
        super().__init__(f"memory://{uuid4()}")  # no other store of the process has this URL
        self._now = 1_700_000_000 * SECOND
        self.clock = lambda: self._now

    def advance(self, seconds: float) -> None:
        """Move the clock forward: no lease is renewed meanwhile, and those that expire end.

        Parameters:
            seconds: how far, from 0.
        """
        if seconds < 0:
            raise ValueError(f"advance({seconds}): a store's clock does not go back")
        self._now += round(seconds * SECOND)
        self.reap()

    @contextmanager
    def held(self, what: Any, *args: Any, **kwargs: Any) -> Generator[None]:
        """Let another owner hold a lock: of a task with these arguments, or of a string as for `lock(text)`.

        The end of the block releases it; without that it expires when the clock has moved by 30 seconds. Each
        block holds one slot, of a task with `per=` also one of its part: four nested blocks hold all slots of
        a task with `limit=4`, and four blocks `held(text, limit=4)` all slots of a `lock(text, limit=4)`.

        Raises:
            AssertionError: it is held already, as often as its limit allows.
        """
        key = _key(what, args, kwargs)
        limit = kwargs.get("limit", 1) if isinstance(what, str) else _limit(what)
        share = Share() if isinstance(what, str) else _share(what, args, kwargs)
        id, token = f"another-owner-{next(_numbers)}/0", "0" * 16
        reply = self.apply(key, Acquire(id, token, 30 * SECOND, limit, **share.fields))
        assert isinstance(reply.answer, Granted), f"lock {key} is held already: {reply.answer}"
        try:
            yield
        finally:
            self.apply(key, Release(id, token))

    def look(self, what: Any, *args: Any, **kwargs: Any) -> Snapshot:
        """Return the state of such a lock: its holders, and the number of waiting tasks."""
        return self.inspect(_key(what, args, kwargs))


def _key(what: Any, args: Any, kwargs: Any) -> str:
    return absolute_key(what) if isinstance(what, str) else what.lock_state(*args, **kwargs).key


def _share(task: Any, args: Any, kwargs: Any) -> Share:
    """Return one slot of the part of a call, which counts at no rate."""
    exclusive = option_of_call(task, Exclusive)
    share = share_of(task.name, task.run, exclusive, args, kwargs) if exclusive else Share()
    return share._replace(cost=1, rates=())


def _limit(task: Any) -> int:
    exclusive = option_of_call(task, Exclusive)
    return exclusive.most if exclusive else 1
