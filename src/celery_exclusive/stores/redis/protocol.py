"""Writes requests to a connection of redis-py, which reads the replies: with hiredis, if it is there."""

from __future__ import annotations

from typing import Any

from celery_exclusive.errors import OptionError
from celery_exclusive.stores.text import to_bytes

try:
    from redis import exceptions
except ImportError:
    raise OptionError(
        "exclusive_store: redis:// and valkey:// need redis-py: pip install 'celery-exclusive[redis]'"
    ) from None

Command = tuple[object, ...]


def read_all(connection: Any, count: int) -> list[Any]:
    """Read the replies to `count` requests. What the server refuses is a reply, and not raised.

    But LOADING and NOAUTH are raised: for redis-py they are errors of the connection, which ends.
    """
    return [_read(connection) for _ in range(count)]


def _read(connection: Any) -> Any:
    try:
        return connection.read_response()
    except exceptions.ResponseError as error:
        return error


def pack(command: Command) -> bytes:
    """Encode a command like redis-py's own packer, but faster: a character stands for a byte."""
    bulks = [
        f"${len(word)}\r\n{word}\r\n" if type(word) is str and word.isascii() else _bulk(word)
        for word in command
    ]
    return f"*{len(bulks)}\r\n{''.join(bulks)}".encode("latin-1")


def _bulk(word: object) -> str:
    if isinstance(word, str):
        word = to_bytes(word)
    text = word.decode("latin-1") if isinstance(word, bytes) else str(word)
    return f"${len(text)}\r\n{text}\r\n"
