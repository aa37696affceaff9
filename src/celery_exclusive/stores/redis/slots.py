"""The buckets of keys in a Redis Cluster, and the slot of each."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final
from zlib import crc32

from redis.cluster import parse_cluster_slots
from redis.crc import key_slot

from celery_exclusive.stores.redis.start_nodes import Place
from celery_exclusive.stores.text import to_bytes

BUCKETS: Final = 64
"""Each bucket has its number as hash tag, and so one slot: all data of a key are on one node."""
_SLOTS: Final = frozenset(key_slot(b"%d" % bucket) for bucket in range(BUCKETS))


def bucket_of(key: str) -> int:
    """Return the bucket of a key, the same in all processes and versions."""
    return crc32(to_bytes(key)) % BUCKETS


@lru_cache(BUCKETS * 8)
def slot_of(name: object) -> int:
    """Return the slot of a name of data."""
    return int(key_slot(to_bytes(str(name))))


def read_slots(reply: Any, asked: str) -> tuple[dict[int, Place], set[Place]]:
    """Read the reply to CLUSTER SLOTS: the primary of each slot of a bucket, and all nodes.

    A node may not know its own host. The client has reached it as `asked`.
    """
    owners, places = dict[int, Place](), set[Place]()
    for (first, last), members in parse_cluster_slots(reply, current_host=asked).items():
        primary: Place = members["primary"]
        owners.update((slot, primary) for slot in _SLOTS if first <= slot <= last)
        places.update((primary, *members["replicas"]))
    return owners, places
