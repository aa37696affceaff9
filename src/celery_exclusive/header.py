"""What travels with a message of ours."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

HEADER = "exclusive"
DELIVERY = "exclusive_delivery"
"""Where a worker hands a delivery to its child within the request; never published."""
VERSION = 1
_TYPES: dict[str, Any] = {
    "id": str,
    **dict.fromkeys(("x", "promoted", "store"), str | None),
    **dict.fromkeys(("next", "redelivered"), bool),
    "prio": int | None,
    "tries": int,
    "since": float | None,
}


@dataclass(frozen=True, slots=True)
class Header:
    """What travels with a message; headers survive redelivery and parking.

    `id` is the publish id, `x` the key that was meant (None: the call switched its options off), `promoted`
    the epoch of the store if this is the copy of an offer, `next` that it was published by the end of a task
    that may still hold its own lease: a chain's next step, a link, a chord's body; `store` the mark of the
    store that the publisher looks into, None: it does not know; `prio` the priority that the publisher gave,
    where a promoted copy has one above all others; `redelivered` that the broker had delivered it before it
    was parked; `tries` how often it was rescheduled, `since` when it found its key taken for the first time,
    in seconds since 1970.
    """

    id: str
    x: str | None
    promoted: str | None = None
    next: bool = False
    store: str | None = None
    prio: int | None = None
    redelivered: bool = False
    tries: int = 0
    since: float | None = None

    @classmethod
    def read(cls, headers: dict[str, Any]) -> Header | None:
        """Read it from a message; None if there is none that this version understands."""
        header: Any = headers.get(HEADER)
        if not isinstance(header, dict) or header.get("v") != VERSION or "x" not in header:
            return None
        found = {name: value for name, value in header.items() if isinstance(value, _TYPES.get(name, ()))}
        if not {"id", "x"} <= found.keys() or not isinstance(header.get("promoted"), str | None):
            return None
        return cls(**found)

    def write(self) -> dict[str, Any]:
        return {"v": VERSION, **asdict(self)}
