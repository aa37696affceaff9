"""A client of one node of a cluster: any number of calls in one round trip."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from redis import exceptions

from celery_exclusive.stores.redis.address import Address
from celery_exclusive.stores.redis.call import Call
from celery_exclusive.stores.redis.client import HINTS, Client, Connection, receive
from celery_exclusive.stores.redis.packer import pack
from celery_exclusive.stores.redis.witness import Witness
from celery_exclusive.system.deadline import at_most

_MOVES = "its slot is on its way to another node: if that lasts, run redis-cli --cluster fix"
_DOWN = "its slot has no primary now: a failover takes some seconds, else look at CLUSTER INFO and its log"


class Node(Client):
    """A client of one node.

    `has_failed`: the last attempt to reach the node failed, so other nodes are asked first.
    `heard`: the slots whose witness has made its statement since the last connection was opened.
    """

    hints = MappingProxyType(
        {
            "cluster support disabled": "it is a single server: name it redis:// in exclusive_store",
            **HINTS,
            **dict.fromkeys(("ASK", "TRYAGAIN"), _MOVES),
            **dict.fromkeys(("CLUSTERDOWN", "MOVED", "READONLY", "MASTERDOWN"), _DOWN),
        }
    )
    begin_tls = "begin its URL with rediss+cluster://"

    def __init__(self, to: Address, cluster: str, witnesses: Mapping[int, Witness]) -> None:
        super().__init__(to)
        self._witnesses = witnesses
        self.heard = set[int]()
        self.has_failed = False
        self.host = str(to.options["host"])
        self.url = f"{cluster} (node {self.host}:{to.options['port']})"

    def exchange(self, calls: Sequence[Call]) -> Generator[None]:
        """Send the commands of all calls, yield, and read the answers.

        Statements of witnesses that were not heard yet are sent before the commands.
        """
        try:
            connection = self._idle_or_new()
        except (exceptions.RedisError, OSError) as error:
            self.has_failed = True
            for call in calls:
                call.note_unsent(error)
            return
        heard = self.heard
        unheard = {call.slot for call in calls} - heard
        commands = [
            *(self._witnesses[slot].statement() for slot in unheard),
            *(call.command for call in calls),
        ]
        try:
            connection.limit(at_most(self.timeout))
            connection.send(b"".join(map(pack, commands)))
            yield
            connection.limit(at_most(self.timeout))
            answers = iter(receive(connection.read_all, len(commands)))
        except (exceptions.RedisError, OSError) as error:
            connection.disconnect()
            self.close()  # a server that dropped one has dropped all of them
            self.has_failed = True
            for call in calls:
                call.note_lost(error)
            return
        except BaseException:
            connection.disconnect()
            raise
        self._keep(connection, is_hurried=True)
        self.has_failed = False
        heard.update([slot for slot in unheard if _is_heard(self._witnesses[slot], next(answers))])
        for call, answer in zip(calls, answers, strict=True):
            call.note(answer)

    def _greet(self, connection: Connection) -> None:
        super()._greet(connection)
        self.heard = set()  # an answer that is under way adds to the one before


def _is_heard(witness: Witness, answer: Any) -> bool:
    """Note the answer to a statement. Return whether it need not be repeated on this connection."""
    if isinstance(answer, Exception):
        return isinstance(answer, exceptions.NoPermissionError)
    return witness.hear(*answer)
