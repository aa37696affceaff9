"""A finding of the examination of an installation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Check:
    """A finding: "ok", "warning" (should be mended) or "problem" (a promise is broken, or tasks stand still).

    `fix`: "" also if the finding names the next step. `is_away`: the store does not answer.
    """

    name: str
    level: Level
    finding: str
    fix: str = ""
    is_away: bool = False
