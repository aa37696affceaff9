"""Text as the bytes that stores keep, with any character: also NUL, and half a surrogate pair.

Bytes that are no UTF-8 were written by another program. They are read as text, too, each byte as `_ODD` and a
surrogate, and that text is written as the same bytes: so what is listed can be named, shown and deleted.
"""

from __future__ import annotations

import codecs
import re
from typing import Final

_ERRORS: Final = "celery_exclusive.stores.text"
_ODD: Final = "\udfff"
_PIECES: Final = re.compile(f"{_ODD}[\udc80-\udcff]|.", re.DOTALL)


def to_bytes(text: str) -> bytes:
    return text.encode("utf-8", _ERRORS)


def to_text(value: bytes) -> str:
    return value.decode("utf-8", _ERRORS)


def _replaced(error: UnicodeError) -> tuple[str | bytes, int]:
    if isinstance(error, UnicodeEncodeError):
        pieces = _PIECES.findall(error.object[error.start : error.end])
        return b"".join(map(_bytes_of, pieces)), error.end
    if not isinstance(error, UnicodeDecodeError):
        raise error
    at = error.start
    half, next_one = _half(error.object, at), _half(error.object, at + 3)
    if half and not (half == _ODD and "\udc80" <= next_one <= "\udcff"):
        return half, at + 3
    return f"{_ODD}{chr(0xDC00 + error.object[at])}", at + 1


def _bytes_of(piece: str) -> bytes:
    return piece.encode("utf-8", "surrogatepass") if len(piece) == 1 else bytes([ord(piece[1]) & 0xFF])


def _half(data: bytes, at: int) -> str:
    """Return the half of a surrogate pair that these bytes write, or "" if they write none."""
    try:
        return data[at : at + 3].decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return ""


codecs.register_error(_ERRORS, _replaced)
