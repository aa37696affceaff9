"""What a release has left in its store, so that later releases prove that they read it.

python -m tests.worker.frozen      # before a release that has another format: writes frozen/VERSION.*

It fills a Redis and a SQLite file: leases whose worker was killed, lines, a unique key, a window of calls. A
file has all that the store keeps of them, without the names of this machine.
"""

from __future__ import annotations

import json
import socket
import sqlite3
import tempfile
from base64 import b64decode, b64encode
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import redis

from tests.servers import RedisServer
from tests.worker.lab import eventually
from tests.worker.releases import Release, unpack

FOLDER = Path(__file__).parent / "frozen"
CONF: dict[str, Any] = {"task_acks_late": True, "task_reject_on_worker_lost": True, "exclusive_ttl": 3}


def leave_behind(lab: Release) -> None:
    """Fill the store of a release, and kill its worker."""
    worker = lab.start("w1", 6)

    def send(name: str, tag: str) -> None:
        lab.publish(name, "k", tag, name != "burst")

    def line_of(name: str) -> list[str]:
        return list(lab.state(name, "k")["line"])

    for name, running, waiting in (("line", 1, 3), ("two", 2, 1), ("once", 1, 0)):
        for number in range(running):
            send(name, f"{name} {number}")
            lab.journal.wait_for("start", tag=f"{name} {number}")
        for number in range(waiting):
            send(name, f"{name} {running + number}")
            eventually(
                partial(lambda name, count: len(line_of(name)) == count, name, number + 1), "one more in line"
            )
    send("burst", "first")
    send("burst", "newest")
    worker.kill()


def dump_redis(server: redis.Redis, port: int) -> str:
    """Return the content of the store in a Redis as JSON: a name, a type and a value in each line."""
    lines = []
    for name in sorted(server.scan_iter("cx2:*")):
        kind = server.type(name).decode()
        lines.append([name.decode(), kind, _READ[kind](server, name, port)])
    return "[\n" + ",\n".join(json.dumps(line) for line in lines) + "\n]\n"


def load_redis(server: redis.Redis, text: str, port: int) -> None:
    """Write such a content into the Redis at this port."""
    for name, kind, value in json.loads(text):
        _WRITE[kind](server, name, value, port)


def dump_sqlite(path: Path, port: int) -> str:
    """Return the content of a SQLite file as statements."""
    with closing(sqlite3.connect(path)) as database:
        text = "\n".join(database.iterdump()) + "\n"
    for name, other in _names(port).items():
        text = text.replace(name.hex().upper(), other.hex().upper())
    return text


def load_sqlite(path: Path, text: str, port: int) -> None:
    """Make a SQLite file of such statements."""
    names = (b"localhost:%d/" % number for number in (6379, port))
    old, new = (name.hex().upper() for name in names)
    with closing(sqlite3.connect(path)) as database:
        database.executescript(text.replace(old, new))


def _names(port: int) -> dict[bytes, bytes]:
    """The names of this machine, and what a file has instead."""
    host = socket.gethostname().encode()
    return {
        b"localhost:%d/" % port: b"localhost:6379/",
        b'@%s"' % host: b'@web1"',
        b'"host": "%s"' % host: b'"host": "web1"',
    }


def _text(value: bytes, port: int) -> str:
    for name, other in _names(port).items():
        value = value.replace(name, other)
    return b64encode(value).decode()


def _value(text: str, port: int) -> bytes:
    return b64decode(text).replace(b"localhost:6379/", b"localhost:%d/" % port)


_READ: dict[str, Any] = {
    "string": lambda server, name, port: _text(server.get(name), port),
    "hash": lambda server, name, port: {
        _text(field, port): _text(value, port) for field, value in sorted(server.hgetall(name).items())
    },
    "zset": lambda server, name, port: {
        _text(member, port): score for member, score in server.zrange(name, 0, -1, withscores=True)
    },
}
_WRITE: dict[str, Any] = {
    "string": lambda server, name, value, port: server.set(name, _value(value, port)),
    "hash": lambda server, name, value, port: server.hset(
        name, mapping={_value(field, port): _value(text, port) for field, text in value.items()}
    ),
    "zset": lambda server, name, value, port: server.zadd(
        name, {_value(member, port): score for member, score in value.items()}
    ),
}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        package = unpack(None, Path(name))
        version = next(package.glob("*.dist-info")).stem.partition("-")[2]
        for kind in ("redis", "sqlite"):
            folder = Path(name, kind)
            folder.mkdir()
            path = folder / "locks.db"
            with RedisServer() as server:
                store = server.url if kind == "redis" else f"sqlite:///{path}"
                with Release(server.url, folder, {**CONF, "exclusive_store": store}, package) as lab:
                    leave_behind(lab)
                with server.client() as client:
                    port = server.port
                    text = dump_redis(client, port) if kind == "redis" else dump_sqlite(path, port)
            (FOLDER / f"{version}.{kind}").write_text(text)


if __name__ == "__main__":
    main()
