"""A client of one server: connections of redis-py, one retry, and errors with the next step."""

from __future__ import annotations

import socket
from typing import Any, NoReturn, Protocol

from celery_exclusive.errors import OptionError, StoreUnavailable
from celery_exclusive.stores import hints
from celery_exclusive.stores.idle import Idle
from celery_exclusive.stores.redis import address, reader
from celery_exclusive.stores.redis.scripts import Script
from celery_exclusive.system.deadline import at_most

try:
    from redis import connection as driver
    from redis import exceptions
except ImportError:
    raise OptionError(
        "exclusive_store: redis:// and valkey:// need redis-py: pip install 'celery-exclusive[redis]'"
    ) from None

CLUSTER = "it is a Redis Cluster, which cannot keep locks: point exclusive_store to a single server"
_HINTS = {
    "LOADING": "it is still reading its data: try again in a moment",
    "READONLY": hints.REPLICA,
    "MASTERDOWN": "it is a replica without its primary: point exclusive_store to the primary",
    "OOM": "its memory is full: raise its maxmemory, or give the locks a server of their own",
    **dict.fromkeys(
        ("NOPERM", "ACL failure in script"),
        "grant its user the rights on exclusive_prefix of the ACL line in docs/security.md",
    ),
    "NOAUTH": hints.LOGIN,
    "WRONGPASS": hints.LOGIN,
    "MISCONF": "it cannot write its data to disk: read its log",
    "MOVED": CLUSTER,
    "CLUSTERDOWN": CLUSTER,
    "DB index": "name a database that the server has, 0 in a Redis Cluster",
    "unknown command": "check that it is a Redis server and allows this command",
}
_WORDS: tuple[tuple[type[Exception], str], ...] = (
    (exceptions.BusyLoadingError, "LOADING"),
    (exceptions.ReadOnlyError, "READONLY"),
    (exceptions.OutOfMemoryError, "OOM"),
    (exceptions.NoPermissionError, "NOPERM"),
    (exceptions.AuthenticationError, "NOAUTH"),
    (exceptions.MovedError, "MOVED"),
    (exceptions.ClusterDownError, "CLUSTERDOWN"),
)
_ARGUMENTS = ", with args beginning with"
"""After these words a server repeats the arguments of a command: passwords and keys."""
_TIMEOUTS = ("socket_timeout", "socket_connect_timeout")
_Command = tuple[object, ...]


class _Connection(Protocol):
    _sock: socket.socket
    _parser: Any

    def connect(self) -> None: ...
    def send_packed_command(self, command: list[bytes]) -> None: ...
    def disconnect(self) -> None: ...


class Repeated(list[Any]):
    """The answer to a command that was sent twice: the first one may have been executed."""


class Client:
    """A client for many threads, greenlets and forked children.

    A connection serves one call at a time and is then kept for the next: there are as many as calls ever ran
    at once. No lock guards them, so none can be held while a process forks.
    """

    def __init__(self, url: str) -> None:
        self._address = address.parse(url)
        self.url = self._address.shown
        self.place = address.place(self._address.options)
        self._timeout = float(self._address.options["socket_timeout"] or 0)
        self._idle = Idle[_Connection]()

    def run(self, script: Script, base: str, *arguments: object, again: _Command | None = None) -> Any:
        """Run a script by its name, or by its text if the server does not know it yet.

        `again` replaces the arguments if they are sent a second time, since the first answer was lost.
        """
        repetition = again or arguments
        try:
            try:
                name: _Command = ("EVALSHA", script.name, 1, base)
                return self._exchange(name + arguments, name + repetition)
            except exceptions.NoScriptError:
                text: _Command = ("EVAL", script.text, 1, base)
                return self._exchange(text + arguments, text + repetition)
        except (exceptions.RedisError, OSError) as error:
            self._explain(error)

    def ask(self, *command: object) -> Any:
        """Send one command."""
        try:
            return self._exchange(command, command)
        except (exceptions.RedisError, OSError) as error:
            self._explain(error)

    def close(self) -> None:
        """Disconnect; the next call connects again."""
        for connection in self._idle.drain():
            connection.disconnect()

    def _exchange(self, command: _Command, again: _Command) -> Any:
        """Do one round trip; a second one on a new connection if the old one is of no use any more."""
        try:
            return self._try(self._idle_or_new(), command)
        except (exceptions.BusyLoadingError, exceptions.AuthenticationError, exceptions.NoPermissionError):
            raise
        except exceptions.ResponseError as error:
            if not _is_of_replica(error):
                raise
            self.close()  # it keeps them open, and the name leads to another server after a failover
            return self._try(self._idle_or_new(), command)
        except (exceptions.ConnectionError, ConnectionError):
            self.close()  # a server that dropped one has dropped all of them
            answer = self._try(self._idle_or_new(), again)
            return Repeated(answer) if isinstance(answer, list) else answer

    def _try(self, connection: _Connection, command: _Command) -> Any:
        """Do one round trip; keep the connection for the next call, unless an answer may be left unread."""
        timeout = at_most(self._timeout)
        is_hurried = timeout < self._timeout
        try:
            if is_hurried:
                connection._sock.settimeout(timeout)
            connection.send_packed_command([_pack(command)])
            answer = _read(connection)
        except exceptions.ResponseError:
            self._keep(connection, is_hurried=is_hurried)
            raise
        except BaseException:
            connection.disconnect()
            raise
        self._keep(connection, is_hurried=is_hurried)
        return answer

    def _keep(self, connection: _Connection, *, is_hurried: bool) -> None:
        if is_hurried:
            connection._sock.settimeout(self._timeout)
        self._idle.append(connection)

    def _idle_or_new(self) -> _Connection:
        return self._idle.pop() or self._open()

    def _open(self) -> _Connection:
        to = self._address
        kind: type[Any] = driver.Connection
        if to.is_tls:
            kind = driver.SSLConnection
        elif to.is_socket:
            kind = driver.UnixDomainSocketConnection
        options = {name: at_most(float(to.options[name] or 0)) for name in _TIMEOUTS}
        connection: _Connection = kind(protocol=2, **{**to.options, **options})
        try:
            connection.connect()
        except (exceptions.BusyLoadingError, exceptions.AuthenticationError):
            raise
        except (exceptions.RedisError, OSError, UnicodeError) as error:  # UnicodeError: not a host name
            raise _Unreachable(str(error)) from error
        return connection

    def _explain(self, error: Exception) -> NoReturn:
        text, has_arguments, _ = str(error).partition(_ARGUMENTS)
        text = text.rstrip(".")
        cause = None if has_arguments else error
        words = [word for kind, word in _WORDS if isinstance(error, kind)]
        words += [word for word in _HINTS if word in text]
        if words:
            said = text if words[0] in text else f"{words[0]} {text}"
            raise StoreUnavailable(f"store {self.url}: {said}; {_HINTS[words[0]]}") from cause
        if isinstance(error, exceptions.ResponseError):
            raise StoreUnavailable(f"store {self.url} refused: {text}; read its log") from cause
        raise StoreUnavailable(f"store {self.url} does not answer: {text}; {hints.ALIVE}") from cause


def _read(connection: _Connection) -> Any:
    """Read a reply; raise what redis-py raises."""
    try:
        return reader.read(connection._sock, connection._parser.parse_error)
    except TimeoutError as error:
        raise exceptions.TimeoutError("Timeout reading from socket") from error
    except EOFError as error:
        raise exceptions.ConnectionError("Connection closed by server.") from error


def _is_of_replica(error: exceptions.ResponseError) -> bool:
    """Whether a server has done nothing, since it is no primary. Redis 6 says so in an error of a script."""
    is_said = isinstance(error, (exceptions.ReadOnlyError, exceptions.MasterDownError))
    return is_said or "-READONLY" in str(error)


def _pack(command: _Command) -> bytes:
    """Encode a command like redis-py's own packer, in a sixth of the time."""
    packed = [b"*%d\r\n" % len(command)]
    for word in command:
        if type(word) is str:
            text = word.encode("utf-8", "surrogatepass")
        else:
            text = word if isinstance(word, bytes) else str(word).encode()
        packed.append(b"$%d\r\n%b\r\n" % (len(text), text))
    return b"".join(packed)


class _Unreachable(exceptions.RedisError):
    """No server listens: a retry at once would fail likewise."""
