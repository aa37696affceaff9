"""One record that another program has written blinds nobody: it is shown, and so is the rest."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from celery_exclusive.core.operations import AcquireAlone
from celery_exclusive.core.records import SECOND
from celery_exclusive.display import escaped
from celery_exclusive.errors import UnreadableKey
from celery_exclusive.options.key_text import absolute_key
from tests.cli.conftest import Desk
from tests.maria import MariaDatabase
from tests.memcached import MemcachedServer
from tests.postgres import PostgresDatabase
from tests.servers import RedisServer

LATER = 9_000_000_000_000_000
META = f"1 1 {LATER} {LATER} 0 0 0"
SHOWN = r"x=\udfff\udcff"
"""A key of one byte that is no UTF-8, as `ls` shows it."""
REDIS: dict[str, dict[bytes | str, bytes | str]] = {
    "an unknown phase": {"": META, "a/1": f"{LATER} 7 0 paused token"},
    "an id that is no UTF-8": {"": META, b"\xff/1": f"{LATER} 7 0 running token"},
    "a token that is no UTF-8": {"": META, "a/1": b"%d 7 0 running \xff" % LATER},
    "a limit of 400 digits": {"": f"{'9' * 400} 1 {LATER} {LATER} 0 0 0", "a/1": f"{LATER} 7 0 running t"},
    "an expiry of 400 digits": {"": META, "a/1": f"{'9' * 400} 7 0 running token"},
    "a fence of 25 digits": {"": META, "a/1": f"{LATER} {'9' * 25} 0 running token"},
}
LEASE = {"id": "a/1", "token": "t", "expiry": LATER, "fence": 7, "may_have_copies": False, "phase": "running"}
DOCUMENTS: dict[str, dict[str, Any]] = {
    "an unknown phase": {"phase": "paused"},
    "an id that is a list": {"id": ["a/1"]},
    "a token that is a number": {"token": 7},
    "an expiry of 400 digits": {"expiry": int("9" * 400)},
}
SQLITE = {
    "a document that is no UTF-8": "UPDATE exclusive2_lock SET document = CAST(X'22ff22' AS TEXT)",
    "a deep document": f"UPDATE exclusive2_lock SET document = '{'[' * 100_000}'",
    "an end of 400 digits": f"UPDATE exclusive2_lock SET ends = '{'9' * 400}'",
    "an id that is a text": "UPDATE exclusive2_line SET id = 'b/1'",
    "an unknown state": "UPDATE exclusive2_line SET state = 'odd' WHERE id = X'622f31'",
}


def sees_all(desk: Desk, odd: str = "x=odd", *, is_damaged: bool = True) -> None:
    """`ls` shows the odd key and the other one, and `release --force` takes what it shows."""
    listed = desk.run("ls")
    assert (listed.exit_code, listed.exception) == (0, None), listed.stderr
    assert listed.stdout.replace("\n", "").isprintable()
    assert all(len(line) < 500 for line in listed.stdout.splitlines())
    states = {escaped(lock["key"]): lock["state"] for lock in as_json(desk)}
    assert states == {odd: "damaged" if is_damaged else "running", "x=fine": "running"}
    done = desk.run("release", "--force", "--reason", "a test", odd)
    assert done.exit_code == 0, done.stderr
    assert [lock["key"] for lock in as_json(desk)] == ["x=fine"]


def as_json(desk: Desk) -> list[dict[str, Any]]:
    return [json.loads(line) for line in desk.run("ls", "--json").stdout.splitlines()]


@pytest.fixture
def desk_with(make_desk: Callable[..., Desk]) -> Callable[..., Desk]:
    """Makes a desk at a store where x=fine is held, and x=odd if there is something to damage."""

    def make(url: str, *, odd: bool = True) -> Desk:
        desk = make_desk(exclusive_store=url)
        for key in ("x=fine", "x=odd") if odd else ("x=fine",):
            desk.acquire(key, "a/1")
        return desk

    return make


@pytest.mark.promise(
    "A record that another program has written into a store hides no other: `locks ls` shows all other "
    "keys, and the odd one as `damaged`, or its name escaped; `release --force` takes it as it is shown; "
    "the sweep goes on. On Redis, SQLite, PostgreSQL, MariaDB and memcached: phases, ids and tokens that "
    "cannot be, bytes that are no UTF-8, numbers of 25 and 400 digits, rows of other types; likewise in "
    "Django's admin",
    name="odd records",
    broke="red before: 31 of these cases ended in a traceback for all keys, or in a lock that lasts for ever",
)
@pytest.mark.parametrize("what", REDIS)
def test_an_odd_lease_in_redis_is_shown_beside_the_others(
    desk_with: Callable[..., Desk], redis_server: RedisServer, redis_url: str, what: str
):
    desk = desk_with(redis_url, odd=False)
    with redis_server.client() as client:
        client.hset("cx2:{0}:l:x=odd", mapping=REDIS[what])
    sees_all(desk, is_damaged="no UTF-8" not in what)


@pytest.mark.proves("odd records")
def test_a_key_in_redis_that_is_no_utf8_is_shown_escaped(
    desk_with: Callable[..., Desk], redis_server: RedisServer, redis_url: str
):
    desk = desk_with(redis_url, odd=False)
    with redis_server.client() as client:
        client.hset(b"cx2:{0}:l:x=\xff", mapping={"": META, "a/1": f"{LATER} 7 0 running token"})
    sees_all(desk, SHOWN, is_damaged=False)


@pytest.mark.proves("odd records")
@pytest.mark.parametrize("what", DOCUMENTS)
@pytest.mark.parametrize("kind", ["sqlite", "postgres", "maria"])
def test_an_odd_lease_in_a_database_is_shown_beside_the_others(
    request: pytest.FixtureRequest, desk_with: Callable[..., Desk], tmp_path: Path, kind: str, what: str
):
    text = json.dumps({"limit": 1, "holders": [{**LEASE, **DOCUMENTS[what]}]})
    if kind == "sqlite":
        desk = desk_with(f"sqlite:///{tmp_path / 'locks.db'}")
        write(tmp_path, "UPDATE exclusive2_lock SET document = ? WHERE key = X'783d6f6464'", text)
    else:
        database: PostgresDatabase | MariaDatabase = request.getfixturevalue(f"{kind}_database")
        database.empty()
        desk = desk_with(database.url)
        database.ask(f"""UPDATE exclusive2_lock SET document = '{text}' WHERE "key" = 'x=odd'""")
    sees_all(desk)


@pytest.mark.proves("odd records")
@pytest.mark.parametrize("kind", ["sqlite", "postgres", "maria"])
def test_a_key_in_a_database_that_is_no_utf8_is_shown_escaped(
    request: pytest.FixtureRequest, desk_with: Callable[..., Desk], tmp_path: Path, kind: str
):
    if kind == "sqlite":
        desk = desk_with(f"sqlite:///{tmp_path / 'locks.db'}")
        write(tmp_path, "UPDATE exclusive2_lock SET key = X'783dff' WHERE key = X'783d6f6464'")
    else:
        database: PostgresDatabase | MariaDatabase = request.getfixturevalue(f"{kind}_database")
        database.empty()
        desk = desk_with(database.url)
        bytes_ = r"'x=\377'" if kind == "postgres" else "X'783dff'"
        database.ask(f"""UPDATE exclusive2_lock SET "key" = {bytes_} WHERE "key" = 'x=odd'""")
    sees_all(desk, SHOWN, is_damaged=False)


@pytest.mark.proves("odd records")
@pytest.mark.parametrize("what", SQLITE)
def test_an_odd_row_in_a_file_is_shown_beside_the_others(
    desk_with: Callable[..., Desk], tmp_path: Path, what: str
):
    desk = desk_with(f"sqlite:///{tmp_path / 'locks.db'}")
    desk.acquire("x=odd", "b/1", message=b"message")
    write(tmp_path, SQLITE[what] if "WHERE" in SQLITE[what] else f"{SQLITE[what]} WHERE key = X'783d6f6464'")
    assert desk.store.reap().answer
    sees_all(desk, is_damaged=what != "an unknown state")


@pytest.mark.proves("odd records")
def test_a_key_in_a_file_that_is_no_bytes_hides_no_other(desk_with: Callable[..., Desk], tmp_path: Path):
    desk = desk_with(f"sqlite:///{tmp_path / 'locks.db'}")
    desk.acquire("x=odd", "b/1", message=b"message")
    for table in ("lock", "line"):
        write(tmp_path, f"UPDATE exclusive2_{table} SET key = 'x=odd' WHERE key = X'783d6f6464'")
    write(tmp_path, "UPDATE exclusive2_lock SET due = 1 WHERE key = 'x=odd'")
    assert desk.store.reap().answer
    assert [lock["key"] for lock in as_json(desk)] == ["x=fine"]
    assert list(desk.store.places()) == []


@pytest.mark.proves("odd records")
@pytest.mark.parametrize("what", DOCUMENTS)
def test_an_odd_item_in_memcached_is_shown_beside_the_others(
    desk_with: Callable[..., Desk], memcached_server: MemcachedServer, memcached_url: str, what: str
):
    desk = desk_with(memcached_url)
    lease = [{**LEASE, **DOCUMENTS[what]}[name] for name in LEASE]
    item = json.dumps(["x=odd", 1, 7, [lease]]).encode()
    assert memcached_server.ask(b"set cx#lock#x=odd 0 0 %d\r\n%b" % (len(item), item)) == [b"STORED"]
    odd, fine = (json.loads(desk.run("ls", "--json", key).stdout) for key in ("x=odd", "x=fine"))
    assert (odd["state"], fine["state"]) == ("damaged", "running")
    with pytest.raises(UnreadableKey):
        desk.store.apply("x=odd", AcquireAlone("b/1", "t", SECOND))
    assert desk.run("release", "--force", "--reason", "a test", "x=odd").exit_code == 0
    assert desk.run("ls", "--json", "x=odd").stdout == ""


def write(folder: Path, statement: str, *parameters: Any) -> None:
    with closing(sqlite3.connect(folder / "locks.db")) as database, database:
        assert database.execute(statement, parameters).rowcount == 1


@pytest.mark.promise(
    "A command in an error is quoted for a shell: no text of a key runs there, and the key arrives as it is",
    broke="red before: `touch` ran",
)
@pytest.mark.parametrize(
    "name", ["$(touch pwned)'; touch pwned; '", "a\\x41 b\n", "`touch pwned`", "-rf"], ids=ascii
)
def test_the_command_of_a_damaged_key_is_pasted_into_a_shell_as_it_is(
    make_desk: Callable[..., Desk], tmp_path: Path, name: str
):
    desk, key = make_desk(exclusive_store=f"sqlite:///{tmp_path / 'locks.db'}"), absolute_key(name)
    desk.acquire(key, "a/1")
    write(tmp_path, "UPDATE exclusive2_lock SET document = 'x'")
    with pytest.raises(UnreadableKey) as raised:
        desk.store.inspect(key)
    hint = str(raised.value).partition("wait in line: ")[2]
    shell = f"celery() {{ printf '%s\\0' \"$@\"; }}; {hint}"
    said = subprocess.run(["bash", "-c", shell], cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True)
    *_, app, group, release, force, _, reason, end, text = said.stdout.rstrip("\0").split("\0")
    assert (app, group, release, force, end) == ("proj", "locks", "release", "--force", "--")
    assert desk.run(release, force, "--reason", reason, end, text).exit_code == 0
    assert not list(desk.store.scan())
    assert not (tmp_path / "pwned").exists()
