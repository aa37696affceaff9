"""The conformance kit: a store that passes keeps the promises of the library.

Example:
    import pytest
    from celery_exclusive.stores.base import Store, open_store
    from celery_exclusive.testing.conformance import StoreConformance

    class TestMyStore(StoreConformance):
        @pytest.fixture(autouse=True)
        def server(self, my_server):
            self.url = my_server.url

        def make_store(self, *, prefix: str, offer: float, tombstone_ttl: float) -> Store:
            return open_store(self.url, prefix=prefix, offer=offer, tombstone_ttl=tombstone_ttl)

It needs pytest and speaks only the `Store` protocol, in real time. Every test has a namespace of its own,
so the store need not be emptied in between; waits have generous deadlines, and nothing must be fast.
Promises that the store's capabilities exclude are skipped, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence

from celery_exclusive.stores.base import Store
from celery_exclusive.testing.promises.amounts import AmountPromises
from celery_exclusive.testing.promises.copies import CopyPromises
from celery_exclusive.testing.promises.exclusion import ExclusionPromises
from celery_exclusive.testing.promises.offers import OfferPromises
from celery_exclusive.testing.promises.ownership import FencePromises, OwnershipPromises, RepeatPromises
from celery_exclusive.testing.promises.owning import OwningPromises
from celery_exclusive.testing.promises.sharing import SharingPromises
from celery_exclusive.testing.promises.upkeep import LookPromises, NamePromises, UpkeepPromises
from celery_exclusive.testing.promises.waiting import RemovePromises, WaitingPromises

__all__ = ["StoreConformance"]


class StoreConformance(
    ExclusionPromises,
    OwnershipPromises,
    FencePromises,
    RepeatPromises,
    OwningPromises,
    WaitingPromises,
    RemovePromises,
    CopyPromises,
    OfferPromises,
    LookPromises,
    NamePromises,
    UpkeepPromises,
    AmountPromises,
    SharingPromises,
):
    """Every promise that a store can keep, one test each. Subclass it and say how to open the store."""

    is_shared_by_processes: bool = True
    """False for a store in the memory of one process: skips the tests that fork."""

    def make_store(self, *, prefix: str, offer: float, tombstone_ttl: float) -> Store:
        """Open a new client of the same store. Required.

        Parameters:
            prefix: the namespace.
            offer: seconds of the first offer of a free place to the head of the line.
            tombstone_ttl: seconds for which a finished task that had waited is remembered.
        """
        return super().make_store(prefix=prefix, offer=offer, tombstone_ttl=tombstone_ttl)

    def lose_data(self) -> None:
        """Make the store lose all its data. Without it these tests are skipped."""
        super().lose_data()

    def unreachable_store(self) -> Store:
        """Open a client of a store that does not exist. Without it these tests are skipped."""
        return super().unreachable_store()

    def kept_for_ever(self, prefix: str) -> Sequence[str]:
        """Return the names in the namespace that would never expire, besides one fence mark and the epoch.

        It is called when everything has finished; by default it returns none.
        """
        return super().kept_for_ever(prefix)
