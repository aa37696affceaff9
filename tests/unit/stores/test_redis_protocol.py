"""A reply of Redis is read whole, in whatever pieces it comes."""

from __future__ import annotations

import socket
from threading import Thread
from typing import Any

import pytest
from redis.exceptions import NoScriptError, ResponseError

from celery_exclusive.stores.redis import protocol
from celery_exclusive.stores.redis.protocol import read_all

REPLIES: dict[bytes, Any] = {
    b":7\r\n": 7,
    b"+OK\r\n": b"OK",
    b"$-1\r\n": None,
    b"$0\r\n\r\n": b"",
    b"$9\r\na\r\n$1\r\nb\r\r\n": b"a\r\n$1\r\nb\r",
    b"*0\r\n": [],
    b"*2\r\n$7\r\ngranted\r\n:1795477492651928\r\n": [b"granted", 1795477492651928],
    b"*3\r\n*2\r\n:-1\r\n$1\r\nx\r\n+PONG\r\n$-1\r\n": [[-1, b"x"], b"PONG", None],
    b"*1\r\n$200000\r\n" + b"m" * 200_000 + b"\r\n": [b"m" * 200_000],
}


class Pieces(socket.socket):
    """A socket that reads each piece by itself."""

    def __init__(self, pieces: list[bytes]) -> None:
        super().__init__()
        self.pieces = pieces

    def recv(self, *_: Any) -> bytes:
        return self.pieces.pop(0)


def error(text: str) -> Exception:
    return NoScriptError(text) if text.startswith("NOSCRIPT") else ResponseError(text)


def read_sent(*pieces: bytes) -> Any:
    ours, theirs = socket.socketpair()

    def send() -> None:
        with theirs:
            for piece in pieces:
                theirs.sendall(piece)

    sender = Thread(target=send)
    with ours:
        sender.start()
        try:
            (reply,) = read_all(ours, error, 1)
            return reply
        finally:
            sender.join()


@pytest.mark.parametrize("sent", REPLIES)
def test_a_reply_is_read_whole(sent: bytes) -> None:
    assert read_sent(sent) == REPLIES[sent]
    pieces = [sent[at : at + 1] for at in range(min(len(sent), 50))] + [sent[50:]]
    assert read_sent(*pieces) == REPLIES[sent]
    with Pieces(pieces) as one_by_one:
        assert read_all(one_by_one, error, 1) == [REPLIES[sent]]


def test_each_part_of_a_long_reply_is_parsed_about_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parts, parse, count = [b"m" * 100_000] * 100, protocol._parse, 0

    def counted(*args: Any) -> Any:
        nonlocal count
        count += 1
        return parse(*args)

    monkeypatch.setattr(protocol, "_parse", counted)
    sent = b"*100\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)
    assert read_sent(sent) == parts
    assert count < len(parts), "it comes in 150 pieces or more"


def test_a_refusal_is_the_reply() -> None:
    assert isinstance(read_sent(b"-NOSCRIPT No matching script\r\n"), NoScriptError)


def test_a_connection_that_ends_in_the_middle_is_an_error() -> None:
    with pytest.raises(ConnectionError):
        read_sent(b"*2\r\n$7\r\ngran")


def test_bytes_that_are_no_reply_are_an_error() -> None:
    with pytest.raises(ValueError, match="HTTP"):
        read_sent(b"HTTP/1.1 400 Bad Request\r\n")
