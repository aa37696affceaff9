"""The items of a store in memcached: their names, and the text of a key's document."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any
from urllib.parse import quote_from_bytes

from celery_exclusive.core.records import Document, Holder
from celery_exclusive.stores.text import to_bytes

_LONGEST = 200
"""The bytes of a name; memcached allows 250 with all that stands before it."""
_PLAIN = "!$&'()*+,-./:;<=>?@[]^_`{|}~"


class Damaged(ValueError):
    """An item holds what no release of this library wrote."""


def name(*parts: str) -> bytes:
    """Join parts to a name that can be read, or is a hash if it is too long."""
    text = "#".join(quote_from_bytes(to_bytes(part), safe=_PLAIN) for part in parts)
    if len(text) <= _LONGEST:
        return text.encode()
    head, *_ = text.split("#")
    return f"{head[:80]}#{blake2b(text.encode(), digest_size=16).hexdigest()}".encode()


def write(key: str, document: Document) -> bytes:
    leases = [[h.id, h.token, h.expiry, h.fence, h.may_have_copies, h.phase] for h in document.holders]
    return json.dumps([key, document.limit, document.fence, leases]).encode()


def read(key: str, text: bytes, epoch: str) -> Document:
    """Return the document in an item.

    Raises:
        Damaged: it is none, or that of another key.
    """
    try:
        owner, limit, fence, leases = json.loads(text)
        holders = tuple(Holder(*lease) for lease in leases)
    except (ValueError, TypeError) as error:
        raise Damaged(f"{type(error).__name__}: {error}") from error
    _check_whole(limit, fence, *(number for h in holders for number in (h.expiry, h.fence)))
    if owner != key:
        raise Damaged(f"the item belongs to {owner!r}")
    return Document(limit, fence, holders, epoch)


def _check_whole(*numbers: Any) -> None:
    for number in numbers:
        if not isinstance(number, int):
            raise Damaged(f"{number!r} is no whole number")
