"""A command for the node of one bucket, and its answer or error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from redis import exceptions

from celery_exclusive.stores.redis.client import Repeated
from celery_exclusive.stores.redis.scripts import Script
from celery_exclusive.stores.redis.start_nodes import Place
from celery_exclusive.stores.redis.witness import Witness

PASSING = (
    exceptions.AskError,  # MOVED, too
    exceptions.TryAgainError,
    exceptions.ClusterDownError,
    exceptions.ReadOnlyError,
    exceptions.MasterDownError,
    exceptions.BusyLoadingError,
)
"""Refusals of a node that has done nothing: it, or another one, may do it soon."""


@dataclass(slots=True)
class Call:
    """A command for one bucket, and its answer.

    * `again`: arguments that are appended if the command is sent again after its answer was lost.
    * `place`: the node that was asked last.
    * `is_open`: the command has to be sent; `error` is then the reason to send it again. Without it `error`
      is the refusal of the node.
    * `told`: the command is the statement of this witness; the set has the buckets whose witnesses were
      heard.
    """

    bucket: int
    command: tuple[object, ...]
    script: Script | None = None
    again: tuple[object, ...] = ()
    place: Place | None = None
    answer: Any = None
    error: Exception | None = None
    is_open: bool = True
    is_repeated: bool = False
    told: tuple[Witness, set[int]] | None = None

    @property
    def is_sent_on(self) -> bool:
        """Whether the answer says how, or to which node, to send it."""
        return isinstance(self.error, (exceptions.MovedError, exceptions.NoScriptError))

    def note(self, answer: Any) -> None:
        """Note the answer of a node, which may be an error."""
        if isinstance(answer, exceptions.NoScriptError) and self.script:
            self.command = ("EVAL", self.script.text, *self.command[2:])
        self.error = answer if isinstance(answer, Exception) else None
        self.is_open = isinstance(answer, (exceptions.NoScriptError, *PASSING))
        self.answer = Repeated(answer) if self.is_repeated and isinstance(answer, list) else answer

    def note_lost(self, error: Exception) -> None:
        """Note that the node may have executed it, and has not answered."""
        self.error = error
        if not self.is_repeated:
            self.command += self.again
        self.is_repeated = True


def script_call(
    bucket: int,
    script: Script,
    base: str,
    arguments: tuple[object, ...],
    again: tuple[object, ...] = (),
) -> Call:
    """Return the call of a script: by its name, as long as the node knows it."""
    return Call(bucket, ("EVALSHA", script.name, "1", base, *arguments), script, again)
