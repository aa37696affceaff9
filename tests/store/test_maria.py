"""What only MariaDB and MySQL have: settings of a server that would change what statements do."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from celery_exclusive.core.operations import Applied, Granted, Parked, Release
from celery_exclusive.core.records import SECOND
from celery_exclusive.errors import StoreRefused
from celery_exclusive.seams.pymysql_tls import SharedTls
from celery_exclusive.stores.base import open_store
from celery_exclusive.stores.sql.transaction import Transaction
from tests.maria import MariaDatabase, MariaServer
from tests.store.operations import give, take
from tests.store.test_database import wait_until_blocked

StartMaria = Callable[..., MariaServer]
LOCK = """SELECT 1 FROM exclusive2_lock WHERE namespace = 'cx' AND "key" = 'key' FOR UPDATE"""


@pytest.mark.proves("MariaDB, settings of the server")
@pytest.mark.usefixtures("long_waits")
def test_the_clock_is_read_after_a_wait(start_maria: StartMaria) -> None:
    server = start_maria(sysdate_is_now="on")

    def look(transaction: Transaction) -> int:
        transaction.load("key")
        return transaction.now

    with closing(server.open_store()) as store, server.stranger() as stranger, ThreadPoolExecutor(1) as pool:
        store.apply("key", take("a"))
        stranger.execute("BEGIN")
        stranger.execute(LOCK)
        looking = pool.submit(store.transact, look)
        wait_until_blocked(server, 1)
        ((now,),) = server.ask("SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)")
        stranger.execute("COMMIT")
        assert looking.result() >= now


@pytest.mark.promise(
    "The settings of a MariaDB server change nothing: modes, character sets, engines, isolation, a clock "
    "that stands still in a statement",
    name="MariaDB, settings of the server",
    broke="the server's mode, engine, collation; the clock read in the statement that waits",
)
@pytest.mark.proves("PostgreSQL, odd settings")
@pytest.mark.parametrize(
    "options",
    [
        {"default_time_zone": "+05:00"},
        {"sql_mode": "ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT"},
        {"character_set_server": "latin1", "collation_server": "latin1_general_ci"},
        {"transaction_isolation": "SERIALIZABLE", "autocommit": "off"},
        {"default_storage_engine": "MyISAM", "lower_case_table_names": "1"},
        {"innodb_default_row_format": "compact"},
    ],
    ids=str,
)
def test_the_settings_of_a_server_change_nothing(options: dict[str, str], start_maria: StartMaria) -> None:
    server = start_maria(**options)
    server.empty()
    with closing(server.open_store()) as store:
        granted = store.apply("key", take("a")).answer
        assert isinstance(granted, Granted)
        assert abs(granted.fence - time.time_ns() // 1000) < 60 * SECOND  # whatever its time zone
        for name in ("KEY", "key ", "kéy", "key\\", "'\""):
            assert isinstance(store.apply(name, take(name)).answer, Granted), name
        upper = Release("A", "TOKEN OF A")
        assert store.apply("key", upper).answer == Applied(False)
        assert isinstance(store.apply("key", take("\\'\"b", message=bytes(range(256)))).answer, Parked)
        with pytest.raises(StoreRefused, match="shorten the task's id"):
            store.apply("key", take("b" * 5_000))
        (wake,) = store.apply("key", give("a")).wake
        assert (wake.id, wake.message) == ("\\'\"b", bytes(range(256)))
        assert store.reap().answer == Applied(True)
        engines = "SELECT DISTINCT engine FROM information_schema.tables WHERE table_schema = 'locks'"
        assert server.ask(engines) == [("InnoDB",)]


@pytest.mark.proves("less durable line")
def test_check_warns_of_a_setting_with_which_a_crash_loses_locks(start_maria: StartMaria) -> None:
    server = start_maria(innodb_flush_log_at_trx_commit="1")
    with closing(server.open_store()) as store:
        assert store.check() == []
        for value in (0, 2):
            server.ask(f"SET GLOBAL innodb_flush_log_at_trx_commit = {value}")
            (warning,) = store.check()
            lossy = f"innodb_flush_log_at_trx_commit is {value}, so a crash may lose locks and waiting tasks"
            assert warning == f"store {store.url}: its {lossy}; set it to 1"
        server.ask("SET GLOBAL innodb_flush_log_at_trx_commit = 3")
        assert store.check() == []


@pytest.fixture
def contexts(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Gets an entry for each TLS context that is made, in a process that has made none."""
    made, make = list[object](), ssl.create_default_context
    monkeypatch.setattr(ssl, "create_default_context", lambda **names: made.append(names) or make(**names))
    monkeypatch.setattr(SharedTls, "_shared", None)
    return made


def cipher(url: str) -> str:
    """Return what a new connection is encrypted with."""

    def look(transaction: Transaction) -> str:
        transaction.cursor.execute("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
        ((_, value),) = transaction.cursor.fetchall()
        return str(value)

    with closing(open_store(url)) as store:
        return store.transact(look)


@pytest.mark.promise(
    "A process makes one TLS context for all connections to MariaDB without options for TLS, and uses TLS "
    "wherever the server has it",
    name="MariaDB, TLS",
    broke="certificates that a URL names read only once",
    figure="counted: one for each connection",
)
def test_connections_without_tls_share_a_context(
    maria_database: MariaDatabase, contexts: list[object]
) -> None:
    assert [cipher(maria_database.url) for _ in range(3)] == [""] * 3
    assert len(contexts) == 1
    assert cipher(f"{maria_database.url}?ssl_disabled=true") == ""
    assert len(contexts) == 1


@pytest.fixture
def certificate() -> Iterator[Path]:
    """One that the user of a server can read, with its key beside it."""
    if not (openssl := shutil.which("openssl")):
        pytest.skip("no openssl here")
    new = "req -x509 -nodes -days 1 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1"
    name = ["-subj", "/CN=tests", "-addext", "subjectAltName=IP:127.0.0.1"]
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("cert.pem", "key.pem")]
        command = [openssl, *new.split(), *name, "-out", str(files[0]), "-keyout", str(files[1])]
        subprocess.run(command, check=True, capture_output=True)
        for path in (Path(folder), *files):
            path.chmod(0o755)
        yield files[0]


@pytest.mark.proves("MariaDB, TLS")
def test_connections_with_tls_share_a_context_unless_they_have_options_for_it(
    start_maria: StartMaria, certificate: Path, contexts: list[object]
) -> None:
    server = start_maria(ssl_cert=str(certificate), ssl_key=str(certificate.with_name("key.pem")))
    assert all(cipher(server.url) for _ in range(3))
    assert len(contexts) == 1
    assert all(cipher(f"{server.url}?ssl_ca={certificate}") for _ in range(2))
    assert len(contexts) == 3  # of a file, which may be another one by now
