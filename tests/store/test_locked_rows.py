"""Rows that somebody keeps locked, such as a client that stands still in a transaction: others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest
from celery import Celery

from celery_exclusive import StoreUnavailable, install, lock
from celery_exclusive.core.claim import Claim
from celery_exclusive.core.delivery import Claims
from celery_exclusive.core.operations import Renew
from celery_exclusive.core.records import NAMED, SECOND
from celery_exclusive.local.heartbeat import heartbeat
from celery_exclusive.stores.sql.server import ServerStore
from celery_exclusive.worker.heartbeat import Heartbeat
from celery_exclusive.worker.roster import Roster
from tests.servers import wait_until
from tests.store.conftest import Database
from tests.store.operations import LIFE, take

pytestmark = pytest.mark.promise(
    "A row that another client keeps locked holds up its own lease alone: the other leases of its process "
    "are renewed, of `lock()` and of a worker, whose namespace is kept, too. It is renewed when the row is "
    "free, and the log names it, a minute later if another trouble was first. A sweep looks after the other "
    "lines",
    broke="red before, on PostgreSQL and MariaDB: all renewals waited for the row, and failed",
)

LONGER = 2 * LIFE
SHORT = Renew("x", "token of x", SECOND // 10)
"""Of a lease that is to be renewed soon again: nobody waits for long for its row."""


@contextmanager
def row_locked(database: Database, key: str) -> Iterator[Callable[[], object]]:
    """Lock the row of a key; what this yields lets it go."""
    lock_row = """SELECT 1 FROM exclusive2_lock WHERE namespace = 'cx' AND "key" = %s FOR UPDATE"""
    with database.stranger() as stranger:
        stranger.execute("BEGIN")
        stranger.execute(lock_row, (key.encode(),))
        yield lambda: stranger.execute("COMMIT")


def ends(database: Database, key: str) -> int:
    """When the last lease of a key ends."""
    ((ends,),) = database.ask('SELECT ends FROM exclusive2_lock WHERE "key" = %s', key.encode())
    return int(ends)


def test_a_locked_row_holds_up_the_renewal_of_its_own_lease_alone(
    store: ServerStore, database: Database
) -> None:
    for key in "abc":
        store.apply(key, take("x"))
    leases = [("a", SHORT), ("b", Renew("x", "token of x", LONGER)), ("none", SHORT), ("c", SHORT)]
    with row_locked(database, "a") as let_go:
        assert store.renew(leases) == [None, True, False, True]
        assert store.inspect("b").holders[0].remaining > LIFE
        let_go()
    assert store.renew(leases) == [True, True, False, True]


def test_a_locked_lease_of_a_crowded_key_holds_up_its_own_renewal_alone(
    store: ServerStore, database: Database
) -> None:
    for number in range(NAMED + 2):
        store.apply("crowd", take(f"{number}", limit=20))
    store.apply("a", take("x"))
    leases = [("crowd", Renew(id, f"token of {id}", LONGER)) for id in ("1", "2", "nobody")]
    with database.stranger() as stranger:
        stranger.execute("BEGIN")
        stranger.execute(
            """SELECT 1 FROM exclusive2_holder
            WHERE namespace = 'cx' AND "key" = 'crowd' AND id = '1' FOR UPDATE"""
        )
        assert store.renew([*leases, ("a", SHORT)]) == [None, True, False, True]
        stranger.execute("COMMIT")
    assert store.renew([*leases, ("a", SHORT)]) == [True, True, False, True]


def test_a_locked_row_stops_no_sweep_of_other_lines(store: ServerStore, database: Database) -> None:
    start = 1_700_000_000 * SECOND
    store.clock = lambda: start
    for key in "ab":
        store.apply(key, take("x"))
        store.apply(key, take("next"))
    store.clock = lambda: start + LIFE
    with row_locked(database, "a") as let_go:
        assert [wake.key for wake in store.reap().wake] == ["b"]
        let_go()
    assert [wake.key for wake in store.reap().wake] == ["a"]


@pytest.mark.usefixtures("long_waits")
def test_a_lease_that_is_asked_for_a_locked_row_stops_no_sweep(
    store: ServerStore, database: Database
) -> None:
    for key in "ab":
        store.apply(key, take("x"))
    with row_locked(database, "a") as let_go:
        asking = Thread(target=store.apply, args=("a", take("y")))
        asking.start()
        wait_until(database.blocked, "a request that waits for the row", 30)
        store.reap()
        assert store.keep_namespace("broker", 1) == "broker"
        let_go()
        asking.join(30)
    assert store.inspect("a").waiting == 1


@pytest.fixture
def app(database: Database) -> Iterator[Celery]:
    app = Celery("feeds", broker="memory://", set_as_current=False)
    app.conf.exclusive_store = database.url
    yield install(app)
    app.close()


def test_a_locked_row_ends_no_other_lease_of_lock(
    app: Celery, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    busy, free = (lock(key, app=app, ttl=3) for key in "ab")
    with busy, free:
        key = free.lease.key
        with row_locked(database, busy.lease.key) as let_go:
            for _ in range(2):
                before = ends(database, key)
                wait_until(lambda was=before: ends(database, key) > was, "its renewal", 30)
            warning = f"the leases on {busy.lease.key} could"
            wait_until(lambda: warning in caplog.text, "the warning", 150)  # a minute after another trouble
            let_go()
        free.lease.check()


def test_a_lease_that_is_granted_while_a_beat_waits_for_a_row_is_renewed_in_time(
    app: Celery, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    with lock("a", app=app, ttl=600) as busy, row_locked(database, busy.key):
        heartbeat._sooner.put(None)
        wait_until(lambda: database.blocked() or "could not be renewed" in caplog.text, "a beat", 30)
        with lock("b", app=app, ttl=3) as short:
            for _ in range(2):
                before = ends(database, short.key)
                wait_until(lambda was=before: ends(database, short.key) > was, "its renewal", 30)
            short.check()


def test_a_locked_row_stops_no_beat_of_a_worker(app: Celery, database: Database) -> None:
    services: Any = app._celery_exclusive  # type: ignore[attr-defined]
    roster = Roster()
    heartbeat = Heartbeat(services, "broker", roster)
    claims = [Claim(key, f"{key}/p", f"{key * 16}", SECOND) for key in "ab"]
    for claim in claims:
        services.store.apply(claim.key, claim.acquire())
        roster.begin(Claims(id=claim.id, token=claim.token, exclusive=claim)).hold(claim)
    before = ends(database, "b")
    with row_locked(database, "a"):
        with pytest.raises(StoreUnavailable, match="the leases on a could not be renewed, since others keep"):
            heartbeat.beat()
        assert ends(database, "b") > before
        assert services.store.keep_namespace("another broker", 1) == "broker"
