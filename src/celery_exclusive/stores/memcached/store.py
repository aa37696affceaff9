"""memcached://: leases in one memcached server, by its own clock, without lines."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from secrets import token_hex
from typing import NamedTuple, TypeVar
from urllib.parse import quote_from_bytes

from celery_exclusive.core.operations import (
    Acquire,
    AcquireAlone,
    Applied,
    Held,
    Operation,
    Owner,
    Renew,
    Requeue,
    Restore,
)
from celery_exclusive.core.records import SECOND, Document, Holder, Line, Part
from celery_exclusive.errors import ExclusiveError, StoreRefused, StoreUnavailable, UnreadableKey
from celery_exclusive.stores.base import (
    TASKS_PER_PAGE,
    Capabilities,
    Cursor,
    KeyInLine,
    Page,
    Reply,
    Snapshot,
)
from celery_exclusive.stores.damaged import Damaged, check_holders, check_numbers
from celery_exclusive.stores.document_store import NOTHING, Change, DocumentStore, Loaded, Reads, snapshot
from celery_exclusive.stores.memcached.client import Answer, Client
from celery_exclusive.stores.text import to_bytes, to_text

_O = TypeVar("_O", bound=Operation)
_LIFE = 157_766_400
"""Seconds until the item expires by which the server's clock is read: 5 years."""
_GRACE = 2 * SECOND
"""Added to each ttl: the server's clock has whole seconds, and is late by up to one on a busy server."""
_FREE = 60
"""Seconds for which a free key remembers its last fence. By then the clock is higher."""
_TRIES = 3
_SMALL = 512
"""Bytes that fit into an item of every server."""
_OVERHEAD = 512
"""The bytes of an item beside its value and its name, at most."""
_LONGEST = 30 * 86_400
"""Seconds: memcached takes a longer ttl for a time since 1970."""
_LONGEST_NAME = 200
"""The most bytes of a name; memcached allows 250 with the prefixes."""
_PLAIN = "!$&'()*+,-./:;<=>?@[]^_`{|}~"


class _Clock(NamedTuple):
    epoch: str
    now: int


class MemcachedStore(DocumentStore):
    """Leases in one memcached server, without lines.

    An item per key holds its document, and is written by compare-and-swap. An item whose end is known is the
    clock: its remaining seconds are the server's. A tombstone is an item, written before the lease that it
    follows is released.

    Parameters:
        url: `memcached://host:11211`, or `memcached:///path/of/its.socket`; `?timeout=5` in seconds.
    """

    capabilities = Capabilities(line=False, listing=False)

    def __init__(self, url: str, *, prefix: str = "cx", **times: int) -> None:
        self._client = Client(url)
        self._largest: int | None = None
        super().__init__(self._client.url, prefix=prefix, **times)

    def apply(self, key: str, operation: Operation) -> Reply:
        try:
            reply = super().apply(key, _with_grace(operation))
        except Damaged as error:
            raise UnreadableKey(key, str(error), self.url) from error
        answer = reply.answer
        if not isinstance(answer, Held):
            return reply
        return replace(reply, answer=replace(answer, by=_as_asked(answer.by)))

    def load(self, key: str, reads: Reads = NOTHING) -> Loaded:  # without a line
        names = self._lock(key), self._tombstone(key, reads.id)
        clock, found = self._read(*(b"mg %b v c" % name for name in names))
        return _loaded(key, clock, *found)

    def swap(self, key: str, version: int, change: Change) -> bool:  # noqa: ARG002 - the change knows it
        if change.is_none:
            return True
        commands = [self._write(key, change)]
        self._refuse_too_large(key, commands[0])
        if (token := change.transition.tombstone) is not None:
            now = change.loaded.now
            life = _seconds(change.tombstone_until - now)
            tombstone = self._tombstone(key, change.id)
            commands.insert(0, _set(tombstone, to_bytes(token), life, _seconds(now)))
        *_, answer = self._client.ask(commands)
        return answer.code == b"HD" or (answer.is_repeated and self._is_written(key, change))

    def renew(self, leases: Sequence[tuple[str, Renew]]) -> list[bool]:
        """Renew any number of leases in two round trips, and one by one those that were written meanwhile."""
        if not leases:
            return []
        clock, found = self._read(*(b"mg %b v c" % self._lock(key) for key, _ in leases))
        changes: dict[int, Change] = {}
        renewed = [False] * len(leases)
        for index, ((key, operation), answer) in enumerate(zip(leases, found, strict=True)):
            with suppress(Damaged):
                change = self.change(_with_grace(operation), _loaded(key, clock, answer))
                renewed[index] = change.transition.answer == Applied(True)
                if not change.is_none:
                    changes[index] = change
        writes = [self._write(leases[index][0], change) for index, change in changes.items()]
        for index, answer in zip(changes, self._client.ask(writes), strict=True):
            if answer.code != b"HD":
                key, operation = leases[index]
                renewed[index] = super().apply(key, _with_grace(operation)).answer == Applied(True)
        return renewed

    def inspect_all(self, keys: Sequence[str]) -> list[Snapshot]:
        clock, found = self._read(*(b"mg %b v c" % self._lock(key) for key in keys))
        return [_look(key, clock, answer) for key, answer in zip(keys, found, strict=True)]

    def inspect(self, key: str) -> Snapshot:
        (snapshot,) = self.inspect_all([key])
        if snapshot.problem:
            raise UnreadableKey(key, snapshot.problem, self.url)
        return snapshot

    def messages(self, key: str, ids: Sequence[str]) -> dict[str, bytes]:  # noqa: ARG002 - there is no line
        return {}

    def due(self, limit: int, every: int) -> list[str] | None:  # noqa: ARG002 - nothing is ever due
        if not every:
            return []
        (answer,) = self._client.ask([_set(self._item("reaped"), b"", _seconds(every), mode="ME")])
        return [] if answer.code == b"HD" else None

    def next_due(self) -> None:
        return None

    def parts(self, key: str, count: int = 1_000) -> list[Part]:  # noqa: ARG002 - it keeps none
        return []

    def line(self, key: str, after: Cursor | None = None, count: int = TASKS_PER_PAGE) -> Page:  # noqa: ARG002
        return Page()

    def places(self) -> Iterator[tuple[str, str]]:
        return iter(())  # it keeps no line

    def lines(self) -> Iterator[KeyInLine]:
        return iter(())

    def keys_of(self, task_id: str) -> Iterator[str]:  # noqa: ARG002
        return self.scan()

    def scan(self, prefix: str = "") -> Iterator[str]:  # noqa: ARG002
        raise ExclusiveError(
            f"store {self.url} cannot list its locks: memcached has no command for that. Name one lock: "
            "`celery -A proj locks ls KEY`"
        )

    def forget(self, key: str) -> None:
        self._client.ask([b"md %b" % self._lock(key)])

    def epoch(self) -> str:
        return self._read()[0].epoch

    def check(self) -> list[str]:
        self.epoch()  # it knows the meta commands
        evictions = int(self._client.statistics().get("evictions", 0))
        if self._client.statistics(b"settings").get("evictions") == "off":
            what = "it runs with -M. When its memory is full it deletes the lock that it cannot write"
            remedy = "start it without -M"
        elif evictions:
            what = f"its memory is full, it has evicted {evictions} items, and locks may be among the next"
            remedy = "give it more memory, or give the locks a server of their own"
        else:
            return []
        return [f"store {self.url}: {what}. Then another task may run beside the holder: {remedy}"]

    def close(self) -> None:
        self._client.close()

    def _read(self, *commands: bytes) -> tuple[_Clock, list[Answer]]:
        """Send commands that read, and a command for the time, in one round trip."""
        for _ in range(_TRIES):
            clock, *answers = self._client.ask([b"mg %b v t c" % self._item("clock"), *commands])
            if clock.value is not None:
                if clock.flags.get("c") == "0":
                    raise StoreUnavailable(
                        f"store {self.url}: it runs with -C, so it cannot compare before it swaps: start it "
                        "without -C"
                    )
                return self._clock(clock), answers
            now = int(self._client.statistics()["time"])
            text = b"%d %b" % (now + _LIFE, token_hex(8).encode())
            self._client.ask([_set(self._item("clock"), text, _LIFE, now, "ME")])
        raise StoreUnavailable(f"store {self.url} does not keep what is written: give it more memory")

    def _clock(self, answer: Answer) -> _Clock:
        try:
            end, epoch = (answer.value or b"").decode("ascii").split()
            return _Clock(epoch, (int(end) - int(answer.flags["t"])) * SECOND)
        except (ValueError, KeyError) as error:
            name = self._item("clock").decode()
            raise StoreUnavailable(
                f"store {self.url}: item {name} was written by another program; delete it"
            ) from error

    def _write(self, key: str, change: Change) -> bytes:
        document, now = change.transition.document, change.loaded.now
        life = max([_FREE * SECOND, *(holder.expiry - now for holder in document.holders)])
        mode = f"C{change.loaded.version}" if change.loaded.version else "ME"
        return _set(self._lock(key), _text(key, document), _seconds(life) + 1, _seconds(now), mode)

    def _refuse_too_large(self, key: str, command: bytes) -> None:
        """Refuse an item that is too large: the server would delete the item that it has."""
        if len(command) < _SMALL:
            return
        if self._largest is None:
            self._largest = int(self._client.statistics(b"settings")["item_size_max"]) - _OVERHEAD
        if len(command) > self._largest:
            raise StoreRefused(
                f"store {self.url}: the leases of lock {key} do not fit into one item of memcached, of the "
                "size that its option -I allows: lower the limit of this task"
            )

    def _is_written(self, key: str, change: Change) -> bool:
        """Whether the first request was executed, whose answer was lost: the second one says otherwise."""
        (found,) = self._client.ask([b"mg %b v" % self._lock(key)])
        return found.value == _text(key, change.transition.document)

    def _lock(self, key: str) -> bytes:
        return self._item("lock", key)

    def _tombstone(self, key: str, id: str) -> bytes:
        return self._item("tombstone", key, id)

    def _item(self, *parts: str) -> bytes:
        return _name(self.prefix, *parts)


def _loaded(key: str, clock: _Clock, lock: Answer, tombstone: Answer | None = None) -> Loaded:
    document, version = Document(epoch=clock.epoch), 0
    if lock.value is not None:
        document, version = _document(key, lock.value, clock.epoch), int(lock.flags["c"])
    token = to_text(tombstone.value) if tombstone and tombstone.value is not None else None
    return Loaded(version, clock.now, document, Line(tombstone=token))


def _look(key: str, clock: _Clock, answer: Answer) -> Snapshot:
    try:
        found = snapshot(_loaded(key, clock, answer))
    except Damaged as error:
        return Snapshot(problem=str(error))
    return replace(found, holders=_as_asked(found.holders))


def _with_grace(operation: _O) -> _O:
    """Return the operation with the longer ttl, and without a message: there is no line."""
    if isinstance(operation, Acquire):
        return replace(operation, message=None, ttl=operation.ttl + _GRACE)
    if isinstance(operation, (AcquireAlone, Renew, Requeue, Restore)):
        return replace(operation, ttl=operation.ttl + _GRACE)
    return operation


def _as_asked(owners: Sequence[Owner]) -> tuple[Owner, ...]:
    """Return leases with the ttl that was requested, without the grace."""
    return tuple(replace(owner, remaining=max(owner.remaining - _GRACE, 1)) for owner in owners)


def _set(name: bytes, value: bytes, life: int, now: int = 0, mode: str = "") -> bytes:
    """Return the command that writes an item, which expires after so many seconds from `now` on."""
    ttl = life if life <= _LONGEST else now + life
    return b"ms %b %d T%d %b\r\n%b" % (name, len(value), ttl, mode.encode(), value)


def _seconds(microseconds: int) -> int:
    return math.ceil(microseconds / SECOND)


def _name(*parts: str) -> bytes:
    """Join parts to a name that can be read, or is a hash if it is too long."""
    text = "#".join(quote_from_bytes(to_bytes(part), safe=_PLAIN) for part in parts)
    if len(text) <= _LONGEST_NAME:
        return text.encode()
    head, *_ = text.split("#")
    return f"{head[:80]}#{blake2b(text.encode(), digest_size=16).hexdigest()}".encode()


def _text(key: str, document: Document) -> bytes:
    leases = [[h.id, h.token, h.expiry, h.fence, h.may_have_copies, h.phase] for h in document.holders]
    return json.dumps([key, document.limit, document.fence, leases]).encode()


def _document(key: str, text: bytes, epoch: str) -> Document:
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
