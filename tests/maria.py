"""A real MariaDB for tests: a process of its own, on a free port, in a directory of its own."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymysql
from pymysql.constants import CLIENT

from celery_exclusive.stores.sql.mysql import MysqlStore
from celery_exclusive.stores.sql.transaction import Transaction
from tests.database import Database
from tests.servers import NoServer, Server, environment, free_port, may_run, unprivileged

MADE = Path(__file__).parents[1] / ".venv/mariadb"
SYSTEM_TABLES = ("system_tables", "performance_tables", "system_tables_data")
FIRST = """CREATE DATABASE mysql;
USE mysql;
SET @auth_root_socket = NULL, @skip_auth_anonymous = 1;
"""
USERS = """FLUSH PRIVILEGES;
CREATE USER keeper@'127.0.0.1';
GRANT ALL ON *.* TO keeper@'127.0.0.1' WITH GRANT OPTION;
CREATE USER tests@'127.0.0.1';
GRANT ALL ON `locks%`.* TO tests@'127.0.0.1';
CREATE DATABASE locks;
"""
QUOTES = "SET sql_mode = 'ANSI_QUOTES,STRICT_ALL_TABLES'"
"""As others write it, `"key"` is the name of a column."""


def maria_folder() -> Path:
    """Where its programs are: installed, or unpacked from Debian's packages by `make`."""
    for folder in (Path("/"), MADE):
        if (found := folder / "usr/sbin/mariadbd").exists() and may_run(found):
            return folder
    raise NoServer("no MariaDB server here: install mariadb-server")


class MariaDatabase(Database):
    scheme = "mysql"
    schema = "DATABASE()"
    sleep = "sleep"
    never_gives_way = "SELECT 'it has changed most'"

    def beside(self, name: str) -> MariaDatabase:
        """Another database of the same server, which is made if it is not there."""
        self.ask(f"CREATE DATABASE IF NOT EXISTS {name}")
        return MariaDatabase(self.port, name)

    def open_store(self, port: int = 0) -> MysqlStore:
        """A store there, through a proxy if that has another port."""
        return MysqlStore(self.url_of("tests", port or self.port))

    def ask(self, statements: str, *values: object) -> list[Any]:
        """What the last of some statements returns."""
        with self.stranger() as cursor:
            cursor.execute(statements, values or None)
            while cursor.nextset():
                pass
            return list(cursor.fetchall())

    @contextmanager
    def stranger(self, user: str = "keeper") -> Iterator[Any]:
        """A cursor on a connection of its own, unless told otherwise of a user who may do everything."""
        place: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": self.port,
            "user": user,
            "connect_timeout": 5,
            "ssl_disabled": True,  # else each reads all certificates of the machine, for 20 ms
        }
        options: dict[str, Any] = {
            "autocommit": True,
            "client_flag": CLIENT.MULTI_STATEMENTS,
            "init_command": QUOTES,
        }
        connection = pymysql.connect(**place, **options, database=self.name, binary_prefix=True)
        with connection, connection.cursor() as cursor:
            yield cursor

    def blocked(self) -> int:
        """How many of its connections wait for locks of others.

        The table of transactions would not say: read again within 0.1 s, by anybody, it stays as it was.
        """
        ours = self.ask("SELECT id FROM information_schema.processlist WHERE db = DATABASE()")
        ((_, _, status),) = self.ask("SHOW ENGINE INNODB STATUS")
        now = status.partition("LIST OF TRANSACTIONS")[2]
        waiting = re.findall(r"^LOCK WAIT .*\n(?:.*\n)*?MariaDB thread id (\d+)", now, re.MULTILINE)
        return len({int(id) for id in waiting} & {id for (id,) in ours})

    def reads(self, store: MysqlStore) -> int:
        """How many rows and entries of indexes were read by the connection that this store uses now."""

        def look(transaction: Transaction) -> int:
            transaction.cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
            return sum(int(value) for _, value in transaction.cursor.fetchall())

        return store.transact(look)

    def number(self, connection: Any) -> int:
        """The server's number of a connection."""
        return int(connection.thread_id())

    def numbers(self) -> list[int]:
        """Those of all connections to the server."""
        return [id for (id,) in self.ask("SELECT id FROM information_schema.processlist")]

    def empty(self) -> None:
        self.ask(f"DROP DATABASE {self.name}; CREATE DATABASE {self.name}")


class MariaServer(Server, MariaDatabase):
    """A MariaDB on a port of its own, and its first database.

        with MariaServer() as server:
            server.restart()

    Data survive a restart, and a kill. `options` are settings of the server: `max_connections="20"`.
    """

    start_seconds = 30.0
    name = "locks"

    def __init__(self, **options: str) -> None:
        self._folder = maria_folder()
        small = {"innodb_buffer_pool_size": "32M", "innodb_log_file_size": "8M", "max_connections": "200"}
        quick = {"innodb_flush_log_at_trx_commit": "2", "innodb_flush_method": "nosync", "debug_no_sync": "1"}
        self._options = {**small, **quick, **options}
        super().__init__("mariadb")

    def deadlocks(self) -> int:
        """How many there were."""
        counter = "information_schema.global_status WHERE variable_name = 'INNODB_DEADLOCKS'"
        return int(self.ask(f"SELECT variable_value FROM {counter}")[0][0])

    def become_replica(self) -> None:
        """Start as one that can be read only."""
        self.restart(read_only="on")

    def become_primary(self) -> None:
        self.restart(read_only="off")

    def sent(self) -> list[str]:
        """The first word of each request that it was sent, if `general_log` is "on"."""
        log = (self._directory / "data/general.log").read_text(errors="replace")
        return re.findall(r"\t *\d+ Query\t(\w+)", log)

    def restart(self, **options: str) -> None:
        """Start it again on the same port, whether it is up or not; with other settings, if there are any."""
        self._options |= options
        self.kill()
        self.start()

    def _choose_ports(self) -> None:
        self.port = free_port()
        self._directory.chmod(0o755)
        user = unprivileged("mysql")
        for name in ("data", "tmp"):  # a server that starts empties its folder of temporary tables
            (folder := self._directory / name).mkdir(mode=0o700)
            if user:
                shutil.chown(folder, user)
        scripts = [self._share / f"{self._share.name}_{name}.sql" for name in SYSTEM_TABLES]
        subprocess.run(
            self._command("--bootstrap"), input=FIRST + "".join(map(Path.read_text, scripts)) + USERS,
            user=user, cwd="/", env=environment(MADE), capture_output=True, check=True, text=True,
        )  # fmt: skip

    @property
    def _share(self) -> Path:
        """The folder of its files; with release 11.4 it got another name, and its scripts, too."""
        places = (self._folder / "usr/share" / name for name in ("mariadb", "mysql"))
        return next(place for place in places if (place / "charsets").is_dir())

    def _command(self, *more: str) -> list[str]:
        share, data = self._share, self._directory / "data"
        fixed: dict[str, object] = {
            "datadir": data,
            "lc_messages_dir": share,
            "character_sets_dir": share / "charsets",
        }
        fixed |= {
            "port": self.port,
            "bind_address": "127.0.0.1",
            "socket": "",
            "tmpdir": self._directory / "tmp",
        }
        settings = {"general_log_file": data / "general.log", **self._options, **fixed}
        words = [f"--{name}={value}" for name, value in settings.items()]
        return [str(self._folder / "usr/sbin/mariadbd"), "--no-defaults", *words, *more]

    def _start(self) -> bool:
        return self._run(self._command(), env=environment(MADE), user=unprivileged("mysql"))

    def _answers(self) -> bool:
        """Whether it is this very server that answers."""
        try:
            return self.ask("SELECT @@datadir") == [(f"{self._directory}/data/",)]
        except pymysql.Error:
            return False
