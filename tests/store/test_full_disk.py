"""A database server whose disk is full: what it refuses is told, what it keeps is kept, and it goes on."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from random import randbytes

import pytest

from celery_exclusive.core.operations import Applied, Granted, Parked, Renew
from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.stores.sql import server as sql_server
from celery_exclusive.stores.sql.server import ServerStore
from celery_exclusive.system.deadline import deadline
from tests.disk import Disk, NoDisk
from tests.maria import MariaServer
from tests.postgres import PostgresServer
from tests.store.conftest import StartDatabase
from tests.store.operations import LIFE, give, take


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """One on which the servers of a test keep all they have."""
    try:
        mounted = Disk()
    except NoDisk as why:
        pytest.skip(str(why))
    with mounted:
        monkeypatch.setattr(tempfile, "tempdir", str(mounted.folder))
        yield mounted


def hold(store: ServerStore) -> None:
    """Let `a` hold two keys, and `b` wait for one of them."""
    for key in ("key", "line"):
        assert isinstance(store.apply(key, take("a")).answer, Granted)
    assert isinstance(store.apply("line", take("b")).answer, Parked)


def check_all_is_kept(store: ServerStore) -> None:
    """Check that both are held still, that they can be renewed and released, and that `b` is offered its."""
    assert store.renew([(key, Renew("a", "token of a", LIFE)) for key in ("key", "line")]) == [True, True]
    assert store.apply("key", give("a")).answer == Applied(True)
    assert [wake.id for wake in store.apply("line", give("a")).wake] == ["b"]


@pytest.mark.promise(
    "A full disk under a database refuses what needs room, says so, and loses nothing. PostgreSQL without "
    "room for its log says so before it ends, and a row that it sent before its commit failed is no grant. "
    "A MariaDB that waits for room for its binary log is given up in time, and the error names the disk",
    name="databases, full disk",
    broke=(
        "no hint for this error, for silence, or for a lock that is waited for; the error after the rows "
        "not looked at: granted, and gone; only one answer expected: ValueError"
    ),
    figure="run as root, since it mounts a disk",
)
def test_a_full_disk_refuses_new_messages_and_still_renews_and_releases_held_locks(
    disk: Disk, start_database: StartDatabase
) -> None:
    with closing(start_database().open_store()) as store:
        hold(store)
        parked: list[int] = []

        def park() -> None:
            for number in range(1000):
                store.apply("full", take(f"{number}", message=randbytes(3000)))
                parked.append(number)

        disk.fill()
        with pytest.raises(StoreUnavailable, match=r"(No space left|is full).*; make room on its disk$"):
            park()
        check_all_is_kept(store)
        disk.make_room()
        assert store.inspect("full").waiting == len(parked) - 1
        assert isinstance(store.apply("full", take("x", message=randbytes(300_000))).answer, Parked)


@pytest.mark.proves("databases, full disk")
def test_postgres_without_room_for_its_log_says_so_before_it_ends_and_has_lost_nothing(
    disk: Disk, start_postgres: Callable[..., PostgresServer]
) -> None:
    server = start_postgres()
    with closing(server.open_store()) as store:
        hold(store)
        disk.fill()
        server.ask("SELECT pg_switch_wal()")
        with pytest.raises(StoreUnavailable, match=r"No space left on device; make room on its disk$"):
            store.apply("another", take("a"))
        with pytest.raises(StoreUnavailable, match=r"check that it runs|try again in a moment"):
            store.apply("another", take("a"))
        disk.make_room()
        server.restart()  # it may have come up before
        assert isinstance(store.apply("another", take("a")).answer, Granted)
        check_all_is_kept(store)


@pytest.mark.proves("databases, full disk")
def test_maria_that_waits_for_room_for_its_log_is_given_up_in_time_and_has_lost_nothing(
    disk: Disk, start_maria: Callable[..., MariaServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_maria(log_bin="log")
    with closing(server.open_store()) as store:
        hold(store)

        def acquire() -> None:
            for number in range(1000):
                with deadline(0.5):
                    store.apply(f"{number}", take("a"))

        disk.fill()
        with pytest.raises(StoreUnavailable, match=r"no answer in 0\.\d+ s; .* that its disk is not full"):
            acquire()
        with deadline(0.5), pytest.raises(StoreUnavailable, match="no answer"):
            store.apply("key", give("a"))
        monkeypatch.setattr(sql_server, "PATIENCE", 0.1)
        with pytest.raises(StoreUnavailable, match=r"Lock wait timeout .*, or for a full disk"):
            store.apply("key", give("a"))
        disk.make_room()
        server.restart()  # else it looks for room again within a minute
        check_all_is_kept(store)
