"""Reads the replies of a Redis server."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

_MOST: Final = 65_536
_SIMPLE, _ERROR, _NUMBER, _BULK, _LIST = b"+-:$*"


class _Incomplete(Exception):
    """More bytes have to come."""


def read(from_: socket.socket, error: Callable[[str], Exception]) -> Any:
    """Read one reply in version 2 of the protocol, as redis-py does, in a third of its time.

    A connection of ours has one request under way, so all bytes that come are its reply. `error` makes the
    exception of an error that the server has replied.

    Raises:
        EOFError: the server has closed the connection.
    """
    more = from_.recv(_MOST)
    if more.startswith(b":") and more.endswith(b"\r\n"):  # of the quick ways
        return int(more[1:])
    data = bytearray()
    while more:
        data += more
        if data.endswith(b"\r\n"):  # it may be whole; parsed with each piece, a long one takes minutes
            with suppress(_Incomplete):
                reply, _ = _parse(data, 0, error)
                if isinstance(reply, Exception):
                    raise reply
                return reply
        more = from_.recv(_MOST)
    raise EOFError


def read_all(from_: socket.socket, error: Callable[[str], Exception], count: int) -> list[Any]:
    """Read the replies to several requests; one that was refused has an exception among them.

    Raises:
        EOFError: the server has closed the connection.
    """
    data, replies, at = bytearray(), list[Any](), 0
    while more := from_.recv(_MOST):
        data += more
        if not data.endswith(b"\r\n"):
            continue
        with suppress(_Incomplete):
            while len(replies) < count:
                reply, at = _parse(data, at, error)
                replies.append(reply)
            return replies
    raise EOFError


def _parse(data: bytearray, at: int, error: Callable[[str], Exception]) -> tuple[Any, int]:
    """Return the reply that begins here, and where it ends."""
    end = data.find(b"\r\n", at)
    if end < 0:
        raise _Incomplete
    kind, line, at = data[at], data[at + 1 : end], end + 2
    if kind == _NUMBER:
        return int(line), at
    if kind == _BULK:
        end = at + int(line)
        if end < at:
            return None, at
        if len(data) < end + 2:
            raise _Incomplete
        return bytes(data[at:end]), end + 2
    if kind == _LIST:
        items = []
        for _ in range(int(line)):
            item, at = _parse(data, at, error)
            items.append(item)
        return items, at
    if kind == _ERROR:
        return error(line.decode(errors="replace")), at
    if kind == _SIMPLE:
        return bytes(line), at
    raise ValueError(f"a reply begins with {data[:20]!r}")
