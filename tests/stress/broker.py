"""A small broker with acknowledgement and redelivery, that can lose acknowledgements and redeliver early."""

from __future__ import annotations

import heapq
import random
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from celery_exclusive.stores.base import Wake


@dataclass(frozen=True)
class Message:
    id: str
    key: str
    promoted: str | None = None
    redelivered: bool = False

    @property
    def kind(self) -> str:
        return "redelivered" if self.redelivered else "promoted" if self.promoted else "fresh"


_ASKED = 0
"""No tag: stands among a consumer's tags once it has asked for a message."""


class Broker:
    """Serves `Consumer`s over a Unix socket, each in a thread of its own, once all `workers` have asked."""

    def __init__(self, address: str, *, workers: int, seed: int, lost_acks: float, visibility: float) -> None:
        self._awaited = workers
        self._random = random.Random(seed)
        self._lost_acks = lost_acks
        self._visibility = visibility
        self._ready: deque[Message] = deque()
        self._late: list[tuple[float, int, Message]] = []
        self._unacked: dict[int, tuple[float, Message]] = {}
        self._shelves: dict[str, deque[Message]] = {}
        self._looked_at: set[str] = set()
        self._tags = 0
        self._closed = False
        self._changed = threading.Condition()
        self._listener = Listener(address, "AF_UNIX", backlog=64)
        self._address = address
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def publish(self, message: Message, *, at_head: bool = False) -> None:
        with self._changed:
            (self._ready.appendleft if at_head else self._ready.append)(message)
            self._changed.notify()

    def is_quiet(self) -> bool:
        """Nothing to deliver and nothing unacknowledged: without help from outside, nothing will happen."""
        with self._changed:
            return not (self._ready or self._late or self._unacked)

    def close(self) -> None:
        """Tell every consumer to end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        Client(self._address, "AF_UNIX").close()
        self._listening.join()
        self._listener.close()

    def _listen(self) -> None:
        while not self._closed:
            connection = self._listener.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        mine: set[int] = set()
        try:
            while True:
                verb, *arguments = connection.recv()
                connection.send(getattr(self, f"_do_{verb}")(mine, *arguments))
        except (EOFError, OSError):
            with self._changed:
                for tag in mine & self._unacked.keys():
                    self._redeliver(tag)
        finally:
            connection.close()

    def _redeliver(self, tag: int) -> None:
        _, message = self._unacked.pop(tag)
        self._ready.appendleft(replace(message, redelivered=True))
        self._changed.notify()

    def _do_get(self, mine: set[int]) -> tuple[int, Message] | None:
        with self._changed:
            if _ASKED not in mine:
                mine.add(_ASKED)
                self._awaited -= 1
            while not self._closed:
                now = time.monotonic()
                for tag, (since, _) in list(self._unacked.items()):
                    if since < now - self._visibility:
                        self._redeliver(tag)
                while self._late and self._late[0][0] <= now:
                    self._ready.append(heapq.heappop(self._late)[2])
                if self._ready and self._awaited <= 0:
                    self._tags += 1
                    self._unacked[self._tags] = now, self._ready.popleft()
                    mine.add(self._tags)
                    return self._tags, self._unacked[self._tags][1]
                self._changed.wait(0.05)
            return None

    def _do_ack(self, mine: set[int], tag: int) -> None:
        with self._changed:
            mine.discard(tag)
            _, message = self._unacked.pop(tag, (0, None))
            if message and self._random.random() < self._lost_acks:
                due = time.monotonic() + self._random.uniform(0, 0.5)
                heapq.heappush(self._late, (due, tag, replace(message, redelivered=True)))

    def _do_requeue(self, mine: set[int], tag: int) -> None:
        with self._changed:
            mine.discard(tag)
            if tag in self._unacked:
                self._redeliver(tag)

    def _do_postpone(self, mine: set[int], tag: int) -> None:
        with self._changed:
            mine.discard(tag)
            _, message = self._unacked.pop(tag, (0, None))
            if message:
                due = time.monotonic() + self._random.uniform(0.02, 0.1)
                heapq.heappush(self._late, (due, tag, replace(message, redelivered=True)))

    def _do_publish(self, mine: set[int], message: Message) -> None:
        self.publish(message, at_head=True)

    def _do_shelve(self, mine: set[int], message: Message) -> None:
        with self._changed:
            while message.key not in self._looked_at and not self._closed:
                self._changed.wait(0.05)  # the worst moment: just after the holder has looked
            self._shelves.setdefault(message.key, deque()).append(message)

    def _do_unshelve(self, mine: set[int], key: str) -> None:
        with self._changed:
            self._looked_at.add(key)
            if self._shelves.get(key):
                self._ready.appendleft(self._shelves[key].popleft())
                self._changed.notify()


class Consumer:
    """A process's connection to the broker. What it has not acknowledged when it dies is delivered again."""

    def __init__(self, address: str) -> None:
        self._connection = Client(address, "AF_UNIX")

    def get(self) -> tuple[int, Message] | None:
        """Wait for a message; None: the broker closes."""
        delivery: tuple[int, Message] | None = self._ask("get")
        return delivery

    def ack(self, tag: int) -> None:
        self._ask("ack", tag)

    def requeue(self, tag: int) -> None:
        self._ask("requeue", tag)

    def postpone(self, tag: int) -> None:
        """Publish a message again for a little later: for a store without lines."""
        self._ask("postpone", tag)

    def publish(self, wakes: Iterable[Wake]) -> None:
        """Publish offers to the head of the queue."""
        for wake in wakes:
            assert wake.message == f"message of {wake.id}".encode()
            self._ask("publish", Message(wake.id, wake.key, promoted=wake.epoch))

    def shelve(self, message: Message) -> None:
        """Keep a message aside: for a worker that parks in a second step, as it must not."""
        self._ask("shelve", message)

    def unshelve(self, key: str) -> None:
        self._ask("unshelve", key)

    def _ask(self, verb: str, *arguments: object) -> Any:
        self._connection.send((verb, *arguments))
        return self._connection.recv()
