"""The items of a store in memcached: their names, and the text of a key's document."""

from __future__ import annotations

import json
from hashlib import blake2b
from urllib.parse import quote_from_bytes

from celery_exclusive.core.records import Document, Holder
from celery_exclusive.stores.damaged import Damaged, check_holders, check_numbers
from celery_exclusive.stores.text import to_bytes

_LONGEST = 200
"""The most bytes of a name; memcached allows 250 with the prefixes."""
_PLAIN = "!$&'()*+,-./:;<=>?@[]^_`{|}~"


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
        Damaged: the item holds no document, or the document of another key.
    """
    try:
        owner, limit, fence, leases = json.loads(text)
        holders = tuple(Holder(*lease) for lease in leases)
    except (ValueError, TypeError, RecursionError) as error:
        raise Damaged(f"{type(error).__name__}: {error}") from error
    check_numbers(limit, fence)
    check_holders(holders)
    if owner != key:
        raise Damaged(f"the item belongs to {owner!r}")
    return Document(limit, fence, holders, epoch)
