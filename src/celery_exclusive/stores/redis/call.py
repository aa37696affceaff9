"""A command for the node that has a slot, and its answer or error."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from redis import exceptions

from celery_exclusive.stores.redis.client import Repeated
from celery_exclusive.stores.redis.packer import Command
from celery_exclusive.stores.redis.scripts import Script
from celery_exclusive.stores.redis.slots import slot_of
from celery_exclusive.stores.redis.start_nodes import Place

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

_BY_CODE = {
    "ASK": exceptions.AskError,
    "MOVED": exceptions.MovedError,
    "TRYAGAIN": exceptions.TryAgainError,
    "CLUSTERDOWN": exceptions.ClusterDownError,
    "MASTERDOWN": exceptions.MasterDownError,
}
"""Errors that a connection of redis-py 5 knows only within redis-py's own cluster client."""


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
        self.slot = slot_of(self.command[3 if self.script else 1])

    @property
    def is_sent_on(self) -> bool:
        """Whether the answer says how, or to which node, to send it."""
        return isinstance(self.error, (exceptions.MovedError, exceptions.NoScriptError))

    def note(self, answer: Any) -> None:
        """Note the answer of a node, which may be an error."""
        if type(answer) is exceptions.ResponseError:
            code, _, text = str(answer).partition(" ")
            answer = _BY_CODE[code](text) if code in _BY_CODE else answer
        if isinstance(answer, exceptions.NoScriptError) and self.script:
            self.command = ("EVAL", self.script.text, *self.command[2:])
        self.error = answer if isinstance(answer, Exception) else None
        self.is_open = isinstance(answer, _PASSING)
        self.answer = Repeated(answer) if self.is_repeated and isinstance(answer, list) else answer

    def note_unsent(self, error: Exception) -> None:
        """Note why there is no connection to the node."""
        self.error = error
        self.is_open = not isinstance(error, exceptions.AuthenticationError)

    def note_lost(self, error: Exception) -> None:
        """Note that the node may have executed the command, and has not answered."""
        self.error = error
        if not self.is_repeated:
            self.command += self.again
        self.is_repeated = True


def script_call(script: Script, base: str, *arguments: object, again: Command = ()) -> Call:
    """Return the call of a script: by its name, until the node does not know it."""
    return Call(("EVALSHA", script.name, "1", base, *arguments), script, again)
