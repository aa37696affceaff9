"""Text as the bytes that stores keep, whatever its characters are: also NUL, and those that are no UTF-8."""

from __future__ import annotations


def to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def to_text(value: bytes) -> str:
    return value.decode("utf-8", "surrogatepass")
