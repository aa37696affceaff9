"""The errors of this library. Each message names the task, the option or key, and the next step.

Their arguments are plain strings, so they survive pickling and every result backend. Each message is one
printable line, with any key and id in it.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata
from inspect import unwrap
from shlex import quote
from typing import Any

from celery_exclusive.display import escaped, printable

__all__ = [
    "Conflict",
    "DuplicateTask",
    "ExclusiveError",
    "LeaseLost",
    "LeaseUnconfirmed",
    "LockHeld",
    "NoLease",
    "NoOptions",
    "NotDone",
    "OptionError",
    "StoreError",
    "StoreRefused",
    "StoreUnavailable",
    "Superseded",
    "UnreadableKey",
]


FULL = "as many as max_waiting allows"
"""The words by which the error of a task that found its line full is known from its text in a backend."""


class ExclusiveError(Exception):
    """Base of every error that this library raises: `except ExclusiveError` catches them all."""

    interruption: Exception | None = None  # what a signal handler raised while a store was asked

    def __init__(self, text: str = "", *more: object) -> None:
        super().__init__(printable(text), *more)


class OptionError(ExclusiveError, ValueError):
    """An option, a key or a setting is wrong. Raised as early as possible; a retry does not help."""


class Conflict(ExclusiveError):
    """Another owner holds the key.

    Attributes:
        key: the key.
        holder: its owner: a task id, or "lock:host:pid" of a `lock()`.
    """

    def __init__(self, text: str, key: str = "", holder: str = "") -> None:
        super().__init__(text, key, holder)
        self.key, self.holder = key, holder

    def __str__(self) -> str:
        return str(self.args[0])


class LockHeld(Conflict):
    """A lock was not acquired in the given time. The message names the holder and the age of its lease.

    Attributes:
        reason: "held" by another owner; or without any, "rate", "paused", "hold" or "part": the key, or the
            part of the call, is at its rate, an operator or a run lets nothing start, or all slots of the
            part are taken.
        retry_after: the seconds until the key may open again. None: that is not known.
    """

    def __init__(
        self,
        text: str,
        key: str = "",
        holder: str = "",
        reason: str = "held",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(text, key, holder)
        self.reason, self.retry_after = reason, retry_after
        if reason != "held":
            self.args = (*self.args, reason, retry_after)


class DuplicateTask(Conflict):
    """A call was not published, or a step of a canvas did not run: another task holds its unique key.

    Attributes:
        existing_id: the id of that task.
    """

    @property
    def existing_id(self) -> str:
        return self.holder


class LeaseLost(ExclusiveError):
    """The lease ended while the body ran, and the key may have another holder: stop, write nothing more."""


class Superseded(LeaseLost):
    """A newer call waits for this run to end (`on_conflict="supersede"`): stop, and let it end the body.

    The task then ends as skipped. Its lease lasts until then, so the body may clean up first.
    """


class NoLease(ExclusiveError, AttributeError):
    """The run or the `lock()` object holds no lease. `getattr(task, "lease", None)` returns None then."""


class NoOptions(OptionError, AttributeError):
    """A task has no options, so it has no lock. `getattr(task, "lock_state", None)` returns None then."""


class StoreError(ExclusiveError):
    """The store has not executed a request."""


class StoreUnavailable(StoreError):
    """The store did not answer. The state of the lock is unknown; trying again is safe.

    A call is the exception if the error names a task that may have been sent: where broker and store are one
    Redis, and with order="published", the request without an answer also had the message.

    Attributes:
        task_id: the id of the task that may have been sent; None if nothing was sent.
        refusal: the error in Redis' own words, if it has answered with one.
    """

    task_id: str | None = None
    refusal: str = ""


class NotDone(StoreUnavailable):
    """The store has not executed any part of a request, since it could not be reached or has refused."""


class LeaseUnconfirmed(StoreUnavailable):
    """The store has executed a request, but fewer replicas have confirmed it than its URL asks for."""


def is_away(error: BaseException) -> bool:
    """Whether this error means that the store does not answer, so that nothing can be released now."""
    return isinstance(error, StoreUnavailable) and not isinstance(error, LeaseUnconfirmed)


class StoreRefused(StoreError):
    """The store cannot execute a request, and has changed nothing. A retry does not help.

    The id of the task or its message is too large for the store, or the data of the key are damaged. The task
    fails with this error, and does not wait as for a store that is away.
    """


class UnreadableKey(StoreRefused):
    """The data of a key are damaged in the store.

    Attributes:
        key: the damaged key.
        problem: the damage of its data, in words.
    """

    def __init__(self, key: str, problem: str, url: str) -> None:
        super().__init__(key, problem, url)
        self.key, self.problem, self.url = key, problem, url

    def __str__(self) -> str:
        return printable(
            f"store {self.url}: the data of lock {self.key} are damaged ({self.problem}). Repair them, or "
            "delete them and the tasks that wait in line: celery -A proj locks release --force --reason "
            f"'damaged data' -- {quote(escaped(self.key))}"
        )


def keeps_no_room(url: str, needed_by: str) -> OptionError:
    """Return the error of a store without lines, where a rate, a hold or a part is needed."""
    return OptionError(
        f"exclusive_store: {url} keeps no rates, costs, parts, holds and limits of operators, and "
        f"{needed_by} needs one: name a redis://, postgresql:// or sqlite:// URL"
    )


def shown(value: object) -> str:
    """Return the repr of a wrong value, shortened for a message."""
    try:
        text = repr(value)
    except ValueError:  # Python may refuse to write an int of many digits
        return f"<{type(value).__name__} of many digits>"
    return text if len(text) <= 80 else f"{text[:79]}…"


@cache
def docs_page(name: str) -> str:
    """Return the address of a page of the documentation: `docs_page("how-to/deploy")`.

    It is a URL if the installed package names the site as its `Documentation`, else a path in the repository.
    """
    urls: list[str] = []
    with suppress(PackageNotFoundError):  # as in a frozen app, whose packages are not installed
        urls = metadata("celery-exclusive").get_all("Project-URL") or []
    named = dict(url.split(", ", 1) for url in urls)
    site = named.get("Documentation")
    return f"{site.rstrip('/')}/{name}.html" if site else f"docs/{name}.md"


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return a hint that ends a sentence: ": did you mean 'skip'?", or "." if no choice is similar."""
    close = closest(word, choices)
    return f": did you mean {close!r}?" if close else "."


def closest(word: str, choices: Iterable[str], likeness: float = 0.6) -> str | None:
    """Return the most similar choice, if it is similar enough. 1 accepts only the same word."""
    return next(iter(difflib.get_close_matches(word, list(choices), n=1, cutoff=likeness)), None)


def warn_of_task(text: str, body: Callable[..., Any] | None, category: type[Warning] = UserWarning) -> None:
    """Warn at the line of a task's body: Celery binds tasks later, perhaps without the user on the stack."""
    if code := getattr(body and unwrap(body), "__code__", None):
        module = getattr(body, "__module__", None)  # which filters name
        warnings.warn_explicit(text, category, code.co_filename, code.co_firstlineno, module)
    else:
        warnings.warn(text, category, stacklevel=3)
