"""The errors of this library. Each message names the task, the option or key, and the next step.

All of them carry plain texts only, so they survive pickling and every result backend.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ExclusiveError(Exception):
    """Base of every error that this library raises: `except ExclusiveError` catches them all."""


class OptionError(ExclusiveError, ValueError):
    """An option, a key or a setting is used wrongly. Raised as early as it shows; retrying does not help."""


class Conflict(ExclusiveError):
    """Somebody else has the key.

    Attributes:
        key: what is locked.
        holder: who has it: a task's id, or "lock:host:pid" of a `lock()`.
    """

    def __init__(self, text: str, key: str = "", holder: str = "") -> None:
        super().__init__(text, key, holder)
        self.key, self.holder = key, holder

    def __str__(self) -> str:
        return str(self.args[0])


class LockHeld(Conflict):
    """A lock was not to be had in the time that was given: it names who holds it, and for how long."""


class DuplicateTask(Conflict):
    """A call was not sent, since the same call is queued already, or runs.

    Attributes:
        existing_id: the id of the task that has the key.
    """

    @property
    def existing_id(self) -> str:
        return self.holder


class LeaseLost(ExclusiveError):
    """The lease ended while the body ran, and the key may have another holder: stop, write nothing more."""


class StoreUnavailable(ExclusiveError):
    """The store of the locks did not answer. Nothing is known about the lock; trying again is safe."""


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return the end of a sentence: ": did you mean 'skip'?", or "." if no choice resembles the word."""
    close = difflib.get_close_matches(word, list(choices), n=1)
    return f": did you mean {close[0]!r}?" if close else "."
