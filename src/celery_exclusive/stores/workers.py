"""The records of workers: which process has the number in the tokens of its leases."""

from __future__ import annotations

import json
from base64 import b85encode
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from hashlib import sha1, sha256
from typing import Final

from celery_exclusive.core.records import SECOND
from celery_exclusive.display import printable

FORGOTTEN_AFTER: Final = 86_400 * SECOND
"""The time for which a store keeps the record of a worker that does not renew it."""
_LONGEST: Final = 100
"""The most characters of each text of a record."""
_DIGEST: Final = 5
_MOST: Final = 200
"""The most digests of a text of a record, which then has those that sort first."""


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A worker, as it describes itself in the store.

    Example:
        WorkerRecord(0x1A2B, "celery@web1", 4711, "web1", "0.1.0", 1_800_000_000)

    Parameters:
        number: the number in the tokens of its leases, from 1 to 65535. Two workers may have one number.
        nodename: the name that it has for Celery.
        pid: its main process.
        host: the host name of its machine or container.
        release: the release of this library.
        since: when it was started, in seconds since 1970, by its own clock.
        app: the name of its app.
        broker: its broker, without the name of the server that the store is on, too. "": it is on another.
        secrets: the fingerprints of its `exclusive_secret`, the first one signs; "-" for none.
        queues: the `digests` of the names of its queues.
        tasks: the `digests` of the names of its tasks that have keys of their own.
        lost: when it last noticed that the store had lost its data, as `since`; 0: never.
    """

    number: int
    nodename: str
    pid: int
    host: str
    release: str
    since: int
    app: str = ""
    broker: str = ""
    secrets: str = ""
    queues: str = ""
    tasks: str = ""
    lost: int = 0

    def __str__(self) -> str:
        return f"{printable(self.nodename)} pid {self.pid}"

    @property
    def text(self) -> bytes:
        """The record as a store keeps it: JSON, of a few hundred bytes, and five for each digest."""
        longest = {"queues": _MOST * _DIGEST, "tasks": _MOST * _DIGEST}
        values = {
            name: value[: longest.get(name, _LONGEST)] if isinstance(value, str) else value
            for name, value in asdict(self).items()
        }
        known = {
            field.name: values[field.name] for field in fields(self) if values[field.name] != field.default
        }
        return json.dumps(known).encode()

    @property
    def id(self) -> str:
        """A text that only this record has."""
        return sha1(self.text, usedforsecurity=False).hexdigest()


def by_number(texts: Iterable[bytes]) -> dict[int, list[WorkerRecord]]:
    """Return the workers of each number, the oldest first.

    Texts that are no record are left out: another release, or another program, has written them.
    """
    found = defaultdict[int, list[WorkerRecord]](list)
    for record in filter(None, map(_read, texts)):
        found[record.number].append(record)
    return {number: sorted(its, key=lambda record: record.since) for number, its in sorted(found.items())}


def digests(names: Iterable[str]) -> str:
    """Return a digest of five characters for each of these names, in order of the digests."""
    return "".join(sorted(map(_digest, names)))


def in_digests(names: Iterable[str], found: str) -> list[str]:
    """Return those names that have a digest here."""
    known = {found[at : at + _DIGEST] for at in range(0, len(found), _DIGEST)}
    return sorted(name for name in names if _digest(name) in known)


def _digest(name: str) -> str:
    return b85encode(sha256(name.encode("utf-8", "surrogatepass")).digest()[:4]).decode()


def _read(text: bytes) -> WorkerRecord | None:
    try:
        values = json.loads(text)
        names = [field.name for field in fields(WorkerRecord)]
        record = WorkerRecord(**{name: values[name] for name in names if name in values})
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    kinds = {"int": int, "str": str}
    is_typed = all(type(getattr(record, it.name)) is kinds[str(it.type)] for it in fields(WorkerRecord))
    return record if is_typed and 0 < record.number < 2**16 else None
