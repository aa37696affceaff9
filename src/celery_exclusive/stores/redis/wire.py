"""How a connection of redis-py sends requests and reads replies: by its socket, or as redis-py does."""

from __future__ import annotations

from functools import partial
from typing import Any

from celery_exclusive.errors import OptionError
from celery_exclusive.seams.connections import error_of, socket_of
from celery_exclusive.stores.idle import keep_alive
from celery_exclusive.stores.redis import reader

try:
    from redis import exceptions
except ImportError:
    raise OptionError(
        "exclusive_store: redis:// and valkey:// need redis-py: pip install 'celery-exclusive[redis]'"
    ) from None


def use_socket(connection: Any) -> None:
    """Let an open connection speak the protocol of this package, which takes a third of the time."""
    socket, error = socket_of(connection), error_of(connection)
    connection.limit, connection.send = socket.settimeout, socket.sendall
    connection.read = partial(reader.read, socket, error)
    connection.read_all = partial(reader.read_all, socket, error)
    keep_alive(socket)  # what redis-py sets besides differs between its versions


def use_driver(connection: Any) -> None:
    """Let an open connection send and read as redis-py does."""
    driver = _Driver(connection)
    connection.limit, connection.send = driver.limit, driver.send
    connection.read, connection.read_all = driver.read, driver.read_all


class _Driver:
    """The public methods of a connection of redis-py, for one request at a time."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._seconds: float | None = connection.socket_timeout

    def limit(self, seconds: float) -> None:
        self._seconds = seconds

    def send(self, data: bytes) -> None:
        self._connection.send_packed_command([data], check_health=False)

    def read(self) -> Any:
        if self._seconds is not None and not self._connection.can_read(timeout=self._seconds):
            raise TimeoutError
        return self._connection.read_response()

    def read_all(self, count: int) -> list[Any]:
        return [self._read_any() for _ in range(count)]

    def _read_any(self) -> Any:
        try:
            return self.read()
        except exceptions.ResponseError as error:
            return error
