"""What 20,000 tasks that wait on a key cost the others: on the same key, and on another."""

from __future__ import annotations

from secrets import token_hex

from bench.clock import medians, table
from celery_exclusive.core.operations import Acquire, Release, Remove
from celery_exclusive.stores.base import Store, open_store
from tests.servers import RedisServer

TTL = 600_000_000
WAITING = 20_000
MESSAGE = b"x" * 600


def run(server: RedisServer) -> None:
    store = open_store(server.url)
    for key, waiting in (("short", 1), ("long", WAITING)):
        store.apply(key, Acquire("holder/1", "holder", TTL))
        for number in range(waiting):
            store.apply(key, Acquire(f"task{number}/1", "token", TTL, message=MESSAGE))

    times = medians(
        {
            "key with 1 waiting: park one, take it out": lambda: _park_and_leave(store, "short"),
            f"key with {WAITING:,} waiting: park one, take it out": lambda: _park_and_leave(store, "long"),
        }
    )
    table("a newcomer to a line", times)
    turns = {key: _Turns(store, key) for key in ("short", "long")}
    times = medians(
        {
            "key with 1 waiting: release, next one enters": turns["short"].turn,
            f"key with {WAITING:,} waiting: release, next one enters": turns["long"].turn,
        }
    )
    table("the line moves on by one (and one more parks)", times)
    with RedisServer() as empty:
        beside_nobody = open_store(empty.url)
        times = medians(
            {
                "another key, on a server without lines": lambda: _pair(beside_nobody),
                f"another key, beside {WAITING:,} waiting": lambda: _pair(store),
            }
        )
    table("acquire + release of a free key", times)


def _park_and_leave(store: Store, key: str) -> None:
    store.apply(key, Acquire("new/1", "token", TTL, message=MESSAGE))
    store.apply(key, Remove("new/1"))


def _pair(store: Store) -> None:
    token = token_hex(8)
    store.apply("other", Acquire("task/1", token, TTL))
    store.apply("other", Release("task/1", token))


class _Turns:
    """Lets a line move: the holder leaves, the next one enters, a new one stands at the end."""

    def __init__(self, store: Store, key: str) -> None:
        self._store, self._key = store, key
        self._holder, self._token = "holder/1", "holder"
        self._number = 0

    def turn(self) -> None:
        self._number += 1
        self._store.apply(self._key, Acquire(f"more{self._number}/1", "token", TTL, message=MESSAGE))
        reply = self._store.apply(self._key, Release(self._holder, self._token))
        (wake,) = reply.wake
        self._holder, self._token = wake.id, token_hex(8)
        self._store.apply(self._key, Acquire(wake.id, self._token, TTL, promoted=wake.epoch))
