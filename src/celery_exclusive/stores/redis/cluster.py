"""The store of redis+cluster:// and rediss+cluster:// URLs: a Redis Cluster, in buckets of keys."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha1
from operator import itemgetter
from os import urandom
from typing import Any, Final
from zlib import crc32

from celery_exclusive.core.operations import Acquire, Applied, KeyOperation, Owner, Renew
from celery_exclusive.core.records import NEVER, RENEWALS_PER_TTL, SECOND, WOKEN_AT_ONCE, Part
from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.stores.base import (
    TASKS_PER_PAGE,
    Capabilities,
    Cursor,
    KeyInLine,
    Page,
    Reply,
    Snapshot,
    Times,
)
from celery_exclusive.stores.redis.address import Place
from celery_exclusive.stores.redis.node import Call, script_call, slot_of
from celery_exclusive.stores.redis.nodes import Nodes
from celery_exclusive.stores.redis.server_facts import facts_of, warnings_of
from celery_exclusive.stores.redis.store import (
    KEYS_PER_CALL,
    RedisStore,
    Run,
    batches,
    literal,
    names_like,
    read_sweep,
    time_of,
)
from celery_exclusive.stores.redis.witness import Witness
from celery_exclusive.stores.text import to_bytes, to_text
from celery_exclusive.stores.workers import FORGOTTEN_AFTER, WorkerRecord
from celery_exclusive.system.deadline import at_most, deadline

BUCKETS: Final = 64
"""Each bucket has its number as hash tag, and so one slot: all data of a key are on one node."""
_SKEW = SECOND
"""The difference between the clocks of two nodes above which the store warns."""


class ClusterStore:
    """A store on a Redis Cluster.

    Each key belongs to one of 64 buckets, by its name. A bucket is a store as on a single server, whose names
    have a hash tag and so share a slot. A request for all buckets takes one round trip per node.
    """

    capabilities = Capabilities()

    def __init__(self, url: str, *, prefix: str = "cx", **times: Any) -> None:
        self._bases = [f"{prefix}2:{{{number}}}:" for number in range(BUCKETS)]
        self._marks = [""] * BUCKETS
        """The epoch of each bucket, as it was last seen. It changes when its node has lost its data."""
        self._times = [0] * BUCKETS
        witnesses = [Witness(base) for base in self._bases]
        self._nodes = Nodes(url, {slot_of(it.base): it for it in witnesses})
        self.url = self._nodes.url
        self._keys = f"{literal(prefix)}2:{{*}}:l:"
        self.buckets = [RedisStore(url, witness=it, client=self._nodes, **times) for it in witnesses]

    def apply(self, key: str, operation: KeyOperation) -> Reply:
        number = bucket_of(key)
        if isinstance(operation, Acquire) and operation.promoted:
            operation = replace(operation, promoted=self._mark(number, operation.promoted))
        reply = self.buckets[number].apply(key, operation)
        if not reply.epoch:
            return reply
        self._marks[number] = reply.epoch
        with suppress(StoreUnavailable):  # the operation is done, and its wakes must not be lost
            return _with_epoch(reply, self._epoch or self.epoch())
        return reply

    def renew(self, leases: Sequence[tuple[str, Renew]]) -> list[bool]:
        """Renew the leases on all nodes that answer, and then raise if a node does not.

        The wait for such a node is at most a third of the shortest ttl: then the other leases have to be
        renewed again.
        """
        shortest = min((lease.ttl for _, lease in leases), default=0) / SECOND
        with deadline(at_most(shortest / RENEWALS_PER_TTL)):
            found = self._ask_of([key for key, _ in leases], RedisStore.renewals, leases)
        return [bool(lives) for lives in found]

    def reap(self, limit: int = 100, every: int = 0, *, recovers_until: int = NEVER) -> Reply:
        """Sweep all buckets, each to an equal part of `limit`, which is rounded up.

        Each bucket has the clock of its node. `recovers_until` refers to the `time` of the last sweep: for
        each bucket the limit is as long after its own time in that sweep. If a node does not answer, the
        answers of the other nodes are returned as far as they must not be lost, and its times stay as they
        were.
        """
        later = recovers_until - max(self._times)
        untils = [its + later for its in self._times]
        due = self._claim(every) if limit and every else dict.fromkeys(range(BUCKETS), every)
        left, size, replies, problem = limit, 0, list[Reply](), None
        soon = dict[int, int | None]()
        while due:
            share = -(-left // len(due))
            shares = {number: share if place < left else 0 for place, number in enumerate(due)}
            calls = {
                it: script_call(*self.buckets[it].sweep(shares[it], pause, untils[it]))
                for it, pause in due.items()
            }
            self._nodes.ask_all(list(calls.values()))
            due = {}
            for number, call in calls.items():
                if call.error:
                    problem = call
                    continue
                reply = self.buckets[number].read(call.answer)
                self._marks[number], self._times[number] = reply.epoch, reply.time
                soon[number] = reply.due_in
                replies.append(reply)
                size += reply.size
                left -= reply.swept
                if reply.more:
                    due[number] = 0
            if left <= 0 or size > WOKEN_AT_ONCE:
                break
        if problem and not any(reply.wake or reply.aside or reply.unreadable for reply in replies):
            self._nodes.raise_error(problem)
        merged = Reply(
            Applied(any(reply.answer == Applied(True) for reply in replies)),
            tuple(wake for reply in replies for wake in reply.wake),
            tuple(aside for reply in replies for aside in reply.aside),
            more=bool(due),
            swept=limit - left,
            unreadable=tuple(pair for reply in replies for pair in reply.unreadable),
            due_in=min((it for it in soon.values() if it is not None), default=None),
            time=max(self._times),
            times=tuple(self._times),
        )
        return _with_epoch(merged, self._epoch or ("" if problem else self.epoch()))

    def _claim(self, every: int) -> dict[int, int]:
        """Return for each bucket the `every` of its sweep, after asking one of each node whether it is due.

        Nothing: another worker has swept. This costs the nodes one script each, and a GET for each other
        bucket, since the epochs of all buckets have to be heard. A bucket that is asked and due is marked as
        swept, so that other workers let this one do it.
        """
        owners, first = self._nodes.owners(), dict[Place | None, int]()
        nodes = [owners.get(slot_of(base)) for base in self._bases]
        for number, node in enumerate(nodes):
            first.setdefault(node, number)
        calls = [
            script_call(*self.buckets[number].sweep(0, every, NEVER))
            if number == first[node]
            else Call(("GET", f"{self._bases[number]}epoch"))
            for number, node in enumerate(nodes)
        ]
        self._nodes.ask_all(calls)
        failed = {number for number, call in enumerate(calls) if call.error}
        replies = {it: self.buckets[it].read(calls[it].answer) for it in {*first.values()} - failed}
        for number, node in enumerate(nodes):
            if number not in failed and (its := replies.get(first[node])):
                self._times[number] = its.time
                self._marks[number] = its.epoch if number in replies else to_text(calls[number].answer or b"")
        due = failed.union(it for it, its in replies.items() if its.answer == Applied(True))
        return {number: 0 if number in due else every for number in range(BUCKETS)} if due else {}

    def keep_namespace(
        self, broker: str, life: int, worker: WorkerRecord | None = None, *, adopts: bool = False
    ) -> str:
        return self.buckets[0].keep_namespace(broker, life, worker, adopts=adopts, has_line=self._has_line)

    def forget_worker(self, worker: WorkerRecord) -> None:
        self.buckets[0].forget_worker(worker)

    def namespace_owner(self, *, adopts: bool = False) -> str:
        return self.buckets[0].namespace_owner(adopts=adopts, has_line=self._has_line)

    def _has_line(self) -> bool:
        return any(self._ask_each("ZCARD", "due"))

    def workers(self, within: int = FORGOTTEN_AFTER) -> dict[int, list[WorkerRecord]]:
        return self.buckets[0].workers(within, by=self._nodes.primaries()[0])

    def times(self) -> Times:
        """Return the time of one node, and of the last sweep of the bucket that was swept longest ago."""
        sweeps = [read_sweep(mark) for mark in self._ask_each("GET", "reaped")]
        known = [swept for swept in sweeps if swept is not None]
        return Times(time_of(self._nodes.primaries()[0]), min(known) if len(known) == BUCKETS else None)

    def inspect(self, key: str) -> Snapshot:
        return self.buckets[bucket_of(key)].inspect(key)

    def inspect_all(self, keys: Sequence[str]) -> list[Snapshot]:
        """Return the states of several keys, for the keys of one bucket at one instant."""
        return self.buckets[0].read_inspection(self._ask_of(keys, RedisStore.inspections, keys))

    def holders(self, key: str) -> list[Owner]:
        return self.buckets[bucket_of(key)].holders_at(key, time_of(self._nodes.primaries()[0]))

    def forget(self, key: str) -> None:
        self.buckets[bucket_of(key)].forget(key)

    def line(self, key: str, after: Cursor | None = None, count: int = TASKS_PER_PAGE) -> Page:
        return self.buckets[bucket_of(key)].line(key, after, count)

    def parts(self, key: str, count: int = 1_000) -> list[Part]:
        return self.buckets[bucket_of(key)].parts(key, count)

    def messages_of(self, tasks: Sequence[tuple[str, str]]) -> list[bytes]:
        return self._ask_of([key for key, _ in tasks], RedisStore.readings, tasks)

    def places(self) -> Iterator[tuple[str, str]]:
        for bucket in self.buckets:
            yield from bucket.places()

    def lines(self) -> Iterator[KeyInLine]:
        firsts = dict.fromkeys(range(BUCKETS), 0)
        while firsts:
            calls = [script_call(*self.buckets[number].counting(first)) for number, first in firsts.items()]
            for (number, first), flat in zip([*firsts.items()], self._nodes.answers(calls), strict=True):
                found, later = self.buckets[number].read_lines(flat, first)
                yield from found
                if later is None:
                    del firsts[number]
                else:
                    firsts[number] = later

    def keys_of(self, task_id: str) -> Iterator[str]:
        waited_for = {line.key for line in self.lines() if line.all_waiting}
        for keys in batches(self.scan(), KEYS_PER_CALL):
            about = [(task_id, key, key in waited_for) for key in keys]
            found = self._ask_of(keys, RedisStore.searches, about)
            for key, answer in zip(keys, found, strict=True):
                yield from self.buckets[bucket_of(key)].found_in(task_id, [key], [answer])

    def scan(self, prefix: str = "") -> Iterator[str]:
        """Yield the keys, perhaps without some whose buckets move meanwhile."""
        seen = {to_text(key) for keys in self._ask_each("HKEYS", "unreadable") for key in keys}
        yield from (key for key in seen if key.startswith(prefix))
        for node in self._nodes.primaries():
            for name in map(to_text, names_like(node, f"{self._keys}{literal(prefix)}*")):
                key = name.partition("}:l:")[2]
                if key not in seen and name == f"{self._bases[bucket_of(key)]}l:{key}":
                    seen.add(key)
                    yield key

    def epoch(self) -> str:
        """Return the epoch of all buckets together, which changes when one node has lost its data."""
        marks = self._ask_each("GET", "epoch")
        if not all(marks):
            missing = [f"{base}epoch" for base, mark in zip(self._bases, marks, strict=True) if not mark]
            # Only these: a node that has its own may refuse all writes.
            self._nodes.answers([Call(("SET", name, urandom(8).hex(), "NX")) for name in missing])
            marks = self._ask_each("GET", "epoch")
        self._marks = [to_text(mark or b"") for mark in marks]
        return self._epoch

    @property
    def _epoch(self) -> str:
        """The epoch of the store, made of the marks of all buckets; "" while a mark is unknown."""
        marks = list(self._marks)
        return sha1(" ".join(marks).encode(), usedforsecurity=False).hexdigest()[:16] if all(marks) else ""

    def check(self) -> list[str]:
        nodes = self._nodes.primaries()
        warnings = [text for node in nodes for text in warnings_of(node, facts_of(node), self.url)]
        asked = time.monotonic()
        times = self.reap(limit=0, every=NEVER).times  # raises if the scripts may not run
        apart = max(times) - min(times) - (time.monotonic() - asked) * SECOND
        if apart > _SKEW:
            warnings.append(
                f"store {self.url}: the clocks of its nodes differ by {apart / SECOND:.0f} s or more, so a "
                "lease ends that much too early or too late when its slot moves: let a time service set them"
            )
        return list(dict.fromkeys(warnings))

    def close(self) -> None:
        self._nodes.close()

    def _mark(self, number: int, epoch: str) -> str:
        """Return the mark of a bucket, if `epoch` is the epoch of the store; else `epoch` itself."""
        if epoch != self._epoch:
            with suppress(StoreUnavailable):
                self.epoch()
        return self._marks[number] if epoch == self._epoch else epoch

    def _ask_of(
        self, keys: Sequence[str], ask: Callable[..., Iterable[Run]], about: Sequence[Any]
    ) -> list[Any]:
        """Send what `ask` says `about` the keys of each bucket; return the answers in their order."""
        places = defaultdict[int, list[int]](list)
        for place, key in enumerate(keys):
            places[bucket_of(key)].append(place)
        calls = [
            script_call(*run)
            for number, its in places.items()
            for run in ask(self.buckets[number], [about[place] for place in its])
        ]
        found = [item for answer in self._nodes.answers(calls) for item in answer]
        order = [place for its in places.values() for place in its]
        return [item for _, item in sorted(zip(order, found, strict=True), key=itemgetter(0))]

    def _ask_each(self, command: str, name: str) -> list[Any]:
        """Send a command for one name of each bucket; return the answers."""
        return self._nodes.answers([Call((command, f"{base}{name}")) for base in self._bases])


def bucket_of(key: str) -> int:
    """Return the bucket of a key, the same in all processes and versions."""
    return crc32(to_bytes(key)) % BUCKETS


def _with_epoch(reply: Reply, epoch: str) -> Reply:
    wakes = tuple(replace(wake, epoch=epoch or wake.epoch) for wake in reply.wake)
    return replace(reply, wake=wakes, epoch=epoch)
