"""Databases of MariaDB that cannot be a store: each says what it is, and what to do, without secrets."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from random import randbytes
from urllib.parse import quote

import pytest

from celery_exclusive.core.operations import Acquire, Granted, Parked, Release, Renew
from celery_exclusive.core.records import SECOND
from celery_exclusive.errors import OptionError, StoreRefused, StoreUnavailable
from celery_exclusive.stores.base import open_store
from celery_exclusive.stores.sql import mysql
from celery_exclusive.stores.sql.mysql import MysqlStore
from celery_exclusive.stores.sql.tables import TABLES
from tests.maria import MariaServer
from tests.store.refusals import refusal

pytestmark = pytest.mark.xdist_group("maria-refusals")  # one server for all of them
TAKE = Acquire("a", "token", 30 * SECOND)
USERS = """CREATE USER clerk@'127.0.0.1'; GRANT USAGE ON *.* TO clerk@'127.0.0.1';
CREATE USER guarded@'127.0.0.1' IDENTIFIED BY 'hunter2'; CREATE USER far@'10.0.0.1';
GRANT SELECT ON locks.strangers TO clerk@'127.0.0.1'"""


@pytest.fixture(scope="module")
def server() -> Iterator[MariaServer]:
    """One whose users have passwords and rights."""
    with MariaServer(innodb_flush_log_at_trx_commit="1") as started:
        started.ask("CREATE TABLE strangers (n INTEGER)")
        started.ask(USERS)
        yield started


@pytest.fixture
def empty(server: MariaServer) -> MariaServer:
    server.empty()
    return server


@pytest.mark.promise(
    "Misuse of MariaDB is refused with the fix, without secrets",
    name="MariaDB, misuse",
    broke="text as bytes",
)
def test_a_wrong_password(server: MariaServer) -> None:
    said = refusal(server.url_of("guarded:hunter3", server.port))
    assert "Access denied for user 'guarded'@" in said
    assert said.endswith("; correct user and password in its URL")


@pytest.mark.proves("MariaDB, misuse")
def test_a_user_that_may_not_connect(server: MariaServer) -> None:
    assert "correct user and password" in refusal(server.url_of("stranger:hunter2", server.port))


@pytest.mark.proves("MariaDB, misuse")
def test_a_database_that_is_not_there(server: MariaServer) -> None:
    server.ask("GRANT ALL ON nowhere.* TO tests@'127.0.0.1'")
    said = refusal(server.url_of("tests", server.port, "nowhere"))
    assert "Unknown database 'nowhere'" in said
    assert said.endswith("; create it, or correct the URL")


@pytest.mark.proves("MariaDB, misuse")
def test_a_url_without_a_database(server: MariaServer) -> None:
    assert refusal(server.url_of("tests", server.port, "")).endswith("; name a database in its URL")


@pytest.mark.proves("MariaDB, misuse")
@pytest.mark.parametrize(
    ("option", "says"),
    [("timeout=5", "'timeout'"), ("ssl_ca=/nowhere.pem", "No such file or directory"), ("conv=1", "'items'")],
)
def test_an_unknown_option_is_refused(server: MariaServer, option: str, says: str) -> None:
    said = refusal(f"{server.url}?{option}")
    assert f"{says}; after '?' its URL may have the options of PyMySQL" in said


@pytest.mark.proves("MariaDB, misuse")
@pytest.mark.parametrize("password", ["zażółć", "grün"])
def test_a_password_of_any_letters(empty: MariaServer, password: str) -> None:
    empty.ask(f"CREATE OR REPLACE USER letters@'127.0.0.1' IDENTIFIED BY '{password}'")
    empty.ask("GRANT ALL ON locks.* TO letters@'127.0.0.1'")
    with closing(open_store(empty.url_of(f"letters:{quote(password)}", empty.port))) as store:
        assert store.check() == []


@pytest.mark.promise(
    "A MariaDB whose defaults would end, limit or forbid a request gets its settings for the connection",
    broke="not set for the connection: leases that are renewed together are answered as lost",
)
@pytest.mark.parametrize(
    ("setting", "usual"), [("completion_type", "0"), ("sql_select_limit", "DEFAULT"), ("tx_read_only", "0")]
)
def test_defaults_of_the_server_that_would_end_or_limit_what_it_is_asked(
    empty: MariaServer, setting: str, usual: str
) -> None:
    empty.ask(f"SET GLOBAL {setting} = 1")
    try:
        with closing(open_store(empty.url)) as store:
            for key in "ab":
                assert isinstance(store.apply(key, TAKE).answer, Granted)
            assert store.renew([(key, Renew("a", "token", 60 * SECOND)) for key in "ab"]) == [True, True]
            assert sorted(store.scan()) == ["a", "b"]
    finally:
        empty.ask(f"SET GLOBAL {setting} = {usual}")


@pytest.mark.proves("MariaDB, misuse")
def test_options_that_other_drivers_and_readers_of_results_need_do_no_harm(empty: MariaServer) -> None:
    url = f"{empty.url}?charset=latin1&connect_timeout=3&read_timeout=60&client_flag=2&use_unicode=0"
    with closing(open_store(url)) as store:
        assert store.check() == []
        assert isinstance(store.apply("kéy", TAKE).answer, Granted)
        assert list(store.scan()) == ["kéy"]
        assert store.apply("kéy", Acquire("b", "t", SECOND)).answer != store.apply("kéy", TAKE).answer


@pytest.mark.proves("MariaDB, misuse")
@pytest.mark.parametrize(("kind", "says"), [("MariaDB", "MariaDB 10.11, too old: it must be 99.0 or newer")])
def test_a_server_that_is_too_old(
    kind: str, says: str, empty: MariaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(mysql.OLDEST, kind, (99, 0))
    assert says in refusal(empty.url)


@pytest.mark.proves("MariaDB, misuse")
def test_tables_of_another_release(empty: MariaServer) -> None:
    with closing(open_store(empty.url)) as store:
        store.epoch()
        empty.ask("UPDATE exclusive2_version SET version = 8")
    assert "tables of another release of celery-exclusive (version 8, not 7)" in refusal(empty.url)


@pytest.mark.proves("MariaDB, misuse")
def test_a_user_that_may_make_no_tables(empty: MariaServer) -> None:
    url = empty.url_of("clerk", empty.port)
    said = refusal(url)
    assert "command denied to user 'clerk'" in said
    assert "`celery -A proj locks create-tables`" in said
    empty.ask(f"SET sql_mode = DEFAULT; {';'.join(MysqlStore(url).definitions())}")  # what --print prints
    assert "SELECT command denied to user 'clerk'" in refusal(url)
    for name in (*TABLES, "exclusive2_version"):
        empty.ask(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {name} TO clerk@'127.0.0.1'")
    with closing(open_store(url)) as store:
        assert store.check() == []
        assert isinstance(store.apply("key", TAKE).answer, Granted)
        assert isinstance(store.apply("key", Acquire("b", "t", SECOND, message=b"")).answer, Parked)
        store.apply("key", Release("a", "token", "done"))
        assert list(store.scan()) == ["key"]
        store.forget("key")


@pytest.mark.proves("MariaDB, misuse")
def test_more_clients_than_the_server_lets_in(empty: MariaServer) -> None:
    with closing(open_store(empty.url)) as store, ExitStack() as others:
        for _ in range(3):
            others.enter_context(empty.stranger()).execute("SET GLOBAL max_connections = 10")
        for _ in range(7):
            others.enter_context(empty.stranger(user="tests"))
        with pytest.raises(StoreUnavailable, match=r"Too many connections'\); raise its max_connections"):
            store.apply("key", TAKE)


@pytest.mark.proves("MariaDB, full")
def test_a_message_that_the_server_will_not_take(start_maria: Callable[..., MariaServer]) -> None:
    with closing(start_maria(max_allowed_packet="1M").open_store()) as store:
        store.apply("key", TAKE)
        with pytest.raises(StoreRefused, match=r"the request has \d+ bytes'\); raise its max_allowed"):
            store.apply("key", Acquire("b", "t", SECOND, message=randbytes(2_000_000)))
        assert isinstance(store.apply("key", Acquire("b", "t", SECOND, message=b"")).answer, Parked)


@pytest.mark.promise(
    "A MariaDB that is full, or takes no message of that size, says so, and keeps what it has",
    name="MariaDB, full",
    broke="a request sent whatever its size",
)
def test_a_server_that_is_full(start_maria: Callable[..., MariaServer]) -> None:
    server = start_maria(innodb_data_file_path="ibdata1:12M", innodb_file_per_table="off")
    with closing(server.open_store()) as store:
        store.apply("key", TAKE)
        parked: list[int] = []

        def fill() -> None:
            for number in range(100):
                store.apply("key", Acquire(f"{number}", "t", SECOND, message=randbytes(200_000)))
                parked.append(number)

        with pytest.raises(StoreUnavailable, match=r"is full.+; make room on its disk"):
            fill()
        assert store.inspect("key").waiting == len(parked) > 1
        server.restart(innodb_data_file_path="ibdata1:12M;ibdata2:24M")
        assert store.apply("key", Release("a", "token", "done")).wake[0].id == "0"


@pytest.mark.proves("MariaDB, misuse")
def test_a_url_that_cannot_be_read_is_not_shown() -> None:
    url = "mariadb+pymysql://me:hunter2@db:port/x"
    with pytest.raises(OptionError, match=r"cannot understand this mariadb:// URL") as refused:
        open_store(url)
    assert "hunter" not in "".join(traceback.format_exception(refused.value))


@pytest.mark.proves("MariaDB, misuse")
def test_a_store_is_shown_without_password_and_options() -> None:
    store = open_store("mysql+mysqldb://me:hunter2@db:3307/x?password=hunter3&ssl_ca=ca.pem")
    assert store.url == "mysql://me@db:3307/x"
