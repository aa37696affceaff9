"""A network between a client and a server, which can be slow, cut, or lose what one side says."""

from __future__ import annotations

import queue
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Thread
from typing import Literal

from typing_extensions import Self

from tests.servers import free_port

_LONGEST_WAIT = 5
"""Seconds for which a peer may refuse to take what was said to it."""
Fate = Literal["pass", "lose", "withhold", "deliver"]


class Proxy:
    """Stands on a port of its own for a server on this machine.

        with Proxy(server.port) as proxy:
            url = f"redis://127.0.0.1:{proxy.port}/0"
            proxy.delay(0.5)
            proxy.drop(replies=True)
            proxy.restore()

    Each of `delay`, `cut`, `drop` ends what was before it. `lose` and `withhold` are for single requests,
    which they know by a word; a request is what a client says at once.
    """

    def __init__(self, port: int) -> None:
        self.port, self._server = free_port(), port
        self.accepted = 0
        """How many connections were made."""
        self.met: list[bytes] = []
        """The words of `lose` and `withhold` whose request has come."""
        self.when_lost: Callable[[], object] = lambda: None
        """Is called when an answer is lost by `lose`, before its connection is closed."""
        self._trouble = _Trouble()
        self._fates: deque[tuple[Fate, bytes]] = deque()
        self._links: list[_Link] = []
        self._selector = selectors.DefaultSelector()
        self._commands: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._bell, self._ringer = socket.socketpair()
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._listener: socket.socket | None = None
        self._listen()
        self._thread = Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def restore(self) -> None:
        """Pass on everything at once again. Connections that have lost something are closed."""
        self._do(lambda: (self._change(_Trouble()), self._fates.clear()))

    def delay(self, seconds: float = 0, *, requests: float = 0, replies: float = 0) -> None:
        """Pass on everything, and in order, but so many seconds later; each way, or one of them."""
        self._do(lambda: self._change(_Trouble(max(requests, seconds), max(replies, seconds))))

    def cut(self) -> None:
        """Close all connections, and refuse new ones."""
        self._do(lambda: self._change(_Trouble(is_cut=True)))

    def drop(self, *, requests: bool = False, replies: bool = False) -> None:
        """Keep connections open, and let new ones in, but lose all that is said one way, or both."""
        self._do(lambda: self._change(_Trouble(no_requests=requests, no_replies=replies)))

    def lose(self, word: bytes, times: int = 1) -> None:
        """Pass on the next requests with this word, and close their connections instead of the answers."""
        self._do(lambda: self._fates.extend([("lose", word)] * times))

    def withhold(self, word: bytes, times: int = 1) -> None:
        """Keep the next requests with this word, and what follows on their connections, until `deliver`."""
        self._do(lambda: self._fates.extend([("withhold", word)] * times))

    def deliver(self) -> None:
        """Let what was withheld arrive now; it has when nothing `is_on_its_way` any more."""
        self._do(self._deliver)

    @property
    def is_on_its_way(self) -> bool:
        """Whether a connection with something that was withheld is still open."""
        return any(link.fate in ("withhold", "deliver") for link in self._links)

    def forget(self) -> None:
        """Lose, without a word, all that is said on the connections that are open now; new ones work."""

        def forget() -> None:
            for link in self._links:
                link.is_forgotten = True

        self._do(forget)

    def lead_to(self, port: int) -> None:
        """Connect those who come from now on to another server on this machine; the others stay."""
        self._do(lambda: setattr(self, "_server", port))

    def close(self) -> None:
        """Close all connections and the port."""
        self._commands.put(None)
        self._ringer.send(b"!")
        self._thread.join()
        self._change(_Trouble(is_cut=True))
        self._selector.close()
        self._bell.close()
        self._ringer.close()

    def _do(self, command: Callable[[], object]) -> None:
        """Do it in the proxy's thread, and wait until it is done."""
        done: queue.SimpleQueue[None] = queue.SimpleQueue()

        def run() -> None:
            command()
            done.put(None)

        self._commands.put(run)
        self._ringer.send(b"!")
        done.get(timeout=30)

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select(self._pause()):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._bell:
                    self._bell.recv(1)
                    command = self._commands.get()
                    if command is None:
                        return
                    command()
                elif key.data and key.data.is_open:
                    self._hear(key.data, key.fileobj)
            now = time.monotonic()
            for link in self._links:
                link.pass_on(now)
            self._links = [link for link in self._links if link.is_open]

    def _pause(self) -> float | None:
        dues = [due for link in self._links if (due := link.due) is not None]
        return max(min(dues) - time.monotonic(), 0) if dues else None

    def _listen(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._selector.register(self._listener, selectors.EVENT_READ)

    def _accept(self) -> None:
        assert self._listener
        client, _ = self._listener.accept()
        self.accepted += 1
        try:
            server = socket.create_connection(("127.0.0.1", self._server), _LONGEST_WAIT)
        except OSError:
            client.close()
            return
        client.settimeout(_LONGEST_WAIT)
        link = _Link(client, server, self._selector)
        self._links.append(link)

    def _hear(self, link: _Link, speaker: object) -> None:
        is_request = speaker is link.client
        said = link.hear(is_request=is_request)
        if link.is_forgotten:
            return
        trouble = self._trouble
        if trouble.no_requests if is_request else trouble.no_replies:
            link.has_lost = True
            return
        if is_request and self._fates and self._fates[0][1] in said:
            link.fate, word = self._fates.popleft()
            self.met.append(word)
        elif not is_request and link.fate == "lose":
            self.when_lost()
            link.close()
            return
        seconds = trouble.request_delay if is_request else trouble.reply_delay
        link.take(said, time.monotonic() + seconds, is_request=is_request)

    def _change(self, trouble: _Trouble) -> None:
        self._trouble = trouble
        for link in self._links:
            if link.has_lost or trouble.is_cut:
                link.close()
        if trouble.is_cut and self._listener:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None
        elif not trouble.is_cut and not self._listener:
            self._listen()

    def _deliver(self) -> None:
        for link in self._links:
            if link.fate == "withhold":
                link.fate = "deliver"


@dataclass(frozen=True)
class _Trouble:
    """What the network does now."""

    request_delay: float = 0
    reply_delay: float = 0
    no_requests: bool = False
    no_replies: bool = False
    is_cut: bool = False


@dataclass(eq=False)
class _Link:
    """A client's connection and ours to the server; what was heard on each waits here until it is due."""

    client: socket.socket
    server: socket.socket
    selector: selectors.BaseSelector
    fate: Fate = "pass"
    has_lost: bool = False
    is_forgotten: bool = False
    is_open: bool = True
    requests: deque[tuple[float, bytes]] = field(default_factory=deque)
    replies: deque[tuple[float, bytes]] = field(default_factory=deque)
    ended: set[socket.socket] = field(default_factory=set)

    def __post_init__(self) -> None:
        for side in (self.client, self.server):
            self.selector.register(side, selectors.EVENT_READ, self)

    @property
    def due(self) -> float | None:
        queues = [self.replies] if self.fate == "withhold" else [self.requests, self.replies]
        return min((waiting[0][0] for waiting in queues if waiting), default=None)

    def hear(self, *, is_request: bool) -> bytes:
        """What one side says; nothing more: it has closed its end."""
        speaker = self.client if is_request else self.server
        said = b""
        with suppress(OSError):
            said = speaker.recv(1 << 20)
        if not said:
            self.selector.unregister(speaker)
        return said

    def take(self, said: bytes, due: float, *, is_request: bool) -> None:
        (self.requests if is_request else self.replies).append((due, said))

    def pass_on(self, now: float) -> None:
        """Say what is due to whom it is for."""
        if self.fate != "withhold":
            self._say(self.requests, self.server, now)
        self._say(self.replies, self.client, now)
        if len(self.ended) == 2:
            self.close()

    def _say(self, waiting: deque[tuple[float, bytes]], to: socket.socket, now: float) -> None:
        while self.is_open and waiting and waiting[0][0] <= now:
            _, said = waiting.popleft()
            try:
                if said:
                    to.sendall(said)
                else:
                    self.ended.add(to)
                    to.shutdown(socket.SHUT_WR)
            except OSError:  # it has gone; what the other side has said may still arrive
                self.ended.add(to)

    def close(self) -> None:
        """Close both ends, whatever still waits."""
        self.is_open = False
        for side in (self.client, self.server):
            with suppress(KeyError, ValueError):
                self.selector.unregister(side)
            side.close()
