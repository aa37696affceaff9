"""Finds the node of each bucket of a Redis Cluster, and follows the buckets when they move."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from redis import exceptions

from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.stores.redis import start_nodes
from celery_exclusive.stores.redis.call import Call
from celery_exclusive.stores.redis.node import Node
from celery_exclusive.stores.redis.slots import Table, read_table
from celery_exclusive.stores.redis.start_nodes import Place
from celery_exclusive.stores.redis.witness import Witness
from celery_exclusive.system.deadline import at_most, deadline

_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.25
"""Seconds between two attempts."""


class Nodes:
    """The nodes of a cluster. One client each, for many threads, greenlets and forked children.

    The answer ASK is not followed. It comes from a node that gives a slot away: while data of a lock are on
    their way, neither node has all of them, and the new one would find a held lock free. The old one executes
    nothing, since scripts are called with their base as the name of data, and no data have that name. So a
    call waits until the slot has moved.
    """

    def __init__(self, url: str, witnesses: Sequence[Witness]) -> None:
        self._witnesses = witnesses
        self._start = start_nodes.parse(url)
        self.url = self._start.shown
        self._clients: dict[Place, Node] = {}
        self._table: Table | None = None
        self._places = frozenset(self._start.places)

    def ask(self, call: Call) -> Any:
        """Return the answer to one call."""
        self.ask_all([call])
        self.raise_error(call)
        return call.answer

    def ask_all(self, calls: Sequence[Call]) -> None:
        """Send the commands of each node in one round trip, again and again until all are answered.

        It ends when the timeout is over. Each call has its answer or its error then.

        Raises:
            StoreUnavailable: nothing was sent, since no node can tell which of them has which slot.
        """
        if not calls:
            return
        timeout = at_most(self._any().timeout)
        until = time.monotonic() + timeout
        with deadline(timeout):
            self._exchange(calls)
        for pause in _pauses():
            left = until - time.monotonic() - pause
            # A node that does not answer uses up the time of all: what others only sent on goes once more.
            calls = [call for call in calls if call.is_open and (left > 0 or call.is_sent_on)]
            if not calls:
                return
            time.sleep(pause)
            with deadline(left if left > 0 else timeout), suppress(StoreUnavailable):
                self._exchange(calls)
            if left <= 0:
                return

    def primaries(self) -> list[Node]:
        """Return the nodes that have buckets, as the cluster says now."""
        self._table = None
        return [self._client(place) for place in sorted({it for it in self._known().primaries if it})]

    def raise_error(self, call: Call) -> None:
        """Raise StoreUnavailable, with the next step, if the call has no answer."""
        if call.error:
            (self._client(call.place) if call.place else self._any()).explain(call.error)

    def close(self) -> None:
        for node in list(self._clients.values()):
            node.close()

    def _exchange(self, calls: Sequence[Call]) -> None:
        """Send all, then read all."""
        table = self._known()
        groups = defaultdict[Place, list[Call]](list)
        for call in calls:
            call.place = table.primaries[call.bucket]
            if call.place:
                groups[call.place].append(call)
            else:
                call.error = exceptions.ClusterDownError("Hash slot not served")
        under_way: list[tuple[Node, Any, list[Call]]] = []
        try:
            nodes = [(self._client(place), group) for place, group in groups.items()]
            for node, group in sorted(nodes, key=lambda it: it[0].has_failed):
                if connection := node.send(group):
                    under_way.append((node, connection, group))
            while under_way:
                node, connection, group = under_way.pop()
                node.receive(connection, group)
        finally:
            for _, connection, _ in under_way:
                connection.disconnect()
        self._learn(table, calls)

    def _learn(self, table: Table, calls: Sequence[Call]) -> None:
        """Note which buckets have moved; read the table again if it may be wrong otherwise."""
        for call in calls:
            error = call.error
            if isinstance(error, exceptions.MovedError) and call.place:
                table = table.move(call.bucket, (error.host or call.place[0], error.port))
                self._note(table)
            elif call.is_open and not call.is_sent_on:
                self._table = None
                return

    def _known(self) -> Table:
        """Return the table of buckets, as any node tells it: first those that answered last."""
        table = self._table
        if table:
            return table
        nodes = [self._client(place) for place in {*self._start.places, *self._places}]
        problem = None
        for node in sorted(nodes, key=lambda node: (node.has_failed, random.random())):
            try:
                with deadline(at_most(node.timeout) / 2):  # another one may answer
                    reply = node.ask("CLUSTER", "SLOTS")
            except StoreUnavailable as error:
                node.has_failed, problem = True, error
                continue
            table = read_table(reply, node.host)
            self._note(table)
            self._places = table.nodes
            return table
        raise problem or AssertionError

    def _note(self, table: Table) -> None:
        """Note where the buckets are. One that comes back to a node may have lost data meanwhile."""
        self._table = table
        for place, node in list(self._clients.items()):
            its = {it for it, at in enumerate(table.primaries) if at == place}
            node.heard.intersection_update(its)  # not `&=`: another thread may have begun a new set
            if place not in table.nodes and place not in self._start.places:  # it has left the cluster
                self._clients.pop(place, None)
                node.close()

    def _any(self) -> Node:
        return self._client(self._start.places[0])

    def _client(self, place: Place) -> Node:
        node = self._clients.get(place)
        if node is None:
            made = Node(self._start.url_of(place), place, self.url, self._witnesses)
            node = self._clients.setdefault(place, made)
        return node


def _pauses() -> Iterator[float]:
    """Yield how long to wait before each further attempt: not at all at first, then longer and longer."""
    pause = _FIRST_PAUSE
    yield 0
    while True:
        yield pause * random.uniform(0.5, 1)
        pause = min(2 * pause, _LONGEST_PAUSE)
