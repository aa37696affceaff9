"""A client of one memcached server: several commands in one round trip, one retry, and clear errors."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, BinaryIO, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlsplit

from celery_exclusive.errors import OptionError, StoreUnavailable
from celery_exclusive.stores import hints
from celery_exclusive.stores.idle import Idle, keep_alive
from celery_exclusive.system.deadline import at_most

T = TypeVar("T")
TIMEOUT = 5.0
"""Seconds for connecting and for each answer, unless the URL says otherwise."""
_PORT = 11211
_LONGEST_LINE = 8192
_AT_ONCE = 500
"""The most commands in one round trip."""
_HINTS = {
    "out of memory": "its memory is full: give it more, or give the locks a server of their own",
    "too large": "its values must not be larger than its option -I allows: lower the limit of this task",
    "Too many open connections": "raise its option -c, which says how many it allows",
    "CLIENT_ERROR unauth": "it asks for a login, which memcached:// does not support",
    "ERROR": "it must be memcached 1.6.10 or newer, which knows the meta commands as they are today",
    "is no answer of memcached": "check its URL",
}
_CODES = frozenset({b"VA", b"HD", b"EN", b"NS", b"EX", b"NF", b"STAT", b"END"})


class Answer(NamedTuple):
    """The answer to a meta command: its code, its flags by their letter, and the value if it has one.

    `is_repeated`: the command was sent twice, so the server may have executed it before it gave this answer.
    """

    code: bytes
    flags: dict[str, str]
    value: bytes | None
    is_repeated: bool = False


class _Connection(NamedTuple):
    socket: socket.socket
    reader: BinaryIO

    def close(self) -> None:
        self.reader.close()
        self.socket.close()


class Client:
    """A client for many threads, greenlets and forked children; a connection serves one call at a time."""

    def __init__(self, url: str) -> None:
        self._address, self._timeout = _parse(url)
        self.url = url.partition("?")[0]
        self._idle = Idle(_Connection.close)

    def ask(self, commands: Sequence[bytes]) -> list[Answer]:
        """Send meta commands, with their values; return their answers in order.

        If the first answer is lost, they are sent again, although the server may have executed them.
        """
        parts = (commands[start : start + _AT_ONCE] for start in range(0, len(commands), _AT_ONCE))
        found = (self._exchange(part, partial(_read_all, len(part))) for part in parts)
        return [
            answer._replace(is_repeated=True) if is_repeated else answer
            for answers, is_repeated in found
            for answer in answers
        ]

    def statistics(self, *of: bytes) -> dict[str, str]:
        """Return the statistics of the server."""
        lines, _ = self._exchange(
            [b" ".join((b"stats", *of))], lambda reader: [*iter(partial(_line, reader), b"END")]
        )
        found = (line.decode(errors="replace").split(" ", 2) for line in lines)
        return {name: value for _, name, value in found}

    def close(self) -> None:
        """Disconnect; the next call connects again."""
        self._idle.clear()

    def _exchange(self, commands: Sequence[bytes], read: Callable[[BinaryIO], T]) -> tuple[T, bool]:
        """Do one round trip; a second one on a new connection if the old one was dropped.

        Return what was read, and whether the commands were sent twice.
        """
        connection = self._idle.pop()
        try:
            if connection:
                try:
                    return self._try(connection, commands, read), False
                except ConnectionError:
                    self.close()  # a server that dropped one has dropped all of them
            return self._try(self._connect(), commands, read), connection is not None
        except (OSError, ValueError) as error:  # ValueError: not a host name, an error, or not an answer
            text = str(error) or type(error).__name__
            hint = next((hint for word, hint in _HINTS.items() if word in text), "")
            problem = f"store {self.url}: {text}" if hint else f"store {self.url} does not answer: {text}"
            raise StoreUnavailable(f"{problem}; {hint or hints.ALIVE}") from None

    def _try(self, connection: _Connection, commands: Sequence[bytes], read: Callable[[BinaryIO], T]) -> T:
        try:
            connection.socket.settimeout(at_most(self._timeout))
            connection.socket.sendall(b"".join(b"%b\r\n" % command for command in commands))
            answer = read(connection.reader)
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        return answer

    def _connect(self) -> _Connection:
        timeout = at_most(self._timeout)
        if isinstance(self._address, str):
            opened = socket.socket(socket.AF_UNIX)
            opened.settimeout(timeout)
            try:
                opened.connect(self._address)
            except BaseException:
                opened.close()
                raise
        else:
            opened = socket.create_connection(self._address, timeout)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(opened)
        return _Connection(opened, opened.makefile("rb"))


def _read_all(number: int, reader: BinaryIO) -> list[Answer]:
    return [_read(reader) for _ in range(number)]


def _read(reader: BinaryIO) -> Answer:
    code, *words = _line(reader).split(b" ")
    value = None
    if code == b"VA":
        size = int(words.pop(0))
        value = reader.read(size + 2)[:-2]
        if len(value) != size:
            raise _closed()
    return Answer(code, {word[:1].decode(): word[1:].decode() for word in words}, value)


def _line(reader: BinaryIO) -> bytes:
    line = reader.readline(_LONGEST_LINE)
    if not line.endswith(b"\n") and len(line) < _LONGEST_LINE:
        raise _closed()
    line = line.rstrip(b"\r\n")
    code = line.partition(b" ")[0]
    if code.endswith(b"ERROR"):
        raise ValueError(line.decode(errors="replace"))
    if code not in _CODES:
        raise ValueError(f"{line[:60]!r} is no answer of memcached")
    return line


def _closed() -> ConnectionResetError:
    return ConnectionResetError("Connection closed by server")


def _parse(url: str) -> tuple[Any, float]:
    """Return the address and the timeout of a URL.

    Example:
        memcached://localhost:11211, memcached://10.0.0.7?timeout=2, memcached:///run/memcached.sock

    Raises:
        OptionError: the URL is malformed, or names several servers.
    """
    if re.search("[,;]", url.partition("?")[0]):
        raise OptionError(
            "exclusive_store: this memcached:// URL names several servers. Each key would be on one of them, "
            "and on another as soon as a server is added or does not answer: then two tasks would hold one "
            "lock. Name one server"
        )
    try:
        parts = urlsplit(url)
        path = parts.path.strip("/")
        if "@" in url or bool(parts.hostname) == bool(path):
            raise ValueError
        query = dict(parse_qsl(parts.query))
        timeout = float(query.pop("timeout", TIMEOUT))
        if query or not 0 < timeout < 3600:
            raise ValueError
        return (parts.hostname, parts.port or _PORT) if parts.netloc else parts.path, timeout
    except ValueError:
        raise OptionError(
            "exclusive_store: cannot understand this memcached:// URL: write memcached://host:11211, or "
            "memcached:///path/of/its.socket, and perhaps ?timeout=5 (seconds); it has no login"
        ) from None
