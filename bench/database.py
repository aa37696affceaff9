"""Acquire and release on a database server, uncontended, against the same server with nothing around it."""

from __future__ import annotations

from functools import partial
from secrets import token_hex
from typing import Any

from bench.clock import timed
from bench.ours import pair
from tests.maria import MariaServer
from tests.postgres import PostgresServer

MAKE = "CREATE TABLE bare (name VARCHAR(20) PRIMARY KEY, token TEXT, expiry BIGINT)"
TAKE = (
    "INSERT INTO bare VALUES ('bench', %s, %s) ON CONFLICT (name) "
    "DO UPDATE SET token = excluded.token, expiry = excluded.expiry WHERE bare.expiry < %s"
)
TAKE_IN_MARIADB = (
    "INSERT INTO bare VALUES ('bench', %s, %s) ON DUPLICATE KEY "
    "UPDATE token = IF(expiry < %s, VALUES(token), token)"
)
GIVE = "DELETE FROM bare WHERE name = 'bench' AND token = %s"


def in_postgres(server: PostgresServer) -> dict[str, list[float]]:
    return measure(server, "postgresql", "bare psycopg", TAKE)


def in_mariadb(server: MariaServer) -> dict[str, list[float]]:
    return measure(server, "mysql", "bare PyMySQL", TAKE_IN_MARIADB)


def measure(
    server: PostgresServer | MariaServer, scheme: str, bare: str, take: str
) -> dict[str, list[float]]:
    store = server.open_store()
    with server.stranger() as cursor:
        cursor.execute(MAKE)
        measured = timed(
            {
                f"floor: upsert + delete, {bare}": partial(take_and_give, cursor, take),
                f"celery-exclusive, {scheme}://": partial(pair, store),
            }
        )
    store.close()
    return measured


def take_and_give(cursor: Any, take: str) -> None:
    token = token_hex(8)
    cursor.execute(take, (token, 2, 1))
    cursor.execute(GIVE, (token,))
