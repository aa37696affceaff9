"""Acquire and release on sqlite://, uncontended, against the same file with nothing around it."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from functools import partial
from secrets import token_hex

from bench.clock import timed
from bench.ours import pair
from celery_exclusive.stores.base import open_store

TAKE = (
    "INSERT INTO bare VALUES ('bench', ?, ?) ON CONFLICT (key) "
    "DO UPDATE SET token = excluded.token, expiry = excluded.expiry WHERE expiry < ?"
)
GIVE = "DELETE FROM bare WHERE key = 'bench' AND token = ?"
LOOK = "SELECT token, expiry FROM bare WHERE key = 'bench'"


def measure() -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"sqlite:///{folder}/ours.db")
        with closing(sqlite3.connect(f"{folder}/bare.db", isolation_level=None)) as bare:
            bare.execute("PRAGMA journal_mode=WAL")
            bare.execute("PRAGMA synchronous=NORMAL")
            bare.execute("CREATE TABLE bare (key TEXT PRIMARY KEY, token TEXT, expiry INTEGER)")

            def floor() -> None:
                token = token_hex(8)
                bare.execute(TAKE, (token, 2, 1))
                bare.execute(GIVE, (token,))

            def looking() -> None:
                token = token_hex(8)
                for statement, values in ((TAKE, (token, 2, 1)), (GIVE, (token,))):
                    bare.execute("BEGIN IMMEDIATE")
                    bare.execute(LOOK).fetchall()
                    bare.execute(statement, values)
                    bare.execute("COMMIT")

            measured = timed(
                {
                    "floor: upsert + delete, bare sqlite3": floor,
                    "each in a transaction that reads the row before": looking,
                    "celery-exclusive, sqlite://": partial(pair, store),
                }
            )
        store.close()
    return measured
