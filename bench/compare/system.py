"""A system that takes part: what its adapter file says of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal

HERE = Path(__file__).parent
NAMES = (
    *("ours", "ours_unique", "once", "singleton", "heimdall", "redis_lock", "cookbook"),
    *("procrastinate", "dramatiq", "docket", "bullmq", "dbos"),
)
"""The adapters, in the order of the page."""
PATIENCE = 75.0
"""Seconds that a system has after a kill, unless it needs more by its own defaults."""
FAMILY = NAMES[:7]
"""Those whose tasks are Celery's."""
ONLY_RATED = ("rate_limit", "limits", "pyrate_limiter")
"""Adapters of what has a rate, and no lock: they take part in `rate.py` alone."""
RATED = ("ours", *ONLY_RATED, "heimdall", "docket", "dbos")
"""Those that have a rate, in the order of the page."""
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class System:
    """The declarations of an adapter file.

    `work(place)` runs a worker; `send(place, key, tag)` sends a call and returns "sent" or "refused: ...".
    `chord(place, key, tags)` exists where the system has chords.
    """

    name: str
    title: str
    server: Literal["redis", "postgres"]
    default: str
    """How a task is declared."""
    tuned: str
    """The sensible setting that comes on top; empty if none helps."""
    packages: tuple[str, ...]
    """Those whose versions the page names."""
    ready: str
    """What the log of a worker says when it is ready."""
    lacks: dict[str, str]
    """The rows that cannot be played, and why."""
    keys: str
    """The pattern of the locks' keys in Redis; empty if there are none."""
    received: str
    """What the log of a worker says of each message that it received; empty if it says nothing."""
    refuses: bool
    """Whether a duplicate is refused when it is called."""
    patience: float
    """Seconds after a kill in which the run and the next call may begin."""
    rate: str
    """How a task with a rate of ten a second is declared; empty if there is none."""

    @property
    def requirements(self) -> Path:
        return HERE / "requirements" / f"{self.name}.txt"

    def versions(self) -> dict[str, str]:
        """Return the pinned versions of the packages that the page names."""
        pins = dict(_PIN.findall(self.requirements.read_text()))
        return {name: pins[name] for name in self.packages}


def load(name: str) -> System:
    """Return what an adapter file declares; its packages are not imported."""
    module = import_module(f"bench.compare.systems.{name}")
    return System(
        name,
        module.TITLE,
        module.SERVER,
        module.DEFAULT,
        module.TUNED,
        module.PACKAGES,
        module.READY,
        module.LACKS,
        getattr(module, "KEYS", ""),
        getattr(module, "RECEIVED", ""),
        getattr(module, "REFUSES", False),
        getattr(module, "PATIENCE", PATIENCE),
        getattr(module, "RATE", ""),
    )
