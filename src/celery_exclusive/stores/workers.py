"""The records of workers: which process has the number in the tokens of its leases."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from hashlib import sha1
from typing import Final

from celery_exclusive.core.records import SECOND
from celery_exclusive.display import printable

__all__ = ["FORGOTTEN_AFTER", "WorkerRecord", "by_number"]

FORGOTTEN_AFTER: Final = 86_400 * SECOND
"""The time for which a store keeps the record of a worker that does not renew it."""
_LONGEST: Final = 100
"""The most characters of each text of a record."""


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
    """

    number: int
    nodename: str
    pid: int
    host: str
    release: str
    since: int

    def __str__(self) -> str:
        return f"{printable(self.nodename)} pid {self.pid}"

    @property
    def text(self) -> bytes:
        """The record as a store keeps it: JSON, of a few hundred bytes."""
        values = {name: v[:_LONGEST] if isinstance(v, str) else v for name, v in asdict(self).items()}
        return json.dumps(values).encode()

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


def _read(text: bytes) -> WorkerRecord | None:
    try:
        values = json.loads(text)
        record = WorkerRecord(**{field.name: values[field.name] for field in fields(WorkerRecord)})
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    kinds = {"int": int, "str": str}
    is_typed = all(type(getattr(record, it.name)) is kinds[str(it.type)] for it in fields(WorkerRecord))
    return record if is_typed and 0 < record.number < 2**16 else None
