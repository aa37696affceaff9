"""A private name of another package, and the parts of this library that need such names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Part = Literal["relay", "slots", "kept client", "one call", "head of the queue", "signals", "TLS"]
"""A part of this library that only makes things faster, and that can be switched off."""

PARTS: Final[dict[Part, str]] = {
    "relay": "handing the next message on within a worker",
    "slots": "choosing which waiting request gets a free process",
    "kept client": "keeping one client of redis-py for each channel",
    "one call": "acquiring a unique key in the call that pushes the message",
    "head of the queue": "publishing to the head of a queue",
    "signals": "setting a signal handler without conversions",
    "TLS": "sharing a TLS context between connections",
}
"""What each part does."""
_PACKAGES: Final = {"_signal": "Python", "_thread": "Python", "django": "Django", "pymysql": "PyMySQL"}
"""The packages that have another name than their modules."""


@dataclass(frozen=True, slots=True)
class Seam:
    """A private name of another package.

    Parameters:
        module, name: where it is, such as "kombu.messaging" and "Producer._publish". An attribute that only
            objects have is found in the code of their class.
        since: the oldest release that has it.
        needed_to: completes "celery-exclusive needs it to ...", for a name that a promise depends on.
        parts: the parts that are switched off without it, for a name that only makes things faster.
        parameters: its first parameters after `self`, with spaces between: calls give them by place.
        uses: names that its code uses, where this library does a part of the same in its place.
        may_use: the other names that it may use then. Without any, it may use all others.
    """

    module: str
    name: str
    since: str
    needed_to: str = ""
    parts: tuple[Part, ...] = ()
    parameters: str = ""
    uses: str = ""
    may_use: str = ""

    @property
    def package(self) -> str:
        """The distribution that has it; "Python" for the standard library."""
        top = self.module.partition(".")[0]
        return _PACKAGES.get(top, top)
