"""The store of redis://, rediss://, redis+socket:// and valkey URLs: one Lua script per operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from os import urandom
from typing import Any

from celery_exclusive.core.operations import (
    AcquireAlone,
    Applied,
    Granted,
    KeyOperation,
    Renew,
    is_done_if_repeated,
)
from celery_exclusive.core.records import NEVER
from celery_exclusive.errors import OptionError, StoreUnavailable, UnreadableKey
from celery_exclusive.stores.base import Capabilities, Reply, Snapshot, older_version
from celery_exclusive.stores.redis import scripts
from celery_exclusive.stores.redis.arguments import FIELDS, NO_HEAD, arguments_of
from celery_exclusive.stores.redis.client import CLUSTER, Client, Repeated
from celery_exclusive.stores.redis.reply import GRANTED, read_owners, read_reply, shorten, text
from celery_exclusive.stores.text import to_bytes

_APPLY = scripts.load(
    "apply.lua",
    arguments="now verb key id token ttl first_offer tombstone_ttl candidate field value",
    reply="answer number owners epoch wakes asides unreadable time",
    fields=FIELDS,
)
_RENEW = scripts.load("renew.lua", arguments="now key id token ttl", reply="found")
_NAMESPACE = scripts.load("namespace.lua", arguments="broker life", reply="owner")
_INSPECT = scripts.load("inspect.lua", arguments="now key", reply="seen")

_LEASES_PER_CALL = 500
_NAMES_AT_START = 10_000
"""How many names are searched for locks of an older version: all would take too long."""
_DAMAGE = ("WRONGTYPE", "MALFORMED", "attempt to", "bad argument")
"""Words of errors that mean damaged data of a key, as in document.lua, and not a failing server."""
_DONE, _NOT_DONE = Reply(Applied(True)), Reply(Applied(False))


class RedisStore:
    """A store on a Redis or Valkey server, whose clock decides.

    `clock`, if a test sets it, returns the time in microseconds instead. `place` is the database in which it
    can also push messages; "" after it was refused.
    """

    capabilities = Capabilities()

    def __init__(
        self, url: str, *, prefix: str = "cx", offer: int = 5_000_000, tombstone_ttl: int = 600_000_000
    ) -> None:
        self._client = Client(url)
        self.url = self._client.url
        self.place = self._client.place
        self.clock: Callable[[], int] | None = None
        self._base, self._older = f"{prefix}2:{{0}}:", f"{prefix}1:{{0}}:"
        self._offer = offer
        self._tombstone_ttl = tombstone_ttl

    def apply(self, key: str, operation: KeyOperation) -> Reply:
        return self._apply(key, *arguments_of(operation), is_done_if_repeated=is_done_if_repeated(operation))

    def acquire_and_push(self, key: str, operation: AcquireAlone, to: str, message: bytes) -> Reply | None:
        """Do the operation, and push the message onto a list of this server, if the lease is a new one.

        A repetition after a lost answer pushes nothing: the message went with the lease that it finds. None:
        the server refuses to push, and nothing was done.
        """
        verb, head, named = arguments_of(operation)
        try:
            return self._apply(key, verb, head, [*named, "list", to, "payload", message])
        except _Refused:
            self.place = ""
            return None

    def renew(self, leases: Sequence[tuple[str, Renew]]) -> list[bool]:
        found: list[bool] = []
        for first in range(0, len(leases), _LEASES_PER_CALL):
            batch = leases[first : first + _LEASES_PER_CALL]
            words: list[object] = []
            for key, lease in batch:
                words += (key, lease.id, lease.token, lease.ttl)
            found += map(bool, self._client.run(_RENEW, self._base, self._now(), *words))
        return found

    def reap(self, limit: int = 100, every: int = 0, *, recovers_until: int = NEVER) -> Reply:
        named = ["limit", limit, "every", every, "recovers_until", recovers_until]
        return self._apply("", "reap", NO_HEAD, named)

    def keep_namespace(self, broker: str, life: int) -> str:
        return text(self._client.run(_NAMESPACE, self._base, broker, life))

    def inspect(self, key: str) -> Snapshot:
        (snapshot,) = self.inspect_all([key])
        if snapshot.problem:
            raise UnreadableKey(key, snapshot.problem, self.url)
        return snapshot

    def inspect_all(self, keys: Sequence[str]) -> list[Snapshot]:
        seen = self._client.run(_INSPECT, self._base, self._now(), *keys)
        return [
            Snapshot(read_owners(owners), waiting, aside, shorten(problem.decode(errors="replace")))
            for waiting, aside, owners, problem in seen
        ]

    def forget(self, key: str) -> None:
        self._client.ask("DEL", *(f"{self._base}{kind}:{key}" for kind in "lqabom"))
        self._client.ask("ZREM", f"{self._base}due", key)
        self._client.ask("HDEL", f"{self._base}unreadable", key)

    def scan(self, prefix: str = "") -> Iterator[str]:
        start = f"{self._base}l:"
        pattern = "".join(f"\\{char}" if char in "*?[]^-\\" else char for char in start + prefix) + "*"
        seen: set[bytes] = set()
        for key in map(text, self._client.ask("HKEYS", f"{self._base}unreadable")):
            seen.add(to_bytes(start + key))
            if key.startswith(prefix):
                yield key
        cursor: Any = 0
        while True:
            cursor, found = self._client.ask("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
            for name in found:
                if name not in seen:
                    seen.add(name)
                    yield text(name)[len(start) :]
            if int(cursor) == 0:
                return

    def epoch(self) -> str:
        name = f"{self._base}epoch"
        return text(self._client.ask("GET", name) or self._new_epoch(name))

    def check(self) -> list[str]:
        facts = _facts(self._client.ask("INFO"))
        if facts.get("cluster_enabled") == "1":
            raise OptionError(f"store {self.url}: {CLUSTER}")
        if facts.get("role") == "slave":
            raise StoreUnavailable(f"store {self.url} is a replica: point exclusive_store to the primary")
        self.reap(limit=0)  # raises if the scripts may not run
        warnings = []
        if self._has_older_locks():
            warnings.append(older_version(self.url, f"{self._older}*"))
        policy = facts.get("maxmemory_policy", "noeviction")
        if facts.get("maxmemory", "0") != "0" and policy != "noeviction":
            warnings.append(
                f"store {self.url}: its maxmemory-policy is {policy}, which may drop locks and waiting tasks "
                "when memory is full; set it to noeviction"
            )
        if facts.get("aof_enabled") == "0" and self._saves() is False:
            warnings.append(
                f"store {self.url}: it writes nothing to disk, so a restart loses locks and waiting tasks; "
                "set appendonly to yes"
            )
        return warnings

    def close(self) -> None:
        self._client.close()

    def _has_older_locks(self) -> bool:
        """Whether the database has a heartbeat, a line or leases of the first version.

        A user without rights on these names, or a large database, may hide them.
        """
        with suppress(StoreUnavailable):
            _, leases = self._client.ask("SCAN", 0, "MATCH", f"{self._older}l:*", "COUNT", _NAMES_AT_START)
            return bool(
                leases
                or self._client.ask("GET", f"{self._older}broker")
                or self._client.ask("ZCARD", f"{self._older}due")
            )
        return False

    def _check_own_names(self) -> None:
        """Raise if the data that all keys share are damaged."""
        for name in ("fence", "epoch"):
            try:
                self._client.ask("GET", f"{self._base}{name}")
            except StoreUnavailable as error:
                if "WRONGTYPE" not in str(error.__cause__):
                    raise
                raise StoreUnavailable(
                    f"store {self.url}: {self._base}{name} was overwritten by another program: delete "
                    "it, and find out which program did it. Until then no lock can be acquired"
                ) from error

    def _saves(self) -> bool | None:
        """Whether the server makes snapshots; None if it refuses to answer, as hosted servers do."""
        try:
            answer = self._client.ask("CONFIG", "GET", "save")
        except StoreUnavailable:
            return None
        return bool(answer[1]) if answer else None

    def _new_epoch(self, name: str) -> Any:
        self._client.ask("SET", name, urandom(8).hex(), "NX")
        return self._client.ask("GET", name)

    def _now(self) -> int | str:
        return self.clock() if self.clock else ""

    def _apply(
        self,
        key: str,
        verb: str,
        head: tuple[object, ...],
        named: list[object],
        *,
        is_done_if_repeated: bool = False,
    ) -> Reply:
        own = (self._offer, self._tombstone_ttl, urandom(8).hex())
        words = (self._now(), verb, key, *head, *own, *named)
        again = (*words, "redelivered", True) if verb == "acquire" else None
        try:
            reply = self._client.run(_APPLY, self._base, *words, again=again)
        except StoreUnavailable as error:
            problem = str(error.__cause__)
            if key and any(word in problem for word in _DAMAGE):
                self._check_own_names()
                raise UnreadableKey(key, shorten(problem), self.url) from error
            raise
        # A release whose reply was lost finds nothing when it is repeated, and that is no alarm.
        is_repeated = is_done_if_repeated and isinstance(reply, Repeated)
        if len(reply) == 1:
            raise _Refused
        if len(reply) == 2:
            name, number = reply
            if name == GRANTED:
                return Reply(Granted(number))
            return _DONE if number or is_repeated else _NOT_DONE
        return read_reply(reply, is_sweep=verb == "reap", is_repeated=is_repeated)


class _Refused(Exception):
    """A message could not be pushed: the user has no rights on the list, or it is none."""


def _facts(info: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in info.decode(errors="replace").splitlines())
    return {name: value for name, _, value in lines}
