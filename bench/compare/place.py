"""The settings of one scene, for the host and for the processes of a system."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Place:
    """The server, the folder of the journal, and the settings of one scene."""

    url: str
    """The Redis or the PostgreSQL that the system uses."""
    folder: str
    """Where the bodies write their journal, and look for the doors that let them end."""
    is_tuned: bool = False
    """Whether the system runs with its sensible setting, not by its defaults alone."""
    slots: int = 2
    """How many tasks the worker runs at the same time."""
    timeout: int = 0
    """Seconds after which the lock expires; 0 means the system's default."""
    is_bare: bool = False
    """Whether the task is declared without a lock."""
    rate: int = 0
    """Starts of a key in any second, in place of a lock; 0 means a lock."""
    redelivery: int = 0
    """Seconds after which an unfinished message is delivered again; 0 means the system's default."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Place:
        return cls(**json.loads(text))
