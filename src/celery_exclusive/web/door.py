"""The memory of a page: the sessions that have ended, and the addresses that have shown wrong tokens."""

from __future__ import annotations

import time
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from typing import Final

LASTS: Final = 12 * 3_600
"""The seconds after which a visitor has to sign in again."""
TRIES: Final = 10
"""The wrong tokens of an address after which it has to pause."""
PAUSE: Final = 60
"""The seconds that a pause takes after the last wrong token."""
_MOST_ADDRESSES: Final = 1_000


class Door:
    """Remembers it in this process alone. Addresses of IPv6 count by the 64 bits that a visitor has."""

    def __init__(self) -> None:
        self._ended: dict[str, float] = {}
        self._wrong: dict[str, tuple[int, float]] = {}

    def end(self, session: str) -> None:
        """End a session, also for those that have a copy of its cookie."""
        now = time.monotonic()
        self._ended = {each: until for each, until in self._ended.items() if until > now}
        self._ended[session] = now + LASTS

    def has_ended(self, session: str) -> bool:
        return session in self._ended

    def note_wrong_token(self, address: str) -> None:
        visitor = _visitor(address)
        tries, at = self._wrong.pop(visitor, (0, 0.0))
        if len(self._wrong) >= _MOST_ADDRESSES:
            self._wrong.pop(next(iter(self._wrong)))
        now = time.monotonic()
        self._wrong[visitor] = (tries + 1 if now - at < PAUSE else 1, now)

    def is_closed_to(self, address: str) -> bool:
        """Whether an address has to pause. What it shows meanwhile is not looked at."""
        tries, at = self._wrong.get(_visitor(address), (0, 0.0))
        return tries >= TRIES and time.monotonic() - at < PAUSE


def _visitor(address: str) -> str:
    """Return what all addresses of a visitor have in common. A proxy may have sent any text."""
    with suppress(ValueError):
        ip = ip_address(address)
        if isinstance(ip, IPv6Address):
            return str(ip.ipv4_mapped or ip.packed[:8].hex())
    return address
