"""The conformance kit: a store that passes keeps the promises of the library.

It speaks only the `Store` protocol, in real time. Every test has a namespace of its own, so the store need
not be emptied in between; waits have generous deadlines, and nothing must be fast. Promises that the store's
capabilities exclude are skipped, with the reason.
"""

from __future__ import annotations

from tests.kit.amounts import AmountPromises
from tests.kit.copies import CopyPromises
from tests.kit.ends import EndPromises
from tests.kit.exclusion import ExclusionPromises
from tests.kit.offers import OfferPromises
from tests.kit.order import OrderPromises
from tests.kit.ownership import FencePromises, OwnershipPromises, RepeatPromises
from tests.kit.owning import OwningPromises
from tests.kit.pages import PagePromises
from tests.kit.recall import RecallPromises
from tests.kit.recovery import RecoveryPromises
from tests.kit.sharing import SharingPromises
from tests.kit.upkeep import LookPromises, NamePromises, UpkeepPromises
from tests.kit.waiting import RemovePromises, WaitingPromises
from tests.kit.workers import WorkerPromises

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
