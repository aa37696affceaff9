"""Encodes the commands for a Redis server."""

from __future__ import annotations

Command = tuple[object, ...]


def pack(command: Command) -> bytes:
    """Encode a command like redis-py's own packer, but faster: a character stands for a byte."""
    words = [word if type(word) is str and word.isascii() else _spelled(word) for word in command]
    text = "".join([f"${len(word)}\r\n{word}\r\n" for word in words])
    return f"*{len(words)}\r\n{text}".encode("latin-1")


def _spelled(word: object) -> str:
    data = word if isinstance(word, bytes) else str(word).encode("utf-8", "surrogatepass")
    return data.decode("latin-1")
