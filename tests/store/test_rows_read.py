"""The rows that a call beside many holders reads in the tables of a database server."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from celery_exclusive.core.operations import Acquire, Applied, Granted, Held, Parked, Release, Remove, Renew
from celery_exclusive.core.records import SECOND
from celery_exclusive.stores.sql.server import ServerStore
from tests.store.conftest import Database
from tests.store.test_database import cost_of, leave_alone
from tests.store.test_many_holders import FEW, WAYS, hold

TTL = 3600 * SECOND
MANY = 5_000


@pytest.mark.promise(
    "A call beside 5,000 holders reads as many rows and pages of a database as one beside a dozen, though "
    "the server has no statistics of its tables yet",
    broke="an index without its condition, on PostgreSQL: 925 rows and pages in place of 392",
)
@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS.keys())
def test_a_call_beside_5000_holders_reads_as_many_rows_as_beside_a_dozen(
    store: ServerStore, database: Database, options: dict[str, Any]
) -> None:
    costs = []
    for count in (FEW, MANY):
        key = f"beside {count}"
        hold(store, key, FEW, **options)
        leave_alone(database)
        add(database, key, count)
        calls(store, key, count, options)  # PostgreSQL sees only once which versions of a row are dead
        work = partial(calls, store, key, count, options)
        # An old snapshot, of an ANALYZE of a catalog for instance, keeps dead versions readable for a while.
        costs.append(min(cost_of(store, database, work) for _ in range(5)))
    assert costs[1] <= costs[0] + 100, costs


def add(server: Database, key: str, count: int) -> None:
    """Let so many hold a key that has a few holders, and have entries behind their runs if these have."""
    with server.stranger() as cursor:
        for table in ("holder", "line"):
            cursor.execute(
                f'SELECT * FROM exclusive2_{table} WHERE "key" = %s AND id = %s', (key.encode(), b"0")
            )
            for row in cursor.fetchall():
                copies = [(*row[:2], b"%d" % number, *row[3:]) for number in range(FEW, count)]
                marks = ", ".join(["%s"] * len(row))
                cursor.executemany(f"INSERT INTO exclusive2_{table} VALUES ({marks})", copies)
        cursor.execute(
            "UPDATE exclusive2_lock SET document = replace(document, %s, %s), "
            'behind = CASE behind WHEN 0 THEN 0 ELSE %s END WHERE "key" = %s',
            (f'"held": {FEW}', f'"held": {count}', count, key.encode()),
        )


def calls(store: ServerStore, key: str, count: int, options: dict[str, Any]) -> None:
    granted = store.apply(key, Acquire("task", "token", TTL, count + 1, **options)).answer
    assert isinstance(granted, Granted)
    assert store.apply(key, Release("task", "token")).answer == Applied(True)
    assert isinstance(store.apply(key, Acquire("refused", "token", TTL, count)).answer, Held)
    assert isinstance(store.apply(key, Acquire("waits", "token", TTL, count, message=b"m")).answer, Parked)
    store.apply(key, Remove("waits"))
    assert store.renew([(key, Renew("5", "token", TTL))]) == [True]
    assert store.inspect(key).others == count - 10
