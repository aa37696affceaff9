"""A client of one node of a cluster: the calls of several buckets in one round trip."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, NoReturn

from redis import exceptions

from celery_exclusive.stores.redis import reader
from celery_exclusive.stores.redis.call import Call
from celery_exclusive.stores.redis.client import HINTS, Client, Connection
from celery_exclusive.stores.redis.packer import pack
from celery_exclusive.stores.redis.start_nodes import Place
from celery_exclusive.stores.redis.witness import Witness
from celery_exclusive.system.deadline import at_most

_MOVES = "its slot is on its way to another node: if that lasts, run redis-cli --cluster fix"
_DOWN = "its slot has no primary now: a failover takes some seconds, else look at CLUSTER INFO and its log"


class Node(Client):
    """A client of one node.

    `has_failed`: the last attempt to reach it failed, so others are asked first where any node will do.
    `heard` are the buckets whose witness has made its statement since the last connection was opened.
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
    has_failed = False

    def __init__(self, url: str, place: Place, cluster: str, witnesses: Sequence[Witness]) -> None:
        super().__init__(url)
        self._witnesses = witnesses
        self.heard = set[int]()
        self.host, port = place
        self.url = f"{cluster} (node {self.host}:{port})"

    def send(self, calls: list[Call]) -> Any:
        """Send the commands of all calls; return the connection for `receive`, None if there is none.

        The statements of witnesses that were not heard yet are put before them.
        """
        try:
            connection = self._idle_or_new()
        except exceptions.AuthenticationError as error:
            for call in calls:
                call.note(error)
            return None
        except (exceptions.RedisError, OSError) as error:
            self.has_failed = True
            for call in calls:
                call.error = error
            return None
        heard = self.heard
        unheard = {call.bucket for call in calls} - heard
        calls[:0] = [
            Call(it, self._witnesses[it].statement(), told=(self._witnesses[it], heard)) for it in unheard
        ]
        try:
            connection._sock.settimeout(at_most(self.timeout))
            connection._sock.sendall(b"".join([pack(call.command) for call in calls]))
        except (exceptions.RedisError, OSError) as error:
            self._lose(connection, calls, error)
            return None
        except BaseException:
            connection.disconnect()
            raise
        return connection

    def receive(self, connection: Any, calls: Sequence[Call]) -> None:
        """Read the answers to all calls."""
        try:
            connection._sock.settimeout(at_most(self.timeout))
            answers = reader.read_all(connection._sock, len(calls), connection._parser.parse_error)
        except TimeoutError:
            self._lose(connection, calls, exceptions.TimeoutError("Timeout reading from socket"))
        except EOFError:
            self._lose(connection, calls, exceptions.ConnectionError("Connection closed by server."))
        except OSError as error:
            self._lose(connection, calls, error)
        except BaseException:
            connection.disconnect()
            raise
        else:
            self._keep(connection, is_hurried=True)
            self.has_failed = False
            for call, answer in zip(calls, answers, strict=True):
                call.note(answer)
                if call.told and not call.is_open:
                    _hear(call, *call.told)

    def _greet(self, connection: Connection) -> None:
        super()._greet(connection)
        self.heard = set()  # an answer that is under way adds to the one before

    def explain(self, error: Exception) -> NoReturn:
        """Raise StoreUnavailable, with the next step."""
        self._explain(error)

    def _lose(self, connection: Any, calls: Sequence[Call], error: Exception) -> None:
        connection.disconnect()
        self.close()  # a server that dropped one has dropped all of them
        self.has_failed = True
        for call in calls:
            call.note_lost(error)


def _hear(call: Call, witness: Witness, heard: set[int]) -> None:
    """Note the answer to a statement. One that was refused for another reason than rights is made again."""
    if isinstance(call.error, exceptions.NoPermissionError) or (
        not call.error and witness.hear(*call.answer)
    ):
        heard.add(call.bucket)
