"""Acquire and release on memcached://, uncontended, against the same server with nothing around it."""

from __future__ import annotations

import socket
from functools import partial

from bench.clock import timed
from bench.ours import pair
from celery_exclusive.stores.base import open_store
from tests.memcached import MemcachedServer


def measure(server: MemcachedServer) -> dict[str, list[float]]:
    store = open_store(server.url)
    with socket.create_connection(("127.0.0.1", server.port)) as bare:
        bare.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def floor() -> None:
            for command in (b"ms bench 2 T30 ME\r\nmy\r\n", b"md bench\r\n"):
                bare.sendall(command)
                assert bare.recv(4096) == b"HD\r\n"

        measured = timed(
            {"floor: add + delete, bare socket": floor, "celery-exclusive": partial(pair, store)}
        )
    store.close()
    return measured
