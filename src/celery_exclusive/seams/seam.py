"""A private name of another package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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
        faster: completes "it helps to ...", for a name that only makes things faster.
        parameters: its first parameters after `self`, with spaces between: calls give them by place.
        uses: names that its code uses, where this library does a part of the same in its place.
        may_use: the other names that it may use then. Without any, it may use all others.
    """

    module: str
    name: str
    since: str
    needed_to: str = ""
    faster: str = ""
    parameters: str = ""
    uses: str = ""
    may_use: str = ""

    @property
    def package(self) -> str:
        """The distribution that has it; "Python" for the standard library."""
        top = self.module.partition(".")[0]
        return _PACKAGES.get(top, top)
