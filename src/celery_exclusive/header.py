"""What travels with a message of ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from typing import Any

HEADER = "exclusive"
DELIVERY = "exclusive_delivery"
"""Where a worker hands a delivery to its child within the request; never published."""
VERSION = 1
_TYPES: dict[str, Any] = {
    "id": str,
    **dict.fromkeys(("x", "dup", "promoted", "next", "store", "rejections"), str | None),
    **dict.fromkeys(("u", "off"), (list, tuple)),
    "values": dict,
    "redelivered": bool,
    "prio": int | None,
    "tries": int,
    "since": float | None,
}


@dataclass(frozen=True, slots=True)
class Header:
    """What travels with a message; headers survive redelivery and parking.

    `id` is the publish id. `x` is the key of its lock, `u` that of its unique lease and what ends it; None:
    the publisher knows of no such option. `off` names the options that the call has switched off, `values`
    has those that it has given instead, `dup` the task that had the unique lease already. `promoted` is the
    epoch of the store if this is the copy of an offer, `next` the task whose end has published it, which may
    still hold its own lease: it is a chain's next step, a link, a chord's body; `store` the mark of the store
    that the publisher looks into, None: it does not know; `prio` the priority that the publisher gave, where
    a promoted copy has one above all others; `redelivered` that the broker had delivered it before it was
    parked; `tries` how often it was rescheduled, `since` when it found its key taken for the first time, in
    seconds since 1970. `rejections` says how often it had come back through a dead-letter exchange when it
    was published.
    """

    id: str
    x: str | None = None
    u: tuple[str, str] | None = None
    off: tuple[str, ...] = ()
    values: dict[str, dict[str, Any]] = field(default_factory=dict)
    dup: str | None = None
    promoted: str | None = None
    next: str | None = None
    store: str | None = None
    prio: int | None = None
    redelivered: bool = False
    tries: int = 0
    since: float | None = None
    rejections: str | None = None

    @classmethod
    def read(cls, headers: dict[str, Any]) -> Header | None:
        """Read it from a message; None if there is none that this version understands."""
        header: Any = headers.get(HEADER)
        if not isinstance(header, dict) or header.get("v") != VERSION:
            return None
        found = {name: value for name, value in header.items() if isinstance(value, _TYPES.get(name, ()))}
        if "id" not in found or not isinstance(header.get("promoted"), str | None):
            return None
        for name, length in (("u", {2}), ("off", range(3))):
            texts = tuple(text for text in found.pop(name, ()) if isinstance(text, str))
            if texts and len(texts) in length:
                found[name] = texts
        return cls(**found)

    def reborn(self, rejections: str) -> Header:
        """The same message in the life that it has since these rejections: no copy of the one before."""
        id = _digest(self.id, rejections)
        return replace(
            self, id=id, promoted=None, redelivered=False, tries=0, since=None, rejections=rejections
        )

    def claim_id(self, task_id: str) -> str:
        """What this message of a task is called in the store."""
        return f"{task_id}/{self.id}"

    def write(self) -> dict[str, Any]:
        return {"v": VERSION, **asdict(self)}


def rejections(headers: Mapping[str, Any]) -> str | None:
    """Tell apart how often a message was rejected and came back through a dead-letter exchange; None: never.

    A message that merely ran out in a queue, as those that RabbitMQ delays for Celery, is still the same one.
    """
    deaths = headers.get("x-death")
    found = [
        tuple(str(death.get(name)) for name in ("queue", "count", "time"))
        for death in (deaths if isinstance(deaths, list) else ())
        if isinstance(death, dict) and death.get("reason") == "rejected"
    ]
    return _digest(*map(repr, sorted(found))) if found else None


def _digest(*texts: str) -> str:
    return blake2b("\n".join(texts).encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
