"""The errors of this library. Each message names the task, the option or key, and the next step.

All of them carry plain texts only, so they survive pickling and every result backend. The texts are one line
that a terminal prints, whatever keys and ids are in them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from celery_exclusive.display import printable


class ExclusiveError(Exception):
    """Base of every error that this library raises: `except ExclusiveError` catches them all."""

    def __init__(self, text: str = "", *more: object) -> None:
        super().__init__(printable(text), *more)


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


class NoLease(ExclusiveError, AttributeError):
    """Code asks for a lease that its run does not have. `getattr(task, "lease", None)` is None then."""


class StoreUnavailable(ExclusiveError):
    """The store of the locks did not answer. Nothing is known about the lock; trying again is safe."""


class UnreadableKey(StoreUnavailable):
    """What the store has of this key is damaged: until it is mended or dropped, trying again does not help.

    Attributes:
        key: whose data cannot be read.
        problem: what is wrong with them.
    """

    def __init__(self, key: str, problem: str, url: str) -> None:
        super().__init__(key, problem, url)
        self.key, self.problem, self.url = key, problem, url

    def __str__(self) -> str:
        return printable(
            f"store {self.url}: the data of lock {self.key} are damaged ({self.problem}). Mend them, or drop "
            f"them, with the tasks that wait there: celery -A proj locks release '{self.key}' --force"
        )


def shown(value: object) -> str:
    """Return the repr of a wrong value, short enough for a message."""
    try:
        text = repr(value)
    except ValueError:  # Python may refuse to write an int of many digits
        return f"<{type(value).__name__} of many digits>"
    return text if len(text) <= 80 else f"{text[:79]}…"


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return the end of a sentence: ": did you mean 'skip'?", or "." if no choice resembles the word."""
    close = difflib.get_close_matches(word, list(choices), n=1)
    return f": did you mean {close[0]!r}?" if close else "."
