"""The nodes of a Redis Cluster, as one server: each command goes to the node that has its slot.

redis-py's own cluster client cannot take its place, as `make bench ROWS=cluster` shows: it follows ASK, it
sends nothing to any node while one of them is silent, and its locks do not survive a fork.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from redis import exceptions
from redis.cluster import parse_cluster_slots

from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.stores.redis.address import Place, parse_cluster
from celery_exclusive.stores.redis.node import Call, Node, script_call
from celery_exclusive.stores.redis.protocol import Command
from celery_exclusive.stores.redis.scripts import Script
from celery_exclusive.stores.redis.witness import Witness
from celery_exclusive.system.deadline import at_most, deadline

_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.25
"""Seconds between two attempts."""


class Nodes:
    """All nodes of a cluster. One client each, for many threads, greenlets and forked children.

    `place` is empty: no message can be pushed together with a lease.

    The answer ASK is not followed. A node that gives a slot away sends it: while data of a lock are on their
    way, neither node has all of them, and the new node would find a held lock free. The old node executes
    nothing, since scripts are called with their base as the name of data, and no data have that name. So a
    call waits until the slot has moved.

    Parameters:
        witnesses: the witness of each slot.
    """

    place = ""

    def __init__(self, url: str, witnesses: Mapping[int, Witness]) -> None:
        self._witnesses = witnesses
        self.url, start = parse_cluster(url)
        self._first, self._start = start[0], [node.host_and_port for node in start]
        self._owners: dict[int, Place] | None = None
        self._nodes = dict[Place, Node]()
        for place in self._start:
            self._node(place)

    def run(self, script: Script, base: str, *arguments: object, again: Command = (), **_: object) -> Any:
        """Run a script on the node of its base."""
        return self.answers([script_call(script, base, *arguments, again=again)])[0]

    def ask(self, *command: object) -> Any:
        """Send a command to the node of the name that follows its first word."""
        return self.answers([Call(command)])[0]

    def answers(self, calls: Sequence[Call]) -> list[Any]:
        """Return the answers to all calls, or raise after all calls that can be executed were executed."""
        self.ask_all(calls)
        for call in calls:
            self.raise_error(call)
        return [call.answer for call in calls]

    def ask_all(self, calls: Sequence[Call]) -> None:
        """Send the commands of each node in one round trip, again and again until all are answered.

        It ends when the timeout is over. Each call has its answer or its error then.

        Raises:
            StoreUnavailable: nothing was sent, since no node reports the owners of the slots.
        """
        if not calls:
            return
        timeout = left = at_most(self._node(self._start[0]).timeout)
        until, pause = time.monotonic() + timeout, 0.0
        with deadline(timeout):
            self._exchange(calls)
        while left > 0:
            wait = pause * random.uniform(0.5, 1)
            left = until - time.monotonic() - wait
            # A node that does not answer uses up the time of all: what others only sent on goes once more.
            calls = [call for call in calls if call.is_open and (left > 0 or call.is_sent_on)]
            if not calls:
                return
            time.sleep(wait)
            with deadline(left if left > 0 else timeout), suppress(StoreUnavailable):
                self._exchange(calls)
            pause = min(max(2 * pause, _FIRST_PAUSE), _LONGEST_PAUSE)

    def owners(self) -> dict[int, Place]:
        """Return the owner of each slot, as far as it is known."""
        return self._owners or self._find_owners()

    def primaries(self) -> list[Node]:
        """Return the nodes that have buckets, as the cluster reports them now."""
        return [self._node(place) for place in sorted(set(self._find_owners().values()))]

    def raise_error(self, call: Call) -> None:
        """Raise StoreUnavailable, with the next step, if the call has no answer."""
        if call.error:
            if call.is_repeated:
                vars(call.error)["failure"] = StoreUnavailable  # a node may have done what was sent first
            self._node(call.place or self._start[0]).explain(call.error)

    def close(self) -> None:
        for node in list(self._nodes.values()):
            node.close()

    def _exchange(self, calls: Sequence[Call]) -> None:
        """Send all commands, then read all answers."""
        owners = self.owners()
        groups = defaultdict[Place, list[Call]](list)
        for call in calls:
            call.place = owners.get(call.slot)
            if call.place:
                groups[call.place].append(call)
            else:
                call.error = exceptions.ClusterDownError("Hash slot not served")
        nodes = [(self._node(place), group) for place, group in groups.items()]
        exchanges = [node.exchange(group) for node, group in sorted(nodes, key=lambda it: it[0].has_failed)]
        try:
            for _ in range(2):
                for exchange in exchanges:
                    next(exchange, None)
        finally:
            for exchange in exchanges:
                exchange.close()
        for call in calls:
            if call.place and isinstance(call.error, exceptions.MovedError):
                self._move(call.slot, (call.error.host or call.place[0], call.error.port))
            elif call.is_open and not call.is_sent_on:
                self._owners = None

    def _move(self, slot: int, to: Place) -> None:
        """Note that a slot has moved, so that its witness is heard again on any node."""
        for node in list(self._nodes.values()):
            node.heard.discard(slot)
        if self._owners:
            self._owners[slot] = to

    def _find_owners(self) -> dict[int, Place]:
        """Return the owner of each slot, as a node reports it. Nodes that answered last are asked first."""
        problem = None
        for asked, node in sorted(self._nodes.items(), key=lambda it: (it[1].has_failed, random.random())):
            try:
                with deadline(at_most(node.timeout) / 2):  # another one may answer
                    reply = node.ask("CLUSTER", "SLOTS")
            except StoreUnavailable as error:
                node.has_failed, problem = True, error
                continue
            owners, places = read_slots(reply, asked[0], self._witnesses)
            self._owners = owners
            for place in places:
                self._node(place)
            for place, known in list(self._nodes.items()):
                known.heard = set()  # a slot that returns may have lost data
                if place not in places and place not in self._start:  # it has left the cluster
                    self._nodes.pop(place, None)
                    known.close()
            return owners
        raise problem or AssertionError

    def _node(self, place: Place) -> Node:
        node = self._nodes.get(place)
        if node is None:
            made = Node(self._first.of_node(*place), self.url, self._witnesses)
            node = self._nodes.setdefault(place, made)
        return node


def read_slots(reply: Any, asked: str, slots: Collection[int]) -> tuple[dict[int, Place], set[Place]]:
    """Read the reply to CLUSTER SLOTS: the primary of each of these slots, and all nodes.

    A node may not know its own host. The client has reached it as `asked`.
    """
    owners, places = dict[int, Place](), set[Place]()
    for (first, last), members in parse_cluster_slots(reply, current_host=asked).items():
        primary: Place = members["primary"]
        owners.update((slot, primary) for slot in slots if first <= slot <= last)
        places.update((primary, *members["replicas"]))
    return owners, places
