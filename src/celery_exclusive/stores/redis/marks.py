"""The epoch of a store in buckets, each of which has a mark of its own."""

from __future__ import annotations

from hashlib import sha1

from celery_exclusive.stores.redis.slots import BUCKETS


class Marks:
    """The marks of all buckets, as they were last seen.

    A node that has lost its data has new marks, and so there is a new epoch.
    """

    def __init__(self) -> None:
        self._marks = [""] * BUCKETS

    def note(self, bucket: int, mark: str) -> None:
        self._marks[bucket] = mark

    def __getitem__(self, bucket: int) -> str:
        return self._marks[bucket]

    @property
    def epoch(self) -> str:
        """The epoch of the store, made of all marks; "" while a mark is unknown."""
        if not all(self._marks):
            return ""
        return sha1(" ".join(self._marks).encode(), usedforsecurity=False).hexdigest()[:16]
