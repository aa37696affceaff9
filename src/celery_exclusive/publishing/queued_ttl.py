"""The time for which a queued message holds its unique key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_exclusive.brokers import drops_expired
from celery_exclusive.core.claim import PERIOD, UniqueUntil
from celery_exclusive.options.amounts import LONGEST, microseconds, no_longer_than, seconds_until

if TYPE_CHECKING:
    from celery_exclusive.options.declared import Unique
    from celery_exclusive.services import Services


def queued_ttl(services: Services, option: Unique | None, until: UniqueUntil, options: dict[str, Any]) -> int:
    """Return the ttl of a queued message's key: `queued_ttl` after its eta, but not beyond its expiry."""
    ttl = services.queued_ttl(option)
    eta, expires, delay = options.get("eta"), options.get("expires"), options.get("countdown") or 0
    if expires is None and "expiration" in options and drops_expired(services.app.conf):
        expires = options["expiration"]
    if until == PERIOD or (eta is None and expires is None and not delay):
        return ttl
    if eta is not None:
        delay = seconds_until(eta)
    ttl = min(ttl + microseconds(delay), microseconds(LONGEST))
    if expires is None:
        return ttl
    is_relative = isinstance(expires, (int, float))
    return no_longer_than(ttl, expires if is_relative else seconds_until(expires))
