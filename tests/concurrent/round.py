"""A round: what each of its clients does, and with which store."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from celery_exclusive.core.records import SECOND
from celery_exclusive.stores.base import Store, make_store

Fault = Literal[
    "",
    "no row lock",
    "no row lock, and dirty reads",
    "blind write",
    "a repetition with a new token",
    "a message that is pushed twice",
    "a sweep that does nothing",
]
"""What the clients do wrong on purpose. The search must find it."""
KEYS = ("one", "another", "two:ü")
CROWD = 12
"""A limit that lets more owners hold a key than a step reads."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """The plan of a round. Each client makes so many `calls`.

    * `is_timed`: each call tells the store its instant, so each answer is known to the last digit. Leases,
      offers and deadlines end all the time, and each key has a namespace of its own. Otherwise the clock of
      the store decides, all keys are in one namespace, and times are in hours, or over at once.
    * `pushes`: calls are sent by the step that grants their key.
    * `patience`: the seconds after which a client gives a call up.
    """

    url: str
    directory: str
    prefix: str
    seed: int
    calls: int = 200
    clients: int = 6
    is_timed: bool = True
    has_line: bool = True
    pushes: bool = True
    patience: float = 1.0
    fault: Fault = ""
    stale_url: str = ""

    @property
    def patient(self) -> Round:
        """The same round for clients that wait until they have their answers."""
        return replace(self, patience=60)

    @property
    def limits(self) -> dict[str, int]:
        """The keys, and how many owners may hold each."""
        return dict(zip(KEYS, (1, 1, 2 if self.seed % 3 else CROWD), strict=True))

    @property
    def knows_instants(self) -> bool:
        """memcached runs `step` in the client, by the server's time."""
        return self.is_timed or not self.has_line

    @property
    def offer(self) -> int:
        return 5_000 if self.is_timed else 3600 * SECOND

    @property
    def tombstone_ttl(self) -> int:
        return 60 * SECOND if self.is_timed and self.has_line else 24 * 3600 * SECOND

    @property
    def folder(self) -> Path:
        return Path(self.directory)

    @property
    def list(self) -> str:
        """The Redis list onto which messages are pushed."""
        return f"{self.prefix}:list"

    def namespace(self, key: str) -> str:
        """Fences are counted, and keys swept, by namespace."""
        return f"{self.prefix}{KEYS.index(key)}" if self.is_timed else self.prefix

    def open_stores(self, url: str = "") -> dict[str, Store]:
        """The store of each key."""
        names = {key: self.namespace(key) for key in KEYS}
        opened = {
            name: make_store(url or self.url, prefix=name, offer=self.offer, tombstone_ttl=self.tombstone_ttl)
            for name in set(names.values())
        }
        return {key: opened[name] for key, name in names.items()}

    def dump(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Round:
        return cls(**json.loads(text))
