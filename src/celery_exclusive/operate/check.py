"""A finding of the examination of an installation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Check:
    """A finding about one part of the installation.

    * `level`: "ok", "warning" (should be mended) or "problem" (a promise is broken, or tasks stand still).
    * `fix`: the next step; "" if there is none, or if the finding names it.
    * `is_away`: the store does not answer.
    """

    name: str
    level: Level
    finding: str
    fix: str = ""
    is_away: bool = False
