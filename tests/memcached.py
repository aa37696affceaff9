"""A real memcached server for tests."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

from tests.servers import NoServer, Server, environment

MADE = Path(__file__).parents[1] / ".venv/memcached"


def memcached_program() -> str:
    """An installed one, or the one that `make` unpacked from Debian's packages."""
    places = os.pathsep.join([os.environ.get("PATH", os.defpath), str(MADE / "usr/bin")])
    if program := shutil.which("memcached", path=places):
        return program
    raise NoServer("no memcached here: install memcached")


class MemcachedServer(Server):
    """A memcached on a port of its own, or behind a file; `options` are further words of its command line."""

    def __init__(self, *options: str, has_port: bool = True) -> None:
        self._program = memcached_program()
        self._options = options
        self._has_port = has_port
        super().__init__("memcached")

    @property
    def url(self) -> str:
        return f"memcached://127.0.0.1:{self.port}" if self._has_port else f"memcached://{self._file}"

    def restart(self) -> None:
        """Start it again on the same port, whether it is up or not: it has lost its data."""
        self.kill()
        self.start()

    def refresh(self) -> None:
        """Be up and empty, whatever was done before."""
        self.resume()
        if not self.is_up:
            self.start()
        self.ask(b"flush_all")

    def ask(self, command: bytes, end: bytes = b"\r\n") -> list[bytes]:
        """Send a command, and return the lines of its answer up to one that ends so."""
        with self._connect() as connection:
            connection.sendall(command + b"\r\n")
            answer = b""
            while not answer.endswith(end):
                if not (read := connection.recv(65536)):
                    raise ConnectionResetError(answer)
                answer += read
            return answer.splitlines()

    @property
    def _file(self) -> Path:
        return self._directory / "socket"

    def _connect(self) -> socket.socket:
        if self._has_port:
            return socket.create_connection(("127.0.0.1", self.port), timeout=5)
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(5)
            connection.connect(str(self._file))
        except OSError:
            connection.close()
            raise
        return connection

    def _start(self) -> bool:
        self._directory.chmod(0o777)
        user = ("-u", "nobody") if os.geteuid() == 0 else ()
        port = ("-l", "127.0.0.1", "-p", str(self.port), "-U", "0")
        where = port if self._has_port else ("-s", str(self._file), "-a", "777")
        return self._run([self._program, *where, *user, *self._options], env=environment(MADE))

    def _answers(self) -> bool:
        try:
            return b"STAT pid %d" % self.pid in self.ask(b"stats", b"END\r\n")
        except OSError:
            return False
