"""Rows of a database, and fields of a Redis, that another program has written."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from celery_exclusive.core.operations import (
    Acquire,
    Drop,
    Granted,
    Recall,
    Release,
    Remove,
    Renew,
    SetLimit,
)
from celery_exclusive.core.records import NAMED, SECOND
from celery_exclusive.errors import StoreUnavailable, UnreadableKey
from celery_exclusive.stores.base import open_store
from tests.servers import RedisServer
from tests.store.operations import LIFE, give, take

START = 1_800_000_000 * SECOND
ODD: tuple[Any, ...] = ("x", 0, -1, 2**63 - 1)
ALSO_ODD = (b"", None, 2**31 - 1)
ODD_WORDS = ("x", "", "-1", "0", f"{2**63 - 1}")
ODD_SCORES = ("-1", "0.5", "-inf", "inf", f"{2**63 - 1}")
LINE, CROWD, PARTS, FINE = "line", "crowd", "parts", "fine"
OF_TABLE = {"lock": LINE, "line": LINE, "holder": CROWD, "part": PARTS}
REFUSALS = (sqlite3.IntegrityError, psycopg.Error, pymysql.Error)


@pytest.mark.promise(
    "A row with an odd value in any column of a database fails the calls of its own key at most, with the "
    "error that names the key and the way out, or, in the row of the namespace, with one that names that",
    name="odd rows",
    broke="red before: many calls ended with a TypeError, and two never",
)
@pytest.mark.proves("damaged lock")
@pytest.mark.parametrize("table", ["lock", "line", "holder", "part", "tombstone", "namespace"])
@pytest.mark.parametrize(
    "kind", ["sqlite", *(pytest.param(kind, marks=pytest.mark.large) for kind in ("postgres", "maria"))]
)
def test_an_odd_value_in_any_column_fails_calls_of_its_own_key_alone(
    request: pytest.FixtureRequest, kind: str, table: str, tmp_path: Path
) -> None:
    path, odd, mark = tmp_path / "locks.db", ODD, "?"
    url, connect = f"sqlite:///{path}", partial(stranger, path)
    if kind != "sqlite":
        url, odd, mark = request.getfixturevalue(f"{kind}_url"), ODD + ALSO_ODD, "%s"
        connect = request.getfixturevalue(f"{kind}_database").stranger
    with closing(filled(url, "first", has_parts=True)), connect() as cursor:
        cursor.execute(f"SELECT * FROM exclusive2_{table}")
        columns = [name for name, *_ in cursor.description if name not in ("namespace", "key", "epoch")]
        for number, (column, value) in enumerate((column, value) for column in columns for value in odd):
            prefix = f"{number}"
            with closing(filled(url, prefix, has_parts=True)) as store:
                words = f"UPDATE exclusive2_{table} SET {column} = {mark} WHERE namespace = {mark}"
                values = [value, prefix.encode()]
                if table in OF_TABLE:
                    words += f' AND "key" = {mark}'
                    values.append(OF_TABLE[table].encode())
                if table == "line":
                    words += f" AND id = {mark}"
                    values.append(b"b")
                try:
                    cursor.execute(words, values)
                except REFUSALS:
                    continue
                known = (StoreUnavailable, UnreadableKey) if table == "namespace" else UnreadableKey
                for call in calls(store, OF_TABLE.get(table, LINE)):
                    with suppress(known):
                        call()
                if table != "namespace":
                    others_go_on(store)


@contextmanager
def stranger(path: Path) -> Iterator[sqlite3.Cursor]:
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        yield database.cursor()


@pytest.mark.large
@pytest.mark.proves("odd rows")
def test_an_odd_word_in_any_field_of_redis_fails_calls_of_its_own_key_alone(
    redis_server: RedisServer, redis_url: str
) -> None:
    with redis_server.client() as redis, closing(filled(redis_url, "first")):
        for number, (name, *field) in enumerate([*odd_fields(redis, "first")]):
            with closing(filled(redis_url, f"{number}")) as store:
                write(redis, name.replace(b"first", b"%d" % number), *field)
                for call in calls(store, CROWD if name.endswith(CROWD.encode()) else LINE):
                    with suppress(UnreadableKey):
                        call()
                others_go_on(store)


def odd_fields(redis: Any, prefix: str) -> Iterator[tuple[Any, ...]]:
    """Yield the names of the data of two keys, their fields or members, and odd values of these."""
    for name in redis.scan_iter(f"{prefix}2:*:*:*"):
        if name.endswith(FINE.encode()):
            continue
        if redis.type(name) == b"zset":
            yield from ((name, member, odd) for member in redis.zrange(name, 0, -1) for odd in ODD_SCORES)
        else:
            texts = redis.hgetall(name) if redis.type(name) == b"hash" else {None: redis.get(name)}
            for field, text in texts.items():
                yield from ((name, field, odd) for odd in odd_texts(text.decode()))
    yield from ((f"{prefix}2:{{0}}:due".encode(), LINE, odd) for odd in ODD_SCORES)


def odd_texts(text: str) -> Iterator[str]:
    """Yield a text with each of its words replaced."""
    for word in re.finditer(r"\S+", text):
        yield from (text[: word.start()] + odd + text[word.end() :] for odd in ODD_WORDS)


def write(redis: Any, name: bytes, field: Any, odd: str) -> None:
    if field is None:
        redis.set(name, odd)
    elif redis.type(name) == b"hash":
        redis.hset(name, field, odd)
    else:
        redis.execute_command("ZADD", name, odd, field)


def filled(url: str, prefix: str, *, has_parts: bool = False) -> Any:
    store: Any = open_store(url, prefix=prefix)
    store.clock = lambda: START
    for key in (LINE, FINE):
        for id in "abc":
            store.apply(key, take(id))
    for number in range(NAMED + 2):
        store.apply(CROWD, take(f"{number}", limit=20))
    for id in "abc" if has_parts else "":
        store.apply(PARTS, of_part(id))
        store.apply(PARTS, SetLimit(2, LIFE, part="other"))
    store.apply(LINE, Remove("c"))
    store.keep_namespace("broker", 60 * SECOND)
    return store


def of_part(id: str) -> Acquire:
    return replace(take(id), part="acme", part_limit=1)


def calls(store: Any, key: str) -> Iterator[Callable[[], object]]:
    if key == PARTS:
        yield lambda: store.apply(key, of_part("d"))
        yield lambda: store.apply(key, SetLimit(2, part="acme"))
        yield lambda: store.parts(key)
    yield lambda: store.apply(key, take("d"))
    yield lambda: store.apply(key, Recall("b"))
    yield lambda: store.line(key)
    yield lambda: store.apply(key, Drop("c", "token"))
    yield lambda: store.apply(key, Release("a", "token of a"))
    yield lambda: store.messages_of([(key, "b")])
    yield lambda: store.keep_namespace("broker", 60 * SECOND)
    yield store.namespace_owner
    yield store.times


def others_go_on(store: Any) -> None:
    keys = (LINE, CROWD, FINE)
    leases = [(key, Renew(id, f"token of {id}", LIFE)) for key in keys for id in ("a", "0")]
    assert store.renew(leases)[4:] == [True, False]
    assert store.inspect_all(keys)[2].waiting == 2
    assert {FINE} <= set(store.scan()) <= {*keys, PARTS}
    assert (FINE, "b") in set(store.places())
    store.clock = lambda: START + LIFE
    assert [wake.id for wake in store.reap().wake if wake.key == FINE] == ["b"]
    assert isinstance(store.apply(FINE, take("b")).answer, Granted)
    store.apply(FINE, give("b"))
