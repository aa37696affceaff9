"""Buckets of keys, and which node of a cluster has which bucket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from zlib import crc32

from redis.crc import key_slot

from celery_exclusive.stores.redis.start_nodes import Place
from celery_exclusive.stores.text import to_bytes

BUCKETS: Final = 64
"""Each has its number as hash tag, and so one slot: all data of a key are on one node."""
_SLOTS: Final = tuple(key_slot(b"%d" % bucket) for bucket in range(BUCKETS))


def bucket_of(key: str) -> int:
    """Return the bucket of a key, the same in all processes and versions."""
    return crc32(to_bytes(key)) % BUCKETS


@dataclass(frozen=True, slots=True)
class Table:
    """The primary of each bucket, None for one whose slot has none, and all nodes, replicas included."""

    primaries: tuple[Place | None, ...]
    nodes: frozenset[Place]

    def move(self, bucket: int, to: Place) -> Table:
        """Return the table after a bucket has moved."""
        primaries = (*self.primaries[:bucket], to, *self.primaries[bucket + 1 :])
        return replace(self, primaries=primaries, nodes=self.nodes | {to})


def read_table(reply: Sequence[Any], asked: str) -> Table:
    """Read the reply to CLUSTER SLOTS of a node, which may not know its own host: that is `asked`."""
    ranges = [
        (first, last, [((host or b"").decode() or asked, port) for host, port, *_ in members])
        for first, last, *members in reply
    ]
    owners = {slot: members[0] for first, last, members in ranges for slot in _SLOTS if first <= slot <= last}
    nodes = frozenset(place for *_, members in ranges for place in members)
    return Table(tuple(owners.get(slot) for slot in _SLOTS), nodes)
