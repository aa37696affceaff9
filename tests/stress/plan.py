"""The plan of a stress run: fixed amounts of work and trouble, so that a slow machine only takes longer."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Literal

from celery_exclusive.stores.base import Store, open_store

Fault = Literal[
    "",
    "barge",
    "short leases",
    "park in two steps",
    "silent release",
    "no tombstones",
    "unfinished is done",
]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Durations in seconds, `lost_acks` and `unfinished` as parts of 1.

    `fault` breaks the workers or the store on purpose; the verdict must then be red. `meets`: each body lasts
    until the journal has this event of any delivery.
    """

    url: str
    directory: str = ""
    prefix: str = "stress"
    seed: int = 0
    tasks: int = 400
    keys: int = 4
    workers: int = 5
    kills: int = 0
    pauses: int = 0
    reaper: bool = False
    ttl: float = 600.0
    offer: float = 600.0
    body: float = 0.003
    pause: float = 0.0
    visibility: float = 600.0
    lost_acks: float = 0.03
    unfinished: float = 0.03
    fault: Fault = ""
    meets: str = ""
    deadline: float = 400.0

    def scaled(self, factor: float) -> Plan:
        """The same with so much more, or less, of everything but processes."""
        return replace(
            self,
            tasks=round(self.tasks * factor),
            kills=round(self.kills * factor),
            pauses=round(self.pauses * factor),
            deadline=self.deadline * max(1, factor),
        )

    def key(self, task: int) -> str:
        number = task % self.keys
        return f"{'trio' if number % 4 == 3 else 'solo'} {number}"

    def open_store(self) -> Store:
        if self.url.startswith("pickle:"):
            import_module("tests.stress.file_store")
        tombstones = 0.0 if self.fault == "no tombstones" else 600.0
        return open_store(self.url, prefix=self.prefix, offer=self.offer, tombstone_ttl=tombstones)

    def path(self, name: str) -> Path:
        return Path(self.directory, name)

    def dump(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Plan:
        return cls(**json.loads(text))


def limit_of(key: str) -> int:
    return 3 if key.startswith("trio") else 1


def calm(url: str) -> Plan:
    """Return a plan without deaths and without a reaper: a lost wake-up stays lost."""
    return Plan(url=url)


def storm(url: str) -> Plan:
    """Workers and the reaper are killed, and paused past their leases and the broker's visibility timeout."""
    return Plan(
        url=url,
        tasks=300,
        kills=10,
        pauses=8,
        reaper=True,
        ttl=0.5,
        offer=0.3,
        pause=1.2,
        visibility=0.8,
        body=0.01,
    )
