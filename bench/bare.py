"""The least that can be done: commands on a bare socket, and a lock in the call that sends a message."""

from __future__ import annotations

import socket
from collections.abc import Generator
from contextlib import contextmanager
from secrets import token_hex
from typing import Any

from kombu.transport.redis import Channel
from kombu.utils.json import dumps

DELETE_IF_MINE = (
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
)
LOCK_AND_PUSH = (
    "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', 600000) then "
    "return redis.call('LPUSH', KEYS[2], ARGV[2]) end return 0"
)


class Socket:
    """A connection that sends words, and does not look at what the answer means."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._token = self._script = ""

    def ask(self, *words: str) -> bytes:
        parts = "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
        self._socket.sendall(f"*{len(words)}\r\n{parts}".encode())
        return self._socket.recv(4096)

    def acquire(self, key: str) -> None:
        """Take a lock that lasts for half a minute."""
        self._token = token_hex(8)
        self.ask("SET", key, self._token, "NX", "PX", "30000")

    def release(self, key: str) -> None:
        """Delete the lock, if it is the one that was acquired last."""
        if not self._script:
            self._script = self.ask("SCRIPT", "LOAD", DELETE_IF_MINE).split()[1].decode()
        self.ask("EVALSHA", self._script, "1", key, self._token)

    def close(self) -> None:
        self._socket.close()


@contextmanager
def lock_with_each_message() -> Generator[None]:
    """Let kombu push each message in a script that takes a lock before: the least that a unique call adds."""
    plain = Channel._put

    def put(self: Any, queue: str, message: dict[str, Any], **_: Any) -> None:
        name = f"floor:{message['headers']['id']}"
        with self.conn_or_acquire() as client:
            sha = _sha_of.get(self) or _sha_of.setdefault(self, client.script_load(LOCK_AND_PUSH))
            client.evalsha(sha, 2, name, self._q_for_pri(queue, 0), name, dumps(message))

    _sha_of: dict[Any, str] = {}
    Channel._put = put
    try:
        yield
    finally:
        Channel._put = plain
