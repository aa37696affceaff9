"""The seam: numbers the requests of a process, and lets the process die or stand still at one of them.

A request is a write to the broker, the store or the result backend, or one between a main process and its
child. Each role counts its own: "publisher", "main", "child 1" (the child with the first run of the case,
whichever it is), "child 2" (that with the second run), "heartbeat", "reaper" and the other threads. So a
number means the same request in each case, whatever the other roles do meanwhile.

The test arms a point by a plan, a file that each process reads before each request.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psycopg
import redis
from billiard.connection import Connection
from billiard.pool import ACK
from kombu.message import Message
from typing_extensions import Self

from celery_exclusive.stores.sql.postgres_connection import TranslatingCursor
from celery_exclusive.worker.reaper import Reaper
from tests.worker.journal import Journal

_COMMAND = re.compile(rb"(?:\A|\r\n)\*\d+\r\n\$\d+\r\n([A-Za-z]+)(?=\r\n)")
_VERB = re.compile(rb"\r\n(acquire|acquire_alone|enqueue|release|requeue|remove|recall|restore)\r\n")
_MESSAGE = {
    "tag": re.compile(rb'delivery_tag\\*": \\*"([0-9a-f-]{36})'),
    "id": re.compile(rb'"id\\*": \\*"([0-9a-f-]{36})'),
    "to": re.compile(rb'routing_key\\*": \\*"([^"\\]+)'),
}
"""What is told of a message that is sent, as kombu writes it on Redis."""
_SILENT = re.compile(rb"pidbox|unacked_mutex|celeryev|answers:|asks:|door:")
"""Words of what is no part of a task's life: commands to workers, the doors of the tests."""
_IDLE = {
    *("AUTH", "BRPOP", "CLIENT", "CONFIG", "EXEC", "GET", "HELLO", "INFO", "LLEN", "MULTI", "PING", "SCAN"),
    *("SELECT", "SMEMBERS", "SUBSCRIBE", "UNSUBSCRIBE", "PSUBSCRIBE", "PUNSUBSCRIBE", "WATCH", "UNWATCH"),
    *("SCRIPT", "ZRANGE"),
}
"""Commands that alone change nothing for others."""
_METHODS = {
    (60, 40): "publish", (60, 80): "ack", (60, 90): "reject", (60, 120): "nack",
    (85, 10): "confirm", (90, 10): "tx", (50, 10): "declare",
}  # fmt: skip
"""The methods of AMQP that are counted."""
_STATEMENTS = ("BEGIN ISOLATION LEVEL READ COMMITTED", "COMMIT", "grant", "release")
"""The statements of PostgreSQL that are counted: what a transaction does in between, it does in one."""
_LENGTH = 4
"""The bytes of a message's length, which a pipe carries before it."""
_THREADS = {"exclusive-reaper": "reaper", "exclusive-courier": "courier", "exclusive-releaser": "releaser"}


@dataclass(frozen=True)
class Plan:
    """Where one of the processes of these names ends, in this case; without a role they only count.

    `how`: "child" kills the process itself, "worker" the main process with its children, "pause" stops these.
    """

    case: str
    names: list[str]
    role: str = ""
    number: int = 0
    moment: str = ""
    how: str = ""

    @classmethod
    def read(cls, path: str) -> Self | None:
        try:
            return cls(**json.loads(Path(path).read_text()))
        except FileNotFoundError:
            return None

    def write(self, path: Path) -> None:
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(self)))
        new.replace(path)


class Seam:
    """The requests of this process and of the children that it forks.

    Parameters:
        name: of the worker or publisher, as a plan names it.
        path: of the plan; beside it are the marks of what has happened once.
        record: where each counted request, and the end of a process, is written.
        doors: a client of the Redis that has the results.
    """

    def __init__(self, name: str, path: str, record: Journal, doors: redis.Redis) -> None:
        self.name, self.path, self.record, self.doors = name, path, record, doors
        self._main = os.getpid()
        self._case = ""
        self._child = 0
        self._counts: Counter[str] = Counter()
        self._acknowledged = threading.local()
        self._dies = False

    def install(self) -> None:
        """Stand at each write of this process."""
        self._wrap(socket.socket, "sendall", lambda _, data, *__: about(bytes(data)))
        self._wrap(Connection, "_send", self._about_pipe)
        self._wrap(Connection, "send_offset", lambda *_: {"label": "pipe"})
        self._wrap(psycopg.Cursor, "execute", lambda _, query, *__, **___: about_statement(str(query)))
        self._wrap(TranslatingCursor, "send", lambda _, request, *__: about_statement(request.name.decode()))
        self._note_acknowledgements()

        Reaper.sweep = self._sweeping(Reaper.sweep)  # type: ignore[method-assign]

    def _about_pipe(self, _: Connection, data: bytes, *__: Any) -> dict[str, str]:
        """Return what a process tells the other one: the first word of a child's run begins a new role."""
        if os.getpid() != self._main:
            length, message = int.from_bytes(data[:_LENGTH], "big"), data[_LENGTH:]
            if len(message) == length and pickle.loads(message)[0] == ACK:  # else it is a part of a long one
                self._child = 0
        return {"label": "pipe"}

    def _note_acknowledgements(self) -> None:
        """Put on the record which message is acknowledged."""
        ack = Message.ack

        def noted(message: Message, *args: Any, **kwargs: Any) -> Any:
            own = message.headers.get("exclusive") or {}
            marks = {"publish": own.get("id"), "promoted": own.get("promoted")}
            self._acknowledged.message = {"acknowledges": message.headers.get("id"), **marks}
            try:
                return ack(message, *args, **kwargs)
            finally:
                self._acknowledged.message = {}

        Message.ack = noted

    def _sweeping(self, sweep: Callable[..., float | None]) -> Callable[..., float | None]:
        """Let the reaper sweep only if the test lets this worker sweep."""

        def sweep_or_not(reaper: Reaper, *, is_due: bool = False) -> float | None:
            sweepers = Path(f"{self.path}.sweepers")
            may_sweep = not sweepers.exists() or self.name in sweepers.read_text().split()
            return sweep(reaper, is_due=is_due) if may_sweep else None

        return sweep_or_not

    def _wrap(self, owner: type, name: str, tell: Callable[..., dict[str, str]]) -> None:
        write = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            with self.request(tell(*args, **kwargs)):
                return write(*args, **kwargs)

        setattr(owner, name, counted)

    @contextmanager
    def request(self, what: dict[str, str]) -> Iterator[None]:
        """Count a request, and end before or after it if the plan says so."""
        plan = Plan.read(self.path) if what and not self._dies else None
        if plan is None or self.name not in plan.names:
            yield
            return
        role, number = self._count(plan)
        message = getattr(self._acknowledged, "message", {})
        here = {"case": plan.case, "role": role, "number": number, **what, **message}
        self._pass(plan, "before", here)
        yield
        self._pass(plan, "after", here)

    def _count(self, plan: Plan) -> tuple[str, int]:
        if plan.case != self._case:
            self._case, self._child = plan.case, 0
            self._counts.clear()
        role = self._role()
        self._counts[role] += 1
        return role, self._counts[role]

    def _role(self) -> str:
        thread = threading.current_thread().name
        if os.getpid() != self._main:
            while not self._child:
                self._child = next(number for number in range(1, 100) if self._is_first(f"child {number}"))
            return f"child {self._child}"
        if thread == "MainThread":
            return "publisher" if self.name == "publisher" else "main"
        return "heartbeat" if thread.startswith("Dummy") else _THREADS.get(thread, thread)

    def _is_first(self, mark: str) -> bool:
        """Leave a mark; False if it was there before in this case."""
        try:
            os.close(os.open(f"{self.path}.{self._case}.{mark}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def _pass(self, plan: Plan, moment: str, here: dict[str, Any]) -> None:
        self.record.write("request", moment=moment, **here)
        point = (plan.role, plan.number, plan.moment)
        if (here["role"], here["number"], moment) == point and self._is_first("end"):
            if plan.how == "child":
                self._dies = True
                end_claims(self.doors)
            self.record.write("end of process", how=plan.how, moment=moment, **here)
            self._end(plan.how)

    def _end(self, how: str) -> None:
        if how == "child":
            os.kill(os.getpid(), signal.SIGKILL)
        os.killpg(0, signal.SIGSTOP if how == "pause" else signal.SIGKILL)
        if how == "worker":
            signal.pause()


def end_claims(results: redis.Redis) -> None:
    """Let Celery's claims to publish the bodies of chords expire.

    They last 10 s. If the part of a dead process is redelivered before that, Celery never publishes the body.
    """
    for name in results.scan_iter("celery-taskset-meta-*.c"):
        if results.get(name) != b"done":
            results.delete(name)


def ids_in(message: bytes) -> list[str]:
    """Return the ids of the tasks whose messages these are."""
    return [id.decode() for id in _MESSAGE["id"].findall(message)]


def about(data: bytes) -> dict[str, str]:
    """Return what the bytes ask for, and for which task; nothing about what is not counted."""
    if _SILENT.search(data):
        return {}
    if data.startswith(b"*"):
        words = [word.decode().upper() for word in _COMMAND.findall(data)]
        if set(words) <= _IDLE:
            return {}
        verb = _VERB.search(data)
        told = {"label": "+".join(words) + (f" {verb[1].decode()}" if verb else "")}
        for name, pattern in _MESSAGE.items():
            if found := pattern.search(data):
                told[name] = found[1].decode()
        return told
    if len(data) > 11 and data[0] == 1:  # a frame of a method
        method = int.from_bytes(data[7:9], "big"), int.from_bytes(data[9:11], "big")
        return {"label": _METHODS[method]} if method in _METHODS else {}
    return {}


def about_statement(text: str) -> dict[str, str]:
    """Return which of the counted statements it is."""
    return next(
        ({"label": f"sql {each.split()[0].lower()}"} for each in _STATEMENTS if text.startswith(each)), {}
    )
