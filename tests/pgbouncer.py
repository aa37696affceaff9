"""A real PgBouncer for tests, before a PostgreSQL."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import psycopg

from tests.postgres import MADE, PostgresDatabase
from tests.servers import NoServer, Server, environment, may_run, unprivileged

CONFIGURATION = """
[databases]
* = host=127.0.0.1 port={server} user=tests
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
admin_users = keeper
default_pool_size = 2
server_check_delay = 0
"""


def pgbouncer_program() -> str:
    places = os.pathsep.join(["/usr/sbin", os.environ.get("PATH", os.defpath), str(MADE / "usr/sbin")])
    program = shutil.which("pgbouncer", path=places)
    if program and may_run(Path(program)):
        return program
    raise NoServer("no PgBouncer here: install pgbouncer")


class PgBouncer(Server):
    """Two connections to a server, which its clients get in turn for one transaction each.

    `options` are further lines of its configuration: `client_idle_timeout="1"`.
    """

    def __init__(self, database: PostgresDatabase, **options: str) -> None:
        self._program, self._database = pgbouncer_program(), database
        self._options = {"pool_mode": "transaction", **options}
        super().__init__("pgbouncer")

    @property
    def url(self) -> str:
        return self._database.url_of("tests", self.port)

    def command(self, statement: str) -> list[Any]:
        """What it answers to one of its own commands, such as KILL."""
        url = self._database.url_of("keeper", self.port, "pgbouncer")
        with psycopg.connect(url, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def clients(self) -> int:
        """How many connections of users it has."""
        return sum(row[1] == "tests" for row in self.command("SHOW CLIENTS"))

    def _start(self) -> bool:
        file = Path(self._directory, "pgbouncer.ini")
        fixed = CONFIGURATION.format(server=self._database.port, port=self.port)
        file.write_text(fixed + "".join(f"{name} = {value}\n" for name, value in self._options.items()))
        self._directory.chmod(0o755)
        return self._run([self._program, str(file)], env=environment(MADE), user=unprivileged("postgres"))

    def _answers(self) -> bool:
        try:
            with psycopg.connect(self.url, autocommit=True) as connection:
                return connection.execute("SHOW port").fetchone() == (str(self._database.port),)
        except psycopg.OperationalError:
            return False
