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

from celery_exclusive.testing.promises.amounts import AmountPromises
from celery_exclusive.testing.promises.copies import CopyPromises
from celery_exclusive.testing.promises.ends import EndPromises
from celery_exclusive.testing.promises.exclusion import ExclusionPromises
from celery_exclusive.testing.promises.offers import OfferPromises
from celery_exclusive.testing.promises.order import OrderPromises
from celery_exclusive.testing.promises.ownership import FencePromises, OwnershipPromises, RepeatPromises
from celery_exclusive.testing.promises.owning import OwningPromises
from celery_exclusive.testing.promises.pages import PagePromises
from celery_exclusive.testing.promises.recall import RecallPromises
from celery_exclusive.testing.promises.recovery import RecoveryPromises
from celery_exclusive.testing.promises.sharing import SharingPromises
from celery_exclusive.testing.promises.upkeep import LookPromises, NamePromises, UpkeepPromises
from celery_exclusive.testing.promises.waiting import RemovePromises, WaitingPromises
from celery_exclusive.testing.promises.workers import WorkerPromises

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
    RecoveryPromises,
    RecallPromises,
    OrderPromises,
    EndPromises,
    PagePromises,
    LookPromises,
    NamePromises,
    UpkeepPromises,
    AmountPromises,
    SharingPromises,
    WorkerPromises,
):
    """Every promise that a store can keep, one test each.

    Subclass it and say how to open the store, with `make_store`. `lose_data`, `unreachable_store`,
    `kept_for_ever` and `is_shared_by_processes` are for what not every store has; `Subject` describes them.
    """
