"""A client of one server: connections of redis-py, one retry, and errors with the next step."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, Protocol

from celery_exclusive.errors import LeaseUnconfirmed, NotDone, StoreUnavailable
from celery_exclusive.seams.connections import socket_of
from celery_exclusive.stores import hints
from celery_exclusive.stores.idle import KEEP_ALIVE, Idle
from celery_exclusive.stores.redis import address, next_steps
from celery_exclusive.stores.redis.address import Address
from celery_exclusive.stores.redis.protocol import Command, pack, read_all
from celery_exclusive.stores.redis.scripts import Script
from celery_exclusive.stores.redis.witness import Witness
from celery_exclusive.system.deadline import at_most

from redis import connection as driver, exceptions  # isort: skip - `protocol` says what is missing

_ALIVE: dict[str, Any] = {"socket_keepalive": True, "socket_keepalive_options": KEEP_ALIVE}
"""What `keep_alive` does, for redis-py."""
CODES: dict[str, type[exceptions.RedisError]] = {
    "LOADING": exceptions.BusyLoadingError,
    "READONLY": exceptions.ReadOnlyError,
    "OOM": exceptions.OutOfMemoryError,
    "NOPERM": exceptions.NoPermissionError,
    "NOAUTH": exceptions.AuthenticationError,
    "MOVED": exceptions.MovedError,
    "ASK": exceptions.AskError,
    "TRYAGAIN": exceptions.TryAgainError,
    "MASTERDOWN": exceptions.MasterDownError,
    "CLUSTERDOWN": exceptions.ClusterDownError,
}
"""The first words of errors. The texts of errors of these types are without them."""
_REFUSALS = (exceptions.BusyLoadingError, exceptions.AuthenticationError, exceptions.NoPermissionError)
"""What a server says to each request of this user, so that a new connection does not help."""
_ARGUMENTS = ", with args beginning with"
"""After these words a server repeats the arguments of a command: passwords and keys."""
_TIMEOUTS = ("socket_timeout", "socket_connect_timeout")


class Connection(Protocol):
    """A connection of redis-py. It serves a single call if the witness could note nothing on it."""

    pid: int
    is_witnessed: bool
    limit: Callable[[float], object]
    send: Callable[[bytes], object]

    def connect(self) -> None: ...
    def disconnect(self) -> None: ...


class Server(Protocol):
    """The server that a store sends its requests to: a Redis, or the node of a cluster that has its data."""

    url: str

    @property
    def run(self) -> Callable[..., Any]: ...
    def ask(self, *command: object) -> Any: ...
    def close(self) -> None: ...


class Repeated(list[Any]):
    """The answer to a command that was sent twice: the first one may have been executed."""


class Denied(NotDone):
    """The server has answered a command with an error."""


class Client:
    """A client for many threads, greenlets and forked children.

    A connection serves one call at a time and is then kept for the next: there are as many as calls ever ran
    at once. No lock guards them, so none can be held while a process forks.
    """

    hints: Mapping[str, str] = next_steps.HINTS
    begin_tls = "begin its URL with rediss://"

    def __init__(self, to: Address, witness: Witness | None = None) -> None:
        self._witness, self._address = witness, to
        self.url = self._address.shown
        self.replicas = self._address.replicas
        self.timeout = float(self._address.options["socket_timeout"] or 0)
        self._idle = Idle[Connection](lambda connection: connection.disconnect())

    def begin(self, script: Script, base: str, *arguments: object) -> Connection | None:
        """Send a script on an idle connection, which is the caller's until `run` reads the answer from it.

        None: there is no connection that works.
        """
        connection = self._idle.pop()
        if connection is None:
            return None
        try:
            connection.limit(at_most(self.timeout))
            connection.send(pack(("EVALSHA", script.name, "1", base, *arguments)))
        except BaseException as error:
            connection.disconnect()
            if isinstance(error, (exceptions.RedisError, OSError)):
                return None
            raise
        return connection

    def ask_at_once(self, commands: bytes, count: int) -> list[Any]:
        """Send packed commands on an idle connection, and return their answers, which may be errors.

        An empty list: there is no connection that works, so the caller has to use another method.
        """
        connection = self._idle.pop()
        if connection is None:
            return []
        try:
            connection.send(commands)
            answers = read_all(connection, count)
        except BaseException as error:
            connection.disconnect()
            if isinstance(error, (exceptions.TimeoutError, TimeoutError)):
                self.explain(error)  # another method would wait as long once more
            if isinstance(error, (exceptions.RedisError, OSError)):
                return []
            raise
        self._idle.append(connection)
        return answers

    def run(
        self,
        script: Script,
        base: str,
        *arguments: object,
        again: Command = (),
        begun: Connection | None = None,
        replicas: int = 0,
    ) -> Any:
        """Run a script by its name, or by its text if the server does not know it yet.

        `again` follows the arguments if they are sent a second time, since the first answer was lost.
        `begun`: they were sent on this connection. `replicas`: so many have to confirm what the script wrote.
        """
        command = ("EVALSHA", script.name, "1", base, *arguments)
        try:
            try:
                return self._exchange(command, script, again, begun, replicas)
            except exceptions.NoScriptError:
                return self._exchange(("EVAL", script.text, *command[2:]), script, again, None, replicas)
        except (exceptions.RedisError, OSError) as error:
            self.explain(error)

    def ask(self, *command: object) -> Any:
        """Send one command."""
        try:
            return self._exchange(command)
        except (exceptions.RedisError, OSError) as error:
            self.explain(error)

    def close(self) -> None:
        """Disconnect; the next call connects again."""
        self._idle.clear()

    def explain(self, error: Exception) -> NoReturn:
        """Raise StoreUnavailable, with the next step."""
        text = text_of(error)
        is_refusal = isinstance(error, exceptions.ResponseError)
        failure = getattr(error, "failure", Denied if is_refusal else StoreUnavailable)
        words = [code for code, kind in CODES.items() if isinstance(error, kind)]
        words += [word for word in self.hints if word in text]
        step = hints.ALIVE
        if words:
            said = f": {text}" if words[0] in text else f": {words[0]} {text}"
            user = str(self._address.options["username"] or "default")
            step = self.hints.get(words[0]) or next_steps.to_grant(text, user)
        elif is_refusal:
            said, step = f" refused: {text}", "read its log"
        else:
            said = f" does not answer: {text}"
            if isinstance(error, _Unreachable):
                step = next_steps.to_reach(text, is_tls=self._address.is_tls, begin=self.begin_tls)
        explained = failure(f"store {self.url}{said}; {step}")
        explained.refusal = text if is_refusal else ""
        explained.__context__ = error  # which Python does only while the error is handled
        raise explained from None  # the driver's frames would stand before the line

    def _exchange(
        self,
        command: Command,
        script: Script | None = None,
        again: Command = (),
        begun: Connection | None = None,
        replicas: int = 0,
    ) -> Any:
        """Do one round trip, and a second one on a new connection if the old one is of no use any more.

        A script is repeated by its text, since the server after a failover may not know its name.
        """
        try:
            if begun and begun.pid == os.getpid():
                return self._try(begun, None, replicas)
            return self._try(self._idle.pop() or self._open(), command, replicas)
        except _REFUSALS:
            raise
        except exceptions.ResponseError as error:
            if not _is_of_replica(error):
                raise
            self.close()  # it keeps them open, and the name leads to another server after a failover
            return self._try(self._open(), command, replicas)
        except (exceptions.TimeoutError, TimeoutError):
            self.close()  # maybe they all lead to a server that is gone
            raise
        except (exceptions.ConnectionError, OSError):
            self.close()  # a server that dropped one has dropped all of them
            if script:
                command = ("EVAL", script.text, *command[2:], *again)
            try:
                answer = self._try(self._open(), command, replicas)
            except (exceptions.ResponseError, _Unreachable) as error:
                vars(error)["failure"] = StoreUnavailable  # it may have done what the first request says
                raise
            return Repeated(answer) if isinstance(answer, list) else answer

    def _try(self, connection: Connection, command: Command | None, replicas: int = 0) -> Any:
        """Do one round trip; keep the connection for the next call, unless an answer may be left unread.

        `command`: None if it was sent before.
        """
        timeout = at_most(self.timeout)
        is_hurried = command is None or timeout < self.timeout
        try:
            if is_hurried:
                connection.limit(timeout)
            if command:
                connection.send(pack(command))
            (answer,) = read_all(connection, 1)
            if isinstance(answer, Exception):
                raise answer
            if replicas:
                self._confirm(connection, replicas)
        except exceptions.ResponseError:
            self._keep(connection, is_hurried=is_hurried)
            raise
        except BaseException:
            connection.disconnect()
            raise
        self._keep(connection, is_hurried=is_hurried)
        return answer

    def _confirm(self, connection: Connection, replicas: int) -> None:
        """Wait until the replicas have what this connection has written, for half of the timeout at most."""
        limit = max(round(at_most(self.timeout) / 2 * 1000), 1)
        confirmed = round_trip(connection, ("WAIT", replicas, limit))
        if confirmed < replicas:
            raise LeaseUnconfirmed(
                f"store {self.url}: {confirmed} of {replicas} replicas confirmed it within {limit} ms; "
                "look for the replicas, or lower replicas= in its URL"
            )

    def _keep(self, connection: Connection, *, is_hurried: bool) -> None:
        if not connection.is_witnessed:
            connection.disconnect()
            return
        if is_hurried:
            connection.limit(self.timeout)
        self._idle.append(connection)

    def _open(self) -> Connection:
        to = self._address
        kind: type[Any] = driver.Connection
        if to.is_tls:
            kind = driver.SSLConnection
        elif to.is_socket:
            kind = driver.UnixDomainSocketConnection
        limits = {name: at_most(float(to.options[name] or 0)) for name in _TIMEOUTS}
        alive = {} if to.is_socket else _ALIVE
        connection: Connection = kind(protocol=2, **{**alive, **self._options(), **limits})
        connection.is_witnessed = True
        try:
            connection.connect()
            its_socket = socket_of(connection)
            connection.limit, connection.send = its_socket.settimeout, its_socket.sendall
        except _REFUSALS:
            raise
        except (exceptions.RedisError, OSError, UnicodeError) as error:  # UnicodeError: not a host name
            raise _Unreachable(str(error)) from None
        try:
            self._greet(connection)
        except BaseException:
            connection.disconnect()
            raise
        return connection

    def _options(self) -> dict[str, address.Option]:
        """Return the options of redis-py for a new connection."""
        return self._address.options

    def _greet(self, connection: Connection) -> None:
        """Do what a new connection begins with."""
        if self._witness:
            connection.send(pack(self._witness.statement()))
            # Raises LOADING: the server would grant a lease unheard, if it has loaded its data by then.
            (answer,) = read_all(connection, 1)
            connection.is_witnessed = self._witness.hear(answer)


def round_trip(connection: Connection, command: Command) -> Any:
    """Send a command and return its answer."""
    connection.send(pack(command))
    (answer,) = read_all(connection, 1)
    if isinstance(answer, Exception):
        raise answer
    return answer


def text_of(error: object) -> str:
    """Return the text of an error, without its full stop and the arguments that a server repeats."""
    return str(error).partition(_ARGUMENTS)[0].rstrip(".")


def _is_of_replica(error: exceptions.ResponseError) -> bool:
    """Whether the server has refused a write, since it is no primary or has too few replicas."""
    is_said = isinstance(error, (exceptions.ReadOnlyError, exceptions.MasterDownError))
    # Redis 6 says so in an error of a script. redis-py 5 has no class of its own for MASTERDOWN here.
    return is_said or any(word in str(error) for word in ("-READONLY", "NOREPLICAS", "MASTERDOWN"))


class _Unreachable(exceptions.RedisError):
    """No server listens at the address. A retry at once would fail likewise."""

    failure: type[StoreUnavailable] = NotDone
