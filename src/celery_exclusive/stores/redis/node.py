"""A client of one node of a cluster: any number of calls in one round trip."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from redis import exceptions
from redis.crc import key_slot

from celery_exclusive.stores.redis.address import Address, Place
from celery_exclusive.stores.redis.client import CODES, Client, Connection, Repeated
from celery_exclusive.stores.redis.next_steps import HINTS
from celery_exclusive.stores.redis.protocol import Command, pack, read_all
from celery_exclusive.stores.redis.scripts import Script
from celery_exclusive.stores.redis.witness import Witness
from celery_exclusive.stores.text import to_bytes
from celery_exclusive.system.deadline import at_most, deadline

_PASSING = (
    exceptions.AskError,  # MOVED, too
    exceptions.TryAgainError,
    exceptions.ClusterDownError,
    exceptions.ReadOnlyError,
    exceptions.MasterDownError,
    exceptions.BusyLoadingError,
    exceptions.NoScriptError,
)
"""Refusals of a node that has done nothing. This node, or another one, may do it soon."""
_WORDS = (exceptions.BusyLoadingError, exceptions.AuthenticationError)
"""Refusals that for redis-py are errors of the connection."""
_MOVES = "its slot is on its way to another node: if that lasts, run redis-cli --cluster fix"
_DOWN = "its slot has no primary now: a failover takes some seconds, else look at CLUSTER INFO and its log"


@dataclass(slots=True)
class Call:
    """A command on names of one slot, and its answer or its error.

    * `again`: arguments that are appended if the command is sent again after its answer was lost.
    * `place`: the node that was asked last.
    * `is_open`: the command has to be sent; `error` is then the reason to send it again. Without it `error`
      is the refusal of the node.
    """

    command: Command
    script: Script | None = None
    again: Command = ()
    slot: int = field(init=False)
    place: Place | None = None
    answer: Any = None
    error: Exception | None = None
    is_open: bool = True
    is_repeated: bool = False

    def __post_init__(self) -> None:
        self.slot = slot_of(str(self.command[3 if self.script else 1]))

    @property
    def is_sent_on(self) -> bool:
        """Whether the answer says how, or to which node, to send it."""
        return isinstance(self.error, (exceptions.MovedError, exceptions.NoScriptError))

    def note(self, answer: Any) -> None:
        """Note the answer of a node, which may be an error."""
        if (
            type(answer) is exceptions.ResponseError
        ):  # redis-py 5 knows some types only in its own cluster client
            code, _, text = str(answer).partition(" ")
            answer = CODES[code](text) if code in CODES else answer
        if isinstance(answer, exceptions.NoScriptError) and self.script:
            self.command = ("EVAL", self.script.text, *self.command[2:])
        self.error = answer if isinstance(answer, Exception) else None
        self.is_open = isinstance(answer, _PASSING)
        self.answer = Repeated(answer) if self.is_repeated and isinstance(answer, list) else answer

    def note_failure(self, error: Exception, *, is_sent: bool) -> None:
        """Note why there is no answer. `is_sent`: the node may have executed the command."""
        self.error = error
        self.is_open = not isinstance(error, exceptions.AuthenticationError) or is_sent
        if is_sent and not self.is_repeated:
            self.command += self.again
        self.is_repeated |= is_sent


def script_call(script: Script, base: str, *arguments: object, again: Command = ()) -> Call:
    """Return the call of a script: by its name, until the node does not know it."""
    return Call(("EVALSHA", script.name, "1", base, *arguments), script, again)


@lru_cache(1024)
def slot_of(name: str) -> int:
    """Return the slot of a name of data."""
    return int(key_slot(to_bytes(name)))


class Node(Client):
    """A client of one node.

    `has_failed`: the last attempt to reach the node failed, so other nodes are asked first.
    `heard`: the slots whose witness has made its statement since the last connection was opened.
    """

    hints: Mapping[str, str] = {
        "cluster support disabled": "it is a single server: name it redis:// in exclusive_store",
        **HINTS,
        **dict.fromkeys(("ASK", "TRYAGAIN"), _MOVES),
        **dict.fromkeys(("CLUSTERDOWN", "MOVED", "READONLY", "MASTERDOWN"), _DOWN),
    }
    begin_tls = "begin its URL with rediss+cluster://"

    def __init__(self, to: Address, cluster: str, witnesses: Mapping[int, Witness]) -> None:
        super().__init__(to)
        self._witnesses = witnesses
        self.heard = set[int]()
        self.has_failed = False
        self.url = f"{cluster} (node {to.options['host']}:{to.options['port']})"

    def exchange(self, calls: Sequence[Call]) -> Generator[None]:
        """Send the commands of all calls, yield, and read the answers.

        Statements of witnesses that were not heard yet are sent before the commands.
        """
        connection = None
        try:
            with deadline(at_most(self.timeout) / 2):  # a silent node leaves time for the others
                connection = self._idle.pop() or self._open()
            heard = self.heard
            unheard = {call.slot for call in calls} - heard
            commands = [self._witnesses[slot].statement() for slot in unheard]
            commands += [call.command for call in calls]
            connection.limit(at_most(self.timeout))
            connection.send(b"".join(map(pack, commands)))
            yield
            connection.limit(at_most(self.timeout))
            answers = iter(read_all(connection, len(commands)))
        except _WORDS as error:  # it has done nothing, and says so at each request
            self.has_failed = connection is None
            if connection:
                connection.disconnect()
            for call in calls:
                call.note(error)
            return
        except (exceptions.RedisError, OSError) as error:
            self.has_failed = True
            if connection:
                connection.disconnect()
                self.close()  # a server that dropped one has dropped all of them
            for call in calls:
                call.note_failure(error, is_sent=connection is not None)
            return
        except BaseException:
            if connection:
                connection.disconnect()
            raise
        self._keep(connection, is_hurried=True)
        self.has_failed = False
        heard.update([slot for slot in unheard if self._witnesses[slot].hear(next(answers))])
        for call, answer in zip(calls, answers, strict=True):
            call.note(answer)

    def _greet(self, connection: Connection) -> None:
        super()._greet(connection)
        self.heard = set()  # an answer that is under way adds to the one before
