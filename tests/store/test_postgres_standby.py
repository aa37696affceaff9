"""A PostgreSQL and its hot standby: which of them keeps locks, and what a failover keeps and loses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from celery import Celery

from celery_exclusive import install
from celery_exclusive import lock as lock_
from celery_exclusive.core.operations import Granted, Held, Renew
from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.stores.sql.postgres import PostgresStore
from celery_exclusive.system.deadline import deadline
from tests.leases import is_lost
from tests.postgres import PostgresServer, PostgresStandby
from tests.store.operations import LIFE, give, take


@pytest.fixture
def primary(start_postgres: Callable[..., PostgresServer]) -> PostgresServer:
    return start_postgres()


@pytest.fixture
def standby(primary: PostgresServer) -> Iterator[PostgresStandby]:
    with PostgresStandby(primary) as started:
        yield started


@pytest.fixture
def url(primary: PostgresServer, standby: PostgresStandby) -> str:
    """The URL of both, which leads to the primary."""
    hosts = f"host=127.0.0.1:{standby.port}&host=127.0.0.1:{primary.port}"
    return f"postgresql+psycopg2://tests@/{primary.name}?{hosts}&target_session_attrs=read-write"


@pytest.mark.promise(
    "A hot standby of PostgreSQL is reported as one, and keeps all that has reached it when it is promoted",
    broke="its error not known",
)
def test_a_standby_is_unavailable_until_it_is_promoted_and_then_has_all_that_had_reached_it(
    primary: PostgresServer, standby: PostgresStandby
) -> None:
    with closing(primary.open_store()) as first, closing(standby.open_store()) as store:
        granted = first.apply("key", take("a")).answer
        assert isinstance(granted, Granted)
        first.apply("key", take("b"))
        epoch = first.epoch()
        standby.catch_up()
        for ask in (lambda: store.apply("key", take("c")), store.reap, store.check):
            with pytest.raises(StoreUnavailable, match=r"read-only.* point exclusive_store to the primary"):
                ask()
        with (
            closing(PostgresStore(f"{standby.url}?target_session_attrs=primary")) as strict,
            pytest.raises(StoreUnavailable, match=r"hot standby mode.*; no host of its URL is a primary"),
        ):
            strict.epoch()
        primary.kill()
        standby.promote()
        assert store.epoch() == epoch
        assert store.renew([("key", Renew("a", "token of a", LIFE))]) == [True]
        (wake,) = store.apply("key", give("a")).wake
        second = store.apply("key", take("b")).answer
        assert isinstance(second, Granted)
        assert (wake.id, second.fence > granted.fence) == ("b", True)


@pytest.mark.promise(
    "A URL of several PostgreSQL hosts leads to the primary, follows a failover, and is shown with its "
    "hosts; one as libpq writes it is refused with the right one",
    name="PostgreSQL, several hosts",
    broke="an option of the URL not passed on; hosts not shown; no hint that no host is a primary",
)
def test_a_url_of_several_hosts_leads_to_the_primary_and_follows_a_failover(
    url: str, primary: PostgresServer, standby: PostgresStandby
) -> None:
    with closing(PostgresStore(url)) as store:
        assert (
            store.url
            == f"postgresql://tests@/postgres?host=127.0.0.1:{standby.port}&host=127.0.0.1:{primary.port}"
        )
        granted = store.apply("key", take("a"))
        assert isinstance(granted.answer, Granted)
        standby.catch_up()
        primary.kill()
        with pytest.raises(
            StoreUnavailable, match=r"session is read-only.*; no host of its URL is a primary"
        ):
            store.apply("key", take("b"))
        standby.promote()
        assert store.apply("key", take("a")) == granted
        assert isinstance(store.apply("key", take("b", message=None)).answer, Held)


@pytest.mark.promise(
    "After a failover of PostgreSQL to a standby that lags behind the holder is told that its lease is "
    "lost, the next fence is higher, no key stays held for longer than `ttl`, and the line goes on. A "
    "standby that is synchronous has all that was confirmed",
    name="PostgreSQL, lagging standby",
    broke=(
        "fences that do not follow the clock; a lease restored under the same epoch; a due key that no "
        "reaper sees; a standby that is not synchronous"
    ),
)
def test_a_lock_that_a_lagging_standby_does_not_have_is_lost_and_its_key_is_free(
    url: str, primary: PostgresServer, standby: PostgresStandby
) -> None:
    app: Any = install(Celery("locks", broker="memory://", set_as_current=False))
    app.conf.update(exclusive_store=url)
    kept, lost, next_ = (lock_(name, app=app, ttl=60, wait=0) for name in ("kept", "lost", "lost"))
    with closing(PostgresStore(url)) as store, closing(app._celery_exclusive.store):
        assert kept.acquire()
        store.apply("released", take("a"))
        store.apply("released", take("b"))
        standby.catch_up()
        standby.fall_behind()
        assert lost.acquire()
        assert store.apply("released", give("a")).wake
        assert isinstance(store.apply("released", take("b")).answer, Granted)
        primary.kill()
        standby.promote()
        kept.lease.check()
        assert is_lost(lost.lease)
        assert next_.acquire()
        assert next_.lease.fence > lost.lease.fence
        for each in (kept, lost, next_):
            each.release()
        assert store.renew([("released", Renew("b", "token of b", LIFE))]) == [False]
        store.clock = lambda: (time.time_ns() // 1000) + LIFE
        assert [wake.id for wake in store.reap().wake] == ["b"]
    app.close()


@pytest.mark.proves("PostgreSQL, lagging standby")
def test_a_synchronous_standby_has_all_that_was_confirmed(
    start_postgres: Callable[..., PostgresServer],
) -> None:
    primary = start_postgres(synchronous_standby_names="*")
    with PostgresStandby(primary) as standby, closing(primary.open_store()) as first:
        assert isinstance(first.apply("key", take("a")).answer, Granted)
        standby.fall_behind()
        with deadline(0.5), pytest.raises(StoreUnavailable, match="no answer"):
            first.apply("another", take("a"))
        primary.kill()
        standby.promote()
        with closing(standby.open_store()) as store:
            assert list(store.scan()) == ["key"]
