"""What a task declares: immutable values that are checked as soon as they are written down.

No Celery and no store here; only `__set_name__` knows that the owner of an option is a task class.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum
from functools import lru_cache
from string import Formatter
from typing import Any, Final, Literal, NoReturn, TypeGuard, cast, get_args
from weakref import WeakKeyDictionary

from celery_exclusive.errors import OptionError, did_you_mean

OnConflict = Literal["wait", "skip", "raise", "reschedule"]
OnFull = Literal["raise", "skip"]
OnStoreError = Literal["raise", "allow"]

#: Seconds. A shorter lease would be renewed more often than a store can be asked.
MIN_TTL: Final = 0.1

#: The apps of this process that `install` was called for, with what is to be done when a task class is bound.
apps_with_locks: WeakKeyDictionary[object, Callable[[Any, Any], None]] = WeakKeyDictionary()


class _NotGiven(Enum):
    NOT_GIVEN = "not given"

    def __repr__(self) -> str:
        return "<default>"


#: Stands for "no `skip_result` was given", since None is a result too.
NOT_GIVEN: Final = _NotGiven.NOT_GIVEN


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Exclusive:
    """Let a task run only so many times at once: once per key, or `limit` times.

    The lease is taken on the worker, before the body, and renewed while the body runs.

        @app.task(exclusive=Exclusive())                            # one at a time, the others wait in line
        def rebuild_index(): ...

        @app.task(exclusive=Exclusive("feed_url", on_conflict="skip"))   # one per feed
        def import_feed(feed_url, *, full=False): ...

        @app.task(exclusive=Exclusive(key="repo:{project_id}"))     # shared with other tasks
        def sync(project_id): ...

    Parameters:
        by: the parameter or parameters of the task that make up the key, or "*" for identical arguments.
            Default None: the whole task, whatever its arguments. Kept as a tuple of names.
        key: an absolute key instead of `by`, shared by all tasks that give the same text: a template over the
            arguments ("repo:{project_id}", "repo:{project.pk}"), or a function that is called like the task
            and returns the text.
        limit: how many may run at once per key, an int from 1. Default 1.
        ttl: seconds without heartbeat before the lease of a dead worker is free again, from 0.1. It does not
            limit the run time. Default None: the setting `exclusive_ttl` (30 s).
        on_conflict: what a task does that finds its key taken. Default "wait": in line and in order, without
            using a worker slot. "skip": it ends with SUCCESS, without its body. "raise": it fails with
            `LockHeld`, and so do the chain and the chord it is in. "reschedule": its message is sent again
            with a delay that grows from 1 s to 60 s, in no order, and at its end it starts over; nobody waits
            in line.
        give_up_after: with on_conflict="reschedule", after how many seconds since its first try it fails with
            `LockHeld` instead, by the clocks of the workers. Default None: never.
        max_waiting: how many may wait in line per key, an int from 1. Retries and messages that the broker
            delivers again count, but are never refused. Default None: the setting `exclusive_max_waiting`
            (any number).
        on_full: what a task does that finds so many in line. Default "raise": it fails with `LockHeld`, and
            so do the chain and the chord it is in. "skip": it ends with SUCCESS, without its body.
        on_store_error: what a task does for which the store has not answered for `exclusive_store_wait`
            seconds. "raise": its message goes back to the broker, and comes again later. "allow": its body
            runs without a lease, maybe beside another; log and event tell. Default None: the setting
            `exclusive_on_store_error` ("raise").
        skip_result: the result of a skipped run, any constant that JSON can express (None too).
            Default: `{"skipped": {"key": ..., "existing_id": ...}}`.

    Raises:
        OptionError: at once if a value or a name is wrong; when the task is registered if the attribute is
            not called `exclusive`, the app was not installed, or a name is no parameter of the task.

    In a subclass `exclusive=None` switches it off. If a worker dies, its lease ends after `ttl`; while the
    store is down, tasks wait and none is lost. A store that has lost its data is told the leases of the
    bodies that run, and of those who waited in line, only what the broker kept runs.
    """

    by: tuple[str, ...] | None = None
    key: str | Callable[..., str] | None = None
    limit: int = 1
    ttl: float | None = None
    on_conflict: OnConflict = "wait"
    give_up_after: float | None = None
    max_waiting: int | None = None
    on_full: OnFull = "raise"
    on_store_error: OnStoreError | None = None
    skip_result: object = NOT_GIVEN

    def __init__(  # noqa: PLR0913 - each an option
        self,
        by: str | tuple[str, ...] | list[str] | None = None,
        *more: NoReturn,
        key: str | Callable[..., str] | None = None,
        limit: int = 1,
        ttl: float | None = None,
        on_conflict: OnConflict = "wait",
        give_up_after: float | None = None,
        max_waiting: int | None = None,
        on_full: OnFull = "raise",
        on_store_error: OnStoreError | None = None,
        skip_result: object = NOT_GIVEN,
        **unknown: NoReturn,  # caught here to name the word that was meant; a type checker accepts none
    ) -> None:
        known = [field.name for field in fields(self)]
        for name in unknown:
            _refuse(f"there is no option {name!r} (there are {', '.join(known)}){did_you_mean(name, known)}")
        if more:
            _refuse(f"give several parameters as one tuple: Exclusive({(by, *more)!r}).")
        if by is not None and key is not None:
            _refuse(
                "by= and key= are both given. Use by= within the task, key= to share a lock between tasks."
            )
        _check_key(key)
        _check_limit(limit)
        _check_ttl(ttl)
        _check_on_conflict(on_conflict, give_up_after)
        _check_full(on_conflict, max_waiting, on_full)
        _check_on_store_error(on_store_error)
        _check_skip_result(skip_result)
        conflict = (on_conflict, give_up_after, max_waiting, on_full, on_store_error, skip_result)
        for name, value in zip(known, (_names(by), key, limit, ttl, *conflict), strict=True):
            object.__setattr__(self, name, value)

    def skipped(self, key: str, existing_id: str) -> object:
        """Return the result of a run that was skipped because this task id had its key."""
        if self.skip_result is NOT_GIVEN:
            return {"skipped": {"key": key, "existing_id": existing_id}}
        return self.skip_result

    def replace(self, **changes: object) -> Exclusive:
        """Return a copy with these parameters changed and checked: `option.replace(on_conflict="skip")`."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        values.update(changes)
        return type(self)(**values)

    def __repr__(self) -> str:
        shown = [] if self.by is None else [repr(self.by[0] if len(self.by) == 1 else self.by)]
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if value is not field.default and value != field.default:
                is_function = callable(value)  # its repr would show a memory address
                text = getattr(value, "__qualname__", type(value).__name__) if is_function else repr(value)
                shown.append(f"{field.name}={text}")
        return f"{type(self).__name__}({', '.join(shown)})"

    def __set_name__(self, owner: Any, name: str) -> None:
        """Have the task class check its declaration once it is bound to an app.

        Python calls this for every way of making a task, since each makes a class with the option in it. An
        error raised right here would reach the user wrapped in a RuntimeError (before Python 3.12), and the
        app is not known yet; `on_bound` is what Celery calls as soon as it is.
        """
        if not hasattr(owner, "on_bound"):
            return
        own: Any = owner.__dict__.get("on_bound")

        def on_bound(cls: Any, app: object) -> None:
            inherited = own.__get__(None, cls) if own else cast("Any", super(owner, cls)).on_bound
            inherited(app)
            check_declaration(cls, name, app)

        owner.on_bound = classmethod(on_bound)


@lru_cache(maxsize=1024)
def parse_template(template: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Split "repo:{project.pk}" into pairs of text and the dotted name behind it, or raise ValueError."""
    fix = "put names of parameters into braces, as in 'repo:{project_id}' or 'repo:{project.pk}'"
    try:
        parsed = [
            (text, name, spec or conversion) for text, name, spec, conversion in Formatter().parse(template)
        ]
    except ValueError as error:
        raise ValueError(f"key={template!r} is no template ({error}): {fix}.") from error
    pairs = [(text, () if name is None else tuple(name.split(".")), extra) for text, name, extra in parsed]
    if any(extra or not all(step.isidentifier() for step in path) for _, path, extra in pairs):
        raise ValueError(f"key={template!r} has braces without a name, or with more than a name: {fix}.")
    return tuple((text, path) for text, path, _ in pairs)


def is_number(value: object, at_least: float) -> TypeGuard[float]:
    """Tell whether the value is a finite int or float, no bool, and not below `at_least`."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and at_least <= value < math.inf


def is_count(value: object) -> TypeGuard[int]:
    """Tell whether the value is an int from 1, no bool."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _refuse(problem: str) -> NoReturn:
    raise OptionError(f"Exclusive(): {problem}")


def _check_key(key: object) -> None:
    if key is not None and not callable(key) and (not isinstance(key, str) or not key):
        _refuse(f"key={key!r} must be a template like 'repo:{{project_id}}', or a function returning a text.")


def _check_limit(limit: object) -> None:
    if not is_count(limit):
        _refuse(f"limit={limit!r} must be a whole number from 1: how many may run at once.")


def _check_ttl(ttl: object) -> None:
    if ttl is not None and not is_number(ttl, at_least=MIN_TTL):
        _refuse(f"ttl={ttl!r} must be a number of seconds from {MIN_TTL}, or None for exclusive_ttl.")


def _check_on_conflict(on_conflict: object, give_up_after: object) -> None:
    if on_conflict not in get_args(OnConflict):
        hint = did_you_mean(str(on_conflict), get_args(OnConflict))
        _refuse(
            f"on_conflict={on_conflict!r} is none of 'wait' (in line), 'skip' (without a run), 'raise' "
            f"(LockHeld) and 'reschedule' (again later){hint}"
        )
    if give_up_after is not None and on_conflict != "reschedule":
        _refuse(
            f"give_up_after={give_up_after!r} is for on_conflict='reschedule'. Leave it out, or say for how "
            "many may wait in line by max_waiting=."
        )
    if give_up_after is not None and (not is_number(give_up_after, at_least=0) or give_up_after == 0):
        _refuse(f"give_up_after={give_up_after!r} must be a number of seconds above 0, or None for never.")


def _check_full(on_conflict: object, max_waiting: object, on_full: object) -> None:
    if on_full not in get_args(OnFull):
        hint = did_you_mean(str(on_full), get_args(OnFull))
        _refuse(f"on_full={on_full!r} is neither 'raise' (LockHeld) nor 'skip' (without a run){hint}")
    if max_waiting is not None and not is_count(max_waiting):
        hint = "on_conflict='skip' if nobody may" if max_waiting == 0 else "None for exclusive_max_waiting"
        _refuse(f"max_waiting={max_waiting!r} must be a whole number from 1: how many may wait. Use {hint}.")
    if on_conflict != "wait" and (max_waiting is not None or on_full == "skip"):
        option = "on_full='skip'" if max_waiting is None else f"max_waiting={max_waiting!r}"
        _refuse(
            f"{option} is for on_conflict='wait': with {on_conflict!r} there is no line. Leave one of them "
            "out."
        )


def _check_on_store_error(on_store_error: object) -> None:
    if on_store_error is not None and on_store_error not in get_args(OnStoreError):
        hint = did_you_mean(str(on_store_error), get_args(OnStoreError))
        _refuse(
            f"on_store_error={on_store_error!r} is neither 'raise' (back to the broker) nor 'allow' (a run "
            f"without a lease){hint}"
        )


def _check_skip_result(skip_result: object) -> None:
    if skip_result is NOT_GIVEN:
        return
    try:
        json.dumps(skip_result)
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(
            "Exclusive(): skip_result= must be a constant that JSON can express, not a "
            f"{type(skip_result).__name__} ({error}). Use None, a text, a number, or a list or dict of these."
        ) from error


def _names(by: object) -> tuple[str, ...] | None:
    if by is None:
        return None
    given = list(cast("list[object]", by)) if isinstance(by, (tuple, list)) else [by]
    names = tuple(name for name in given if isinstance(name, str) and name.isidentifier())
    if given == ["*"]:
        return ("*",)
    if not names or len(names) < len(given):
        _refuse(
            f"by={by!r} must be a parameter of the task, several of them, or '*' (identical arguments). "
            "Leave it out for the whole task; an attribute of an argument goes into key='...{a.b}'."
        )
    if len(set(names)) < len(names):
        _refuse(f"by={by!r} names a parameter twice. Name each once.")
    return names


def check_declaration(cls: type, name: str, app: object) -> None:
    """Refuse an option with another name than `exclusive`, and one of an app without locks."""
    if not isinstance(getattr(cls, name, None), Exclusive):
        return  # switched off in this subclass
    task_name = getattr(cls, "name", None) or f"{cls.__module__}.{cls.__qualname__}"
    if name != "exclusive":
        raise OptionError(
            f"task {task_name!r} has option '{name}=Exclusive(...)': did you mean 'exclusive='?"
        )
    if app in apps_with_locks:
        apps_with_locks[app](app, cls)
        return
    problem = (
        f"task {task_name!r} declares exclusive=... but the app {app!r} has no locks: "
        "call celery_exclusive.install(app) right after you make the app."
    )
    if not apps_with_locks:
        raise OptionError(problem)
    # Celery copies tasks into every app of the process, also into one that will never run them.
    warnings.warn(problem, stacklevel=2)
