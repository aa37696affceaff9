"""Acquire and release, uncontended: our store, and what people use today, against a bare socket."""

from __future__ import annotations

import socket
from functools import partial
from secrets import token_hex

import redis

from bench.clock import medians, table
from bench.ours import pair
from celery_exclusive.stores.base import open_store
from tests.servers import RedisServer

DELETE_IF_MINE = (
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
)


def run(server: RedisServer) -> None:
    table("acquire + release of a free key", measure(server))


def measure(server: RedisServer) -> dict[str, float]:
    store = open_store(server.url)
    client = redis.Redis.from_url(server.url)
    bare = _Socket(server.port)
    sha = client.script_load(DELETE_IF_MINE)

    def redis_py() -> None:
        lock = client.lock("redis-py", timeout=30)
        lock.acquire(blocking=False)
        lock.release()

    def cookbook() -> None:
        client.set("cookbook", "1", nx=True, ex=30)
        client.delete("cookbook")

    def floor() -> None:
        token = token_hex(8)
        bare.ask("SET", "floor", token, "NX", "PX", "30000")
        bare.ask("EVALSHA", sha, "1", "floor", token)

    return medians(
        {
            "floor: SET NX PX + compare-and-delete, bare socket": floor,
            "celery-exclusive: lease, fence, line": partial(pair, store),
            "redis-py, SET NX + DEL (cookbook; no owner)": cookbook,
            "redis-py Lock (no fence, no line)": redis_py,
        }
    )


class _Socket:
    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, *words: str) -> bytes:
        parts = "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
        self._socket.sendall(f"*{len(words)}\r\n{parts}".encode())
        return self._socket.recv(4096)
