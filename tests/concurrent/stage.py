"""A stage of rounds: a store with its server, and the trouble that the server can have."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar

from typing_extensions import Self

from tests.concurrent.calls import NOT_DONE, Call, Loss, NewEpoch
from tests.concurrent.search import NEVER
from tests.proxy import Proxy

PAUSE = 0.4
"""Seconds for which a server stands still."""
Trouble = Callable[[], None]


class Stage:
    """A store that several clients can use.

    * `has_line`, `repeats_alone`: see `Round` and `Specification`.
    * `skips_locked`: a sweep passes over a key that another call has locked. `locks_next`: it locks the entry
      of the index behind those that it reads, too, as InnoDB does.
    * `settles`: a server that answers has done all that had arrived before, so a call without an answer is
      done by the end of the trouble, or never. `settled`: these instants.
    * `pushes`: a Redis sends a message in the step that grants its key.
    * `patience`: the seconds after which a client gives a call up.
    * `troubles_at_once`: in one round.
    * `losses`: what the server has lost, as calls of the history.
    * `made`: when each trouble of the round began and ended; one that has to wait sets `begun`.
    * `met`: how many calls each of them met.
    """

    has_line: ClassVar = True
    skips_locked: ClassVar = False
    locks_next: ClassVar = False
    repeats_alone: ClassVar = False
    settles: ClassVar = False
    pushes: ClassVar = True
    patience: ClassVar = 1.0
    troubles_at_once: ClassVar = 3
    url: str

    def __init__(self) -> None:
        self.servers = ExitStack()
        self.losses: list[tuple[Loss, int, int, int]] = []
        self.settled: list[int] = []
        self.made: list[tuple[int, int]] = []
        self.met: list[int] = []
        try:
            self.start()
        except BaseException:
            self.servers.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.servers.close()

    def start(self) -> None:
        """Start the servers, and set `url`."""

    def troubles(self) -> dict[str, Trouble]:
        """What may happen to the server, by name. Each ends with a server that works."""
        return {}

    def repair(self) -> None:
        """Have all servers up again, after a round."""

    def make(self, trouble: Trouble) -> None:
        """Make trouble, and wait until the server has done what was asked of it meanwhile."""
        self.begun = time.monotonic_ns() // 1000
        trouble()
        self.made.append((self.begun, time.monotonic_ns() // 1000))
        if self.settles:
            self.ping()
            self.settled.append(time.monotonic_ns() // 1000)

    def ping(self) -> None:
        """Wait until the server answers on a new connection."""

    def clear(self) -> None:
        """Forget what has happened in earlier rounds."""
        self.losses.clear()
        self.settled.clear()
        self.made.clear()

    def note_met(self, calls: Sequence[Call]) -> None:
        """Note how many calls each trouble met, until the next one."""
        ends = [begin for begin, _ in self.made[1:]] + [NEVER]
        self.met = [
            sum(call.begin < until and _is_met(call, begin, end) for call in calls)
            for (begin, end), until in zip(self.made, ends, strict=False)
        ]

    def sent(self, name: str) -> list[str] | None:
        """Return the messages that were pushed onto a list. None: the store has no lists, or lost some."""
        return None

    def history(self, keys: Iterable[str]) -> list[Call]:
        """What has happened to the data of each key."""
        calls = []
        for loss, begin, since, end in self.losses:
            for key in keys:
                calls.append(Call(client=-1, key=key, operation=loss, begin=begin, since=since, end=end))
                calls.append(Call(client=-1, key=key, operation=NewEpoch(), begin=begin, since=since))
        return calls

    def lose(self, trouble: Trouble, *, is_total: bool) -> None:
        """Note that the server loses data meanwhile."""
        since, begin = time.time_ns() // 1000, time.monotonic_ns() // 1000
        trouble()
        self.losses.append((Loss(is_total), begin, since, time.monotonic_ns() // 1000))


class Server(Stage):
    """A store on one server, behind a network that can be cut."""

    make_server: ClassVar[Callable[[], Any]]
    loses_all: ClassVar = False

    def start(self) -> None:
        self.server = self.servers.enter_context(type(self).make_server())
        self.network = self.servers.enter_context(Proxy(self.server.port))
        self.url = self.url_of(self.network.port)

    def url_of(self, port: int) -> str:
        raise NotImplementedError

    def troubles(self) -> dict[str, Trouble]:
        return {
            "kill": self.kill,
            "pause": self.pause,
            "cut": self.cut,
            "lost answers": self.lose_answers,
            "late requests": self.delay_requests,
            "silence": self.silence,
        }

    def kill(self) -> None:
        def restart() -> None:
            self.server.kill()
            self.server.start()

        if self.loses_all:
            self.lose(restart, is_total=True)
        else:
            restart()

    def pause(self) -> None:
        self.server.pause()
        time.sleep(PAUSE)
        self.server.resume()

    def cut(self) -> None:
        self.network.cut()
        self.network.restore()

    def lose_answers(self) -> None:
        """Let the server do what a few requests say, and close their connections instead of an answer."""
        for _ in range(6):
            met = len(self.network.met)
            self.network.lose(b"")
            wait_for(lambda: len(self.network.met) > met)  # noqa: B023 - it is called at once
        self.network.restore()

    def delay_requests(self) -> None:
        """Let a few requests arrive when their clients have given them up."""
        met = len(self.network.met)
        for _ in range(3):
            self.network.withhold(b"")
        wait_for(lambda: len(self.network.met) >= met + 3)
        time.sleep(self.patience)
        self.network.deliver()
        wait_for(lambda: not self.network.is_on_its_way)
        self.network.restore()

    def silence(self) -> None:
        """Let the server do all requests, and lose its answers for a while."""
        self.network.drop(replies=True)
        time.sleep(PAUSE)
        self.network.restore()


def _is_met(call: Call, begin: int, end: int) -> bool:
    """Whether a call has no answer, was not done, needed a new connection, or waited half of the trouble."""
    its_end = call.end or call.last or 0
    if its_end < begin:
        return False
    failed = not call.is_answered or call.reply == NOT_DONE
    return failed or call.has_connected or min(its_end, end) - max(call.begin, begin) > (end - begin) / 2


def wait_for(is_so: Callable[[], bool], seconds: float = 3) -> None:
    """Wait for it, unless the clients are done before."""
    until = time.monotonic() + seconds
    while not is_so() and time.monotonic() < until:
        time.sleep(0.005)
