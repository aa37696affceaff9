"""Acquire and release on postgresql://, uncontended, against the same server with nothing around it."""

from __future__ import annotations

from functools import partial
from secrets import token_hex

from bench.clock import medians, table
from bench.ours import pair
from celery_exclusive.stores.base import open_store
from tests.postgres import PostgresServer

MAKE = "CREATE TABLE bare (key TEXT PRIMARY KEY, token TEXT, expiry BIGINT)"
TAKE = (
    "INSERT INTO bare VALUES ('bench', %s, %s) ON CONFLICT (key) "
    "DO UPDATE SET token = excluded.token, expiry = excluded.expiry WHERE bare.expiry < %s"
)
GIVE = "DELETE FROM bare WHERE key = 'bench' AND token = %s"


def run() -> None:
    with PostgresServer() as server:
        store = open_store(server.url)
        with server.connect() as bare:
            bare.execute(MAKE)
            cursor = bare.cursor()

            def floor() -> None:
                token = token_hex(8)
                cursor.execute(TAKE, (token, 2, 1))
                cursor.execute(GIVE, (token,))

            times = medians(
                {
                    "floor: upsert + delete, bare psycopg": floor,
                    "celery-exclusive, postgresql://": partial(pair, store),
                }
            )
        store.close()
    table("acquire + release of a free key, in PostgreSQL", times)
