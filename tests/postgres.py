"""A real PostgreSQL for tests: a process of its own, on a free port, in a directory of its own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest

from celery_exclusive.stores.sql.postgres import PostgresStore
from tests.database import Database
from tests.servers import (
    NoServer,
    Server,
    environment,
    free_port,
    may_run,
    remove_when_we_end,
    unprivileged,
    wait_until,
)

MADE = Path(__file__).parents[1] / ".venv/postgresql"
EMPTY = "DROP SCHEMA public CASCADE; CREATE SCHEMA public"


def postgres_folder() -> Path:
    """Where its programs are: installed, or unpacked from Debian's packages by `make`."""
    for folder in (Path("/"), MADE):
        for found in folder.glob("usr/lib/postgresql/*/bin"):
            if (found / "initdb").exists() and may_run(found):
                return found
    if program := shutil.which("initdb"):
        return Path(program).resolve().parent
    raise NoServer("no PostgreSQL server here: install postgresql")


class PostgresDatabase(Database):
    scheme = "postgresql"
    schema = "current_schema()"
    sleep = "pg_sleep"
    never_gives_way = "SET LOCAL deadlock_timeout = '1h'"

    def beside(self, name: str) -> PostgresDatabase:
        """Another database of the same server, which is made if it is not there."""
        with suppress(psycopg.errors.DuplicateDatabase):
            self.ask(f"CREATE DATABASE {name}")
        return PostgresDatabase(self.port, name)

    def open_store(self, port: int = 0) -> PostgresStore:
        """A store there, through a proxy if that has another port."""
        return PostgresStore(self.url_of("tests", port or self.port))

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.url, autocommit=True)

    def ask(self, statement: str, *values: object) -> list[Any]:
        """What a statement returns."""
        with self.stranger() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall()) if cursor.description else []

    @contextmanager
    def stranger(self) -> Iterator[Any]:
        """A cursor on a connection of its own."""
        with self.connect() as connection, connection.cursor() as cursor:
            yield cursor

    def empty(self) -> None:
        self.ask(EMPTY)

    def blocked(self) -> int:
        """How many of its connections wait for locks of others."""
        blocked = "datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0"
        ((count,),) = self.ask(f"SELECT count(*) FROM pg_stat_activity WHERE {blocked}")
        return int(count)

    def reads(self, store: PostgresStore) -> int:
        """How many rows, entries of indexes, and pages of both were read, by this store too.

        An entry that only the id excludes does not count, but its page does.
        """
        if self.ask("SHOW server_version_num")[0][0] < "150000":
            pytest.skip("PostgreSQL before 15 does not say at once what it has read")
        store.transact(lambda it: it.cursor.execute("SELECT pg_stat_force_next_flush()"))
        read = {
            "pg_stat_user_tables": "seq_tup_read + coalesce(idx_tup_fetch, 0)",
            "pg_stat_user_indexes": "idx_tup_read",
            "pg_statio_user_tables": "heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read",
        }
        questions = (f"SELECT coalesce(sum({columns}), 0) FROM {name}" for name, columns in read.items())
        return sum(int(self.ask(question)[0][0]) for question in questions)

    def number(self, connection: Any) -> int:
        """The server's number of a connection."""
        return int(connection.info.backend_pid)

    def numbers(self) -> list[int]:
        """Those of all connections to the server."""
        return [pid for (pid,) in self.ask("SELECT pid FROM pg_stat_activity")]


class PostgresServer(Server, PostgresDatabase):
    """A PostgreSQL on a port of its own, and its first database.

        with PostgresServer() as server:
            server.restart()

    Data survive a restart, and a kill. `options` are settings of the server: `max_connections="20"`.
    """

    start_seconds = 30.0
    name = "postgres"

    def __init__(self, **options: str) -> None:
        self._programs = postgres_folder()
        self._options = {"fsync": "off", "jit": "off", "max_connections": "200", **options}
        super().__init__("postgres")

    def deadlocks(self) -> int:
        """How many there were."""
        return int(self.ask("SELECT sum(deadlocks) FROM pg_stat_database")[0][0])

    def sent(self) -> list[str]:
        """The first word of each statement that it was sent, if `log_statement` is "all"."""
        return re.findall(r"LOG:  (?:statement|execute [^:]+): (\w+)", self.log())

    def stop(self) -> None:
        """End connections first; told to by SIGTERM, it would wait for them."""
        self._end(signal.SIGINT)

    def restart(self) -> None:
        """Start it again on the same port, whether it is up or not."""
        self.kill()
        self.start()

    def let_in(self, *lines: str) -> None:
        """Who may come in, and how, as lines of its pg_hba.conf."""
        (self._directory / "data/pg_hba.conf").write_text("\n".join([*lines, ""]))
        with self.connect() as connection:
            connection.execute("SELECT pg_reload_conf()")

    def become_replica(self) -> None:
        """Start as a replica that has lost its primary: it can be read only."""
        self._options |= {"hot_standby": "on", "primary_conninfo": "host=127.0.0.1 port=1"}
        (self._directory / "data/standby.signal").touch()
        self.start()

    def become_primary(self) -> None:
        (self._directory / "data/standby.signal").unlink()
        self.start()

    def pause(self) -> None:
        """Accept connections and answer nothing, until `resume`."""
        self._tell_all(signal.SIGSTOP)

    def resume(self) -> None:
        if self.is_up:
            self._tell_all(signal.SIGCONT)

    def _choose_ports(self) -> None:
        self.port = free_port()
        self._directory.chmod(0o755)
        self._make(self._directory / "data")

    def _make(self, data: Path) -> None:
        """Make its folder of data."""
        shutil.rmtree(data, ignore_errors=True)  # of an earlier try
        subprocess.run(["cp", "-a", _empty_data(self._programs), data], check=True)

    def _start(self) -> bool:
        fixed = {"port": self.port, "listen_addresses": "127.0.0.1", "unix_socket_directories": ""}
        settings = {**self._options, **fixed}
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        command = [str(self._programs / "postgres"), "-D", str(self._directory / "data"), *words]
        return self._run(command, env=environment(MADE), user=unprivileged("postgres"))

    def _answers(self) -> bool:
        """Whether it is this very server that answers."""
        try:
            with self.connect() as connection:
                row = connection.execute("SHOW data_directory").fetchone()
        except psycopg.OperationalError:
            return False
        return row == (str(self._directory / "data"),)

    def _tell_all(self, number: signal.Signals) -> None:
        """Each of its processes is in a group of its own."""
        assert self._process
        first = self._process.pid
        try:
            others = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        except FileNotFoundError:  # it has ended by itself: its port was taken
            return
        for pid in (first, *map(int, others)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _end(self, how: signal.Signals) -> None:
        """Those of its processes that are killed alone would leave others, and the memory that they share."""
        if self._process and how == signal.SIGKILL:
            self._tell_all(how)
        super()._end(how)


class PostgresStandby(PostgresServer):
    """A hot standby: it repeats what another server has done, and can only be read until it is promoted."""

    def __init__(self, primary: PostgresServer) -> None:
        self._primary = primary
        super().__init__(wal_retrieve_retry_interval="100ms")

    def catch_up(self) -> None:
        """Wait until it has repeated what the primary has done by now."""
        ((now,),) = self._primary.ask("SELECT pg_current_wal_lsn()::text")
        repeated = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
        wait_until(lambda: self.ask(repeated, now) == [(True,)], "what the primary has done", 30)

    def fall_behind(self) -> None:
        """Hear no more of the primary."""
        self.ask("ALTER SYSTEM SET primary_conninfo = ''")
        self.ask("SELECT pg_reload_conf()")
        hears = "SELECT 1 FROM pg_stat_wal_receiver"
        wait_until(lambda: not self.ask(hears), "the end of its connection to the primary", 30)

    def is_primary(self) -> bool:
        """Whether it was promoted."""
        return self.ask("SELECT pg_is_in_recovery()") == [(False,)]

    def promote(self) -> None:
        """Become a primary."""
        assert self.ask("SELECT pg_promote()") == [(True,)]

    def _make(self, data: Path) -> None:
        source = f"host=127.0.0.1 port={self._primary.port} user=tests"
        options = ("-d", source, "--write-recovery-conf", "--checkpoint=fast", "--no-sync")
        _make_data(self._programs / "pg_basebackup", data, *options)


@cache
def _empty_data(programs: Path) -> Path:
    """The folder of data of a server that was never started, made once in this process."""
    folder = Path(tempfile.mkdtemp(prefix="test-postgres-empty-"))
    remove_when_we_end(folder)
    options = ("-U", "tests", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
    folder.chmod(0o755)
    return _make_data(programs / "initdb", folder / "data", *options)


def _make_data(program: Path, data: Path, *options: str) -> Path:
    data.mkdir(mode=0o700)
    if user := unprivileged("postgres"):
        shutil.chown(data, user)
    command = [str(program), "-D", str(data), *options]
    subprocess.run(command, user=user, cwd="/", env=environment(MADE), capture_output=True, check=True)
    return data
