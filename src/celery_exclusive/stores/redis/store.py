"""The store of redis://, rediss://, redis+socket:// and valkey URLs: one Lua script per operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from os import urandom
from typing import Any

from celery_exclusive.core.claim import task_id
from celery_exclusive.core.operations import (
    AcquireAlone,
    Applied,
    Enqueue,
    Granted,
    KeyOperation,
    Owner,
    Parked,
    Renew,
)
from celery_exclusive.core.records import NEVER, SECOND, Part
from celery_exclusive.core.room import Terms
from celery_exclusive.errors import OptionError, StoreUnavailable, UnreadableKey
from celery_exclusive.stores.base import (
    TASKS_PER_PAGE,
    Capabilities,
    Cursor,
    KeyInLine,
    Page,
    Reply,
    Snapshot,
    Times,
    as_repeated,
)
from celery_exclusive.stores.redis import address, protocol, scripts
from celery_exclusive.stores.redis.apply import (
    AGAIN,
    APPLY,
    read_lease,
    read_line,
    read_owners,
    read_page,
    read_reply,
    shorten,
    words_of,
)
from celery_exclusive.stores.redis.client import Client, Connection, Repeated, Server
from celery_exclusive.stores.redis.next_steps import CLUSTER
from celery_exclusive.stores.redis.server_facts import facts_of, warnings_of
from celery_exclusive.stores.redis.witness import Witness
from celery_exclusive.stores.text import to_text
from celery_exclusive.stores.workers import FORGOTTEN_AFTER, WorkerRecord, by_number

from redis import exceptions  # isort: skip - `protocol` has said what is missing

_RENEW = scripts.load("renew.lua", arguments="now key id token ttl", reply="found")
_NAMESPACE = scripts.load("namespace.lua", arguments="now broker life adopts worker forgotten", reply="owner")
_LINE = scripts.load("line.lua", arguments="now key kind place id count", reply="problem time more tasks")
_MESSAGES = scripts.load("messages.lua", arguments="key id", reply="messages")
_LINES = scripts.load("lines.lua", arguments="now first last", reply="found")
_FIND = scripts.load("find.lua", arguments="task key waits", reply="found")
_INSPECT = scripts.load("inspect.lua", arguments="now key", reply="seen")

_TIME = protocol.pack(("TIME",))
_LEASES_PER_CALL = 500
_PLACES_PER_CALL = 1000
KEYS_PER_CALL = 500
"""A Redis looks for a task in the holders and lines of so many keys in 2 milliseconds."""
_LINES_PER_CALL = 500
"""A Redis, which does nothing else meanwhile, counts so many lines in 2 milliseconds."""
_SHARED = {"fence": "GET", "epoch": "GET", "due": "ZCARD"}
"""The names that all keys share, and a command that fails if another program has overwritten one."""
_DAMAGE = ("WRONGTYPE", "MALFORMED", "attempt to", "bad argument")
"""Words of errors that mean damaged data of a key, as in document.lua, and not a failing server."""
_CONFIRMED = frozenset(("acquire", "acquire_alone", "enqueue", "restore"))
"""The verbs after which a body begins or continues, or a message is acknowledged."""
Run = tuple[Any, ...]
"""The arguments of `Server.run`: a script, the base of its names, and its arguments."""
_RELEASED = _OFFERED = Reply(Applied(True))


class RedisStore:
    """A store on a Redis or Valkey server, whose clock decides.

    `clock`, if a test sets it, returns the time in microseconds instead. `may_push`: the server has not
    refused to push a message.
    """

    capabilities = Capabilities()

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "cx",
        offer: int = 5_000_000,
        tombstone_ttl: int = 600_000_000,
        client: Server | None = None,
        witness: Witness | None = None,
    ) -> None:
        self._witness = witness or Witness(f"{prefix}2:{{0}}:")
        self._base, self._prefix = self._witness.base, prefix
        self._client: Server = client or self.connect(url)
        self.url, self.may_push = self._client.url, True
        self._replicas = self._client.replicas if isinstance(self._client, Client) else 0
        self.clock: Callable[[], int | str] = _clock_of_the_server
        self._settings = f"{offer} {tombstone_ttl} "

    def connect(self, url: str) -> Client:
        return Client(address.parse(url), self._witness)

    def apply(
        self, key: str, operation: KeyOperation, *more: object, run: Callable[..., Any] | None = None
    ) -> Reply:
        """Do one operation on one key. `more`: fields to add to the request. `run`: the way to send it."""
        words = words_of(key, operation, self.clock(), self._settings)
        verb = words[1]
        replicas = self._replicas if verb in _CONFIRMED else 0
        run, again = run or self._client.run, AGAIN.get(verb, ())
        try:
            reply = run(APPLY, self._base, *words, *more, again=again, replicas=replicas)
        except StoreUnavailable as error:
            if not _is_damage(error):
                raise
            self._check_own_names()
            raise UnreadableKey(key, shorten(error.refusal), self.url) from error
        if isinstance(reply, int):  # a quick way
            if verb == "release":
                return _RELEASED
            self._witness.note(reply)
            return _OFFERED if verb == "enqueue" else Reply(Granted(reply))
        if len(reply) == 1:
            raise _Refused
        if len(reply) == 2:  # the quick way into the line
            self._witness.note(reply[1])
            return Reply(Parked(reply[0], ()))
        return as_repeated(self.read(reply), operation) if isinstance(reply, Repeated) else self.read(reply)

    def begin(self, key: str, operation: AcquireAlone) -> Connection | None:
        """Send an operation, and return the connection from which `finish` reads the reply. None: not sent.

        A caller that does not call `finish` must disconnect the connection. The server may still execute the
        operation.
        """
        if self._replicas or not isinstance(self._client, Client):
            return None
        words = words_of(key, operation, self.clock(), self._settings)
        return self._client.begin(APPLY, self._base, *words)

    def finish(self, key: str, operation: AcquireAlone, begun: Connection) -> Reply:
        return self.apply(key, operation, run=partial(self._client.run, begun=begun))

    def acquire_and_push(
        self,
        key: str,
        operation: AcquireAlone | Enqueue,
        to: str,
        payload: bytes | None = None,
        client: Any = None,
    ) -> Reply | None:
        """Apply the operation, and push a message onto a list of this server if its lease or offer is new.

        None: the server refuses to push, and has done nothing. `payload`: what is pushed, if it is not the
        message of the operation. `client`: a client of redis-py sends the request.
        """
        more: tuple[object, ...] = ("list", to) if payload is None else ("list", to, "payload", payload)
        try:
            if client:
                with suppress(exceptions.ResponseError):  # its user may have no rights on our names
                    return self.apply(key, operation, *more, run=partial(scripts.run_by, client))
            return self.apply(key, operation, *more)
        except _Refused:
            self.may_push = False
            return None

    def renew(self, leases: Sequence[tuple[str, Renew]]) -> list[bool]:
        answers = [self._client.run(*run, replicas=self._replicas) for run in self.renewals(leases)]
        return [bool(found) for answer in answers for found in answer]

    def renewals(self, leases: Sequence[tuple[str, Renew]]) -> Iterator[Run]:
        for first in range(0, len(leases), _LEASES_PER_CALL):
            batch = leases[first : first + _LEASES_PER_CALL]
            words = [word for key, it in batch for word in (key, it.id, it.token, it.ttl)]
            yield _RENEW, self._base, self.clock(), *words

    def reap(self, limit: int = 100, every: int = 0, *, recovers_until: int = NEVER) -> Reply:
        return self.read(self._client.run(*self.sweep(limit, every, recovers_until)))

    def sweep(self, limit: int, every: int, recovers_until: int) -> Run:
        head = (self.clock(), "reap", "", "", "", "", self._settings + urandom(8).hex())
        return APPLY, self._base, *head, "limit", limit, "every", every, "recovers_until", recovers_until

    def read(self, reply: Any) -> Reply:
        """Read the whole reply of apply.lua, and note its last fence."""
        if drawn := reply[-1]:
            self._witness.note(drawn)
        return read_reply(reply)

    def keep_namespace(
        self,
        broker: str,
        life: int,
        worker: WorkerRecord | None = None,
        *,
        adopts: bool = False,
        has_line: Callable[[], bool] | None = None,
    ) -> str:
        record = worker.text if worker else b""
        owner = self._keep(broker, life, record, adopts=adopts)
        if owner == broker or adopts or (has_line or self.has_line)():
            return owner
        return self._keep(broker, life, record, adopts=True)

    def _keep(self, broker: str, life: int, record: bytes, *, adopts: bool) -> str:
        about = (broker, life, int(adopts), record, FORGOTTEN_AFTER)
        return to_text(self._client.run(_NAMESPACE, self._base, self.clock(), *about))

    def forget_worker(self, worker: WorkerRecord) -> None:
        self._client.ask("ZREM", f"{self._base}workers", worker.text)

    def namespace_owner(self, *, adopts: bool = False, has_line: Callable[[], bool] | None = None) -> str:
        owner = self._client.ask("GET", f"{self._base}broker")
        is_kept = self._client.ask("GET", f"{self._base}kept") is not None
        is_kept = is_kept or (not adopts and (has_line or self.has_line)())
        return to_text(owner) if owner is not None and is_kept else ""

    def workers(
        self, within: int = FORGOTTEN_AFTER, *, by: Server | None = None
    ) -> dict[int, list[WorkerRecord]]:
        """Return the workers that were heard within this time, `by` the clock of a node in a cluster."""
        is_all = within >= FORGOTTEN_AFTER
        since = 0 if is_all else int(self.clock() or time_of(by or self._client)) - within
        try:
            return by_number(self._client.ask("ZRANGEBYSCORE", f"{self._base}workers", f"({since}", "+inf"))
        except StoreUnavailable as error:
            if "WRONGTYPE" in error.refusal:
                return {}
            raise

    def times(self) -> Times:
        swept = self._client.ask("GET", f"{self._base}reaped")
        return Times(int(self.clock() or time_of(self._client)), read_sweep(swept))

    def has_line(self) -> bool:
        """Whether a message is stored here."""
        return bool(self._client.ask("ZCARD", f"{self._base}due"))

    def holder(self, key: str) -> str:
        """Return the id of the only holder of a key; "" without one, and where it takes a script to tell.

        To run a script costs the server more than these two commands. The time is the older of the two, so an
        expired lease never counts as one that lives.
        """
        if not isinstance(self._client, Client):
            return ""
        command = protocol.pack(("HGETALL", f"{self._base}l:{key}"))
        time, fields = self._client.ask_at_once(_TIME + command, 2) or ([], [])
        if not (isinstance(fields, list) and isinstance(time, list) and len(fields) == 4):
            return ""
        id, lease = fields[:2] if fields[0] else fields[2:]
        now, expiry = self.clock(), lease.partition(b" ")[0]
        if now == "":
            now = _read_time(time)
        return to_text(id) if expiry.isdigit() and int(expiry) > int(now) else ""

    def inspect(self, key: str) -> Snapshot:
        (snapshot,) = self.inspect_all([key])
        if snapshot.problem:
            raise UnreadableKey(key, snapshot.problem, self.url)
        return snapshot

    def inspect_all(self, keys: Sequence[str]) -> list[Snapshot]:
        (run,) = self.inspections(keys)
        return self.read_inspection(self._client.run(*run))

    def inspections(self, keys: Sequence[str]) -> list[Run]:
        return [(_INSPECT, self._base, self.clock(), *keys)]

    def read_inspection(self, seen: Any) -> list[Snapshot]:
        snapshots = []
        for waiting, aside, found, problem, now, line, limit, terms in seen:
            owners, others = read_owners(found)
            text = shorten(problem.decode(errors="replace"))
            try:
                first, is_used = read_line(line, now), bool(owners or waiting or aside)
                its = Terms.of_text(to_text(terms).removesuffix("\n")).unless_idle(now, is_used=is_used)
                known = limit if is_used else 1
                snapshots.append(Snapshot(owners, waiting, aside, text, others, first, known, its, now))
            except ValueError as error:
                snapshots.append(Snapshot(problem=f"MALFORMED offer: {error}"))
        return snapshots

    def holders(self, key: str) -> list[Owner]:
        return self.holders_at(key, int(self.clock() or time_of(self._client)))

    def holders_at(self, key: str, now: int) -> list[Owner]:
        """Return the holders whose leases expire after this time of the store's clock."""
        flat = self._client.ask("HGETALL", f"{self._base}l:{key}")
        leases = dict(zip(flat[::2], flat[1::2], strict=True))
        try:
            owners = [read_lease(id, lease, now) for id, lease in leases.items() if id]
        except (KeyError, ValueError) as error:
            raise UnreadableKey(key, f"MALFORMED lease: {error}", self.url) from error
        return [owner for owner in owners if owner.remaining]

    def forget(self, key: str) -> None:
        self._client.ask("DEL", *(f"{self._base}{kind}:{key}" for kind in "lxqabosempd"))
        self._client.ask("ZREM", f"{self._base}due", key)
        self._client.ask("HDEL", f"{self._base}unreadable", key)

    def line(self, key: str, after: Cursor | None = None, count: int = TASKS_PER_PAGE) -> Page:
        begin = ("q:", "-inf", "") if after is None else _begin(after)
        about = (key, *begin, min(count, TASKS_PER_PAGE))  # other requests wait meanwhile
        problem, now, more, tasks = self._client.run(_LINE, self._base, self.clock(), *about)
        if problem:
            raise UnreadableKey(key, shorten(problem.decode(errors="replace")), self.url)
        try:
            found = list(read_page(tasks, now))
        except ValueError as error:
            raise UnreadableKey(key, f"MALFORMED place: {error}", self.url) from error
        return Page(tuple(place for _, place in found), found[-1][0] if more else None)

    def parts(self, key: str, count: int = 1_000) -> list[Part]:
        found, cursor = dict[bytes, bytes](), b""
        while cursor != b"0" and len(found) < count:
            cursor, flat = self._client.ask("HSCAN", f"{self._base}p:{key}", cursor or "0", "COUNT", count)
            found.update(zip(flat[::2], flat[1::2], strict=True))
        try:
            return [Part.of_text(to_text(name), to_text(text)) for name, text in [*found.items()][:count]]
        except ValueError as error:
            raise UnreadableKey(key, f"MALFORMED part: {error}", self.url) from error

    def messages_of(self, tasks: Sequence[tuple[str, str]]) -> list[bytes]:
        (run,) = self.readings(tasks)
        return list(self._client.run(*run))

    def readings(self, tasks: Sequence[tuple[str, str]]) -> list[Run]:
        return [(_MESSAGES, self._base, *(word for task in tasks for word in task))]

    def places(self) -> Iterator[tuple[str, str]]:
        for key in map(to_text, self._client.ask("ZRANGE", f"{self._base}due", 0, -1)):
            for kind in "qas":
                try:
                    yield from ((key, id) for id in self._line(kind, key))
                except StoreUnavailable as error:  # one damaged line hides no other
                    if not _is_damage(error):
                        raise

    def _line(self, kind: str, key: str) -> Iterator[str]:
        """Yield the ids of a line, in parts that are small enough not to delay other clients."""
        first, name, mark = 0, f"{self._base}{kind}:{key}", 56 * (kind == "s")
        while page := self._client.ask("ZRANGE", name, first, first + _PLACES_PER_CALL - 1):
            yield from (to_text(member[mark:]) for member in page)
            first += len(page)

    def lines(self) -> Iterator[KeyInLine]:
        first: int | None = 0
        while first is not None:
            found, first = self.read_lines(self._client.run(*self.counting(first)), first)
            yield from found

    def counting(self, first: int) -> Run:
        return _LINES, self._base, self.clock(), first, first + _LINES_PER_CALL - 1

    def read_lines(self, flat: list[Any], first: int) -> tuple[list[KeyInLine], int | None]:
        """Return the keys that lines.lua has found from this rank on, and the next rank; None: no more."""
        rows = list(zip(*[iter(flat)] * 6, strict=True))
        found = [
            KeyInLine(to_text(key), waiting, aside, bool(due), age, state == 1)
            for key, waiting, aside, due, age, state in rows
            if state != 2  # it has no line
        ]
        return found, first + len(rows) if len(rows) == _LINES_PER_CALL else None

    def keys_of(self, task_id: str) -> Iterator[str]:
        waited_for = {line.key for line in self.lines() if line.all_waiting}
        for keys in batches(self.scan(), KEYS_PER_CALL):
            (run,) = self.searches([(task_id, key, key in waited_for) for key in keys])
            yield from self.found_in(task_id, keys, self._client.run(*run))

    def searches(self, about: Sequence[tuple[str, str, bool]]) -> list[Run]:
        return [
            (_FIND, self._base, about[0][0], *(it for _, key, waits in about for it in (key, int(waits))))
        ]

    def found_in(self, task: str, keys: Sequence[str], found: Sequence[int]) -> Iterator[str]:
        """Yield the keys that find.lua has found, and those whose long lines have the task."""
        for key, answer in zip(keys, found, strict=True):
            ids = (id for kind in "qas" for id in self._line(kind, key))
            if answer == 1 or (answer == 2 and any(task_id(id) == task for id in ids)):
                yield key

    def scan(self, prefix: str = "") -> Iterator[str]:
        start = f"{self._base}l:"
        seen = {to_text(key) for key in self._client.ask("HKEYS", f"{self._base}unreadable")}
        yield from (key for key in seen if key.startswith(prefix))
        for name in names_like(self._client, literal(start + prefix) + "*"):
            key = to_text(name)[len(start) :]
            if key not in seen:
                seen.add(key)
                yield key

    def epoch(self) -> str:
        name = f"{self._base}epoch"
        epoch = self._client.ask("GET", name)
        if not epoch:
            self._client.ask("SET", name, urandom(8).hex(), "NX")
            epoch = self._client.ask("GET", name)
        return to_text(epoch)

    def check(self) -> list[str]:
        facts = facts_of(self._client)
        if facts.get("cluster_enabled") == "1":
            raise OptionError(f"store {self.url}: {CLUSTER}")
        if facts.get("role") == "slave":
            raise StoreUnavailable(f"store {self.url} is a replica: point exclusive_store to the primary")
        self.reap(limit=0, every=NEVER)  # raises if the scripts may not run
        if self._replicas:
            self._client.ask("WAIT", 0, 1)  # raises if its user may not
        return warnings_of(self._client, facts, self.url, self._replicas)

    def close(self) -> None:
        self._client.close()

    def _check_own_names(self) -> None:
        """Raise if the data that all keys share are damaged."""
        for name, command in _SHARED.items():
            try:
                self._client.ask(command, f"{self._base}{name}")
            except StoreUnavailable as error:
                if "WRONGTYPE" not in error.refusal:
                    raise
                raise StoreUnavailable(
                    f"store {self.url}: {self._base}{name} was overwritten by another program: delete "
                    "it, and find out which program did it. Until then no lock can be acquired"
                ) from error


def _is_damage(error: StoreUnavailable) -> bool:
    return any(word in error.refusal for word in _DAMAGE)


def batches(keys: Iterator[str], size: int) -> Iterator[list[str]]:
    """Yield so many keys at a time."""
    return iter(lambda: [*islice(keys, size)], [])


def _clock_of_the_server() -> str:
    """Return what a script gets in place of a time, so that it reads the server's clock."""
    return ""


def time_of(server: Server) -> int:
    """Return the time of a server's clock, in microseconds."""
    return _read_time(server.ask("TIME"))


def read_sweep(text: bytes | None) -> int | None:
    """Return the time of the last sweep, as the server keeps it."""
    return int(text) if text and text.isdigit() else None


def _read_time(answer: Sequence[bytes]) -> int:
    return int(answer[0]) * SECOND + int(answer[1])


def literal(text: str) -> str:
    """Return a pattern that this text alone matches."""
    return "".join(f"\\{char}" if char in "*?[]^-\\" else char for char in text)


def names_like(server: Server, pattern: str) -> Iterator[bytes]:
    """Yield the names that match a pattern. What changes meanwhile may be missed, or come twice."""
    cursor = None
    while cursor != b"0":
        cursor, found = server.ask("SCAN", cursor or 0, "MATCH", pattern, "COUNT", 1000)
        yield from found


class _Refused(Exception):
    """A message could not be pushed: the user has no rights on the list, or the name holds no list."""


def _begin(after: Cursor) -> tuple[str, int, str]:
    """Return where a page of line.lua begins behind a cursor."""
    if after.state.startswith("shut"):
        return "s:", 0, f"{after.state[4:]}{after.place:016}{after.id}"
    return "a:" if after.state == "aside" else "q:", after.place, after.id
