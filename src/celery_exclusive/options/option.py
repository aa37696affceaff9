"""The base of all options of a task: frozen values that are checked when they are made.

It knows neither Celery nor stores, but in `__set_name__` and `look_for_options`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import KW_ONLY, MISSING, dataclass, fields, replace
from enum import Enum
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NoReturn, TypeVar, cast, get_args
from weakref import WeakKeyDictionary

from celery.signals import worker_init

from celery_exclusive.errors import OptionError, did_you_mean, shown, warn_of_task
from celery_exclusive.options.amounts import Time, is_duration, seconds, seconds_from
from celery_exclusive.options.hints import unknown_option
from celery_exclusive.seams.celery_app import known_tasks

if TYPE_CHECKING:
    from typing_extensions import Never, Self

OnStoreError = Literal["raise", "allow"]
ALL: Final = ("*",)
"""The names that stand for all arguments."""
Names = str | tuple[str, ...] | list[str] | None

T = TypeVar("T", bound="Option")

#: The apps of this process that `install` was called for, with a function that is called for each bound task.
apps_with_locks: WeakKeyDictionary[object, Callable[[Any, Any], None]] = WeakKeyDictionary()


class _NotGiven(Enum):
    NOT_GIVEN = "not given"

    def __repr__(self) -> str:
        return "<default>"


#: Stands for "no `skip_result` was given", since None is a result too.
NOT_GIVEN: Final = _NotGiven.NOT_GIVEN


@dataclass(frozen=True, slots=True, repr=False)
class Option:
    """An option of a task, under the attribute of the task that its class names."""

    attribute: ClassVar[str]
    kind: ClassVar[str]
    """The first letter of its keys: "x", "u" or "d"."""
    without_store: ClassVar[str]
    """The sentence of a task whose store does not answer."""
    names_by_default: ClassVar[tuple[str, ...] | None] = None
    whole_task: ClassVar[str]
    """The code that gives a whole task one key."""
    elsewhere: ClassVar[dict[str, str]] = {}
    """Parameters that it does not have, and for each one what to write instead."""

    by: Names = None
    _: KW_ONLY
    key: str | Callable[..., str] | None = None
    ttl: Time | None = None
    on_store_error: OnStoreError | None = None
    recover: bool | None = None
    skip_result: object = NOT_GIVEN

    def __post_init__(self) -> None:
        self._check_own()
        if self.by is not None and self.key is not None:
            self.refuse(
                "by= and key= are both given. Use by= within the task, key= to share a key between tasks."
            )
        self._check_key()
        self._require_time("ttl", f"{seconds_from()}, or None for exclusive_ttl")
        self._require("recover", is_switch, "True or False, or None for exclusive_recover")
        self._check_choice(
            "on_store_error",
            (None, *get_args(OnStoreError)),
            f"is neither 'raise' ({self.without_store}) nor 'allow' (without a lease)",
        )
        self._check_skip_result()
        object.__setattr__(self, "by", self._names())

    @property
    def names(self) -> tuple[str, ...] | None:
        """The parameters that make up the key, "*" for all of them. None: the whole task has one key."""
        by: Any = self.by
        return self.names_by_default if by is None and self.key is None else by

    @property
    def values(self) -> dict[str, Any]:
        """The parameters without default value, except `by`, `key` and functions; JSON can express them."""
        found = ((field, getattr(self, field.name)) for field in fields(self)[2:])
        return {it.name: value for it, value in found if value != it.default and not callable(value)}

    @property
    def functions(self) -> dict[str, Any]:
        found = {field.name: getattr(self, field.name) for field in fields(self)[2:]}
        return {"key": self.key} | {name: value for name, value in found.items() if callable(value)}

    def skipped(self, key: str, existing_id: str) -> object:
        """Return the result of a run that was skipped because the task `existing_id` held its key."""
        if self.skip_result is NOT_GIVEN:
            return {"skipped": {"key": key, "existing_id": existing_id}}
        return self.skip_result

    @property
    def may_skip(self) -> bool:
        """Whether a task may end with SUCCESS without its body."""
        raise NotImplementedError

    @property
    def hands_on_a_skip(self) -> bool:
        """Whether the next step of a skipped task gets a result that its author has not chosen."""
        return self.may_skip and self.skip_result is NOT_GIVEN

    @classmethod
    def of(cls, **parameters: Any) -> Self:
        return cls(**parameters)

    def replace(self, **changes: object) -> Self:
        """Return a copy with these parameters changed and checked: `option.replace(on_conflict="skip")`."""
        changed: Self = replace(cast("Any", self), **changes)
        return changed

    def __call__(self, _: Never, /) -> NoReturn:
        """Refuse to be a decorator."""
        self.refuse(f"it is no decorator. Write @app.task({self.attribute}={self!r}).")

    def __repr__(self) -> str:
        names = self.by or ()
        shown = [repr(names[0] if len(names) == 1 else names)] if names else []
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if value != field.default or type(value) is not type(field.default):
                is_function = callable(value)  # its repr would show a memory address
                is_function &= not isinstance(value, Option)
                text = getattr(value, "__qualname__", type(value).__name__) if is_function else repr(value)
                shown.append(f"{field.name}={text}")
        return f"{type(self).__name__}({', '.join(shown)})"

    def __set_name__(self, owner: Any, name: str) -> None:
        """Let the task class check its declaration once it is bound to an app.

        Every way of making a task makes a class with the option in it. Before Python 3.12 an error raised
        here would reach the user in a RuntimeError, and the app is not known before Celery calls `on_bound`.
        """
        if not hasattr(owner, "on_bound"):
            return
        own: Any = owner.__dict__.get("on_bound")

        def on_bound(cls: Any, app: object) -> None:
            inherited = own.__get__(None, cls) if own else cast("Any", super(owner, cls)).on_bound
            inherited(app)
            try:
                check_declaration(cls, name, app)
            except OptionError:
                known_tasks(app).pop(cls.name, None)  # else its next use would succeed
                raise

        owner.on_bound = classmethod(on_bound)

    @classmethod
    def refuse(cls, problem: str) -> NoReturn:
        raise OptionError(f"{cls.__name__}(): {problem}")

    def _check_own(self) -> None:
        raise NotImplementedError

    def _check_key(self) -> None:
        key: object = self.key
        if key is not None and not callable(key) and (not isinstance(key, str) or not key):
            self.refuse(
                f"key={key!r} must be a template like 'repo:{{project_id}}', or a function that returns a "
                "string."
            )

    def _require(
        self, name: str, is_good: Callable[[object], bool], expected: str, *, is_optional: bool = True
    ) -> None:
        value = getattr(self, name)
        if not (is_good(value) or (is_optional and value is None)):
            self.refuse(f"{name}={shown(value)} must be {expected}.")

    def _require_time(self, name: str, expected: str, *, is_optional: bool = True) -> None:
        self._keep_seconds(name)
        self._require(name, is_duration, expected, is_optional=is_optional)

    def _keep_seconds(self, name: str) -> None:
        object.__setattr__(self, name, seconds(getattr(self, name)))

    def _check_choice(self, name: str, choices: tuple[str | None, ...], problem: str) -> None:
        value = getattr(self, name)
        if value not in choices:
            hint = did_you_mean(str(value), filter(None, choices))
            self.refuse(f"{name}={value!r} {problem}{hint}")

    def _check_skip_result(self) -> None:
        if self.skip_result is NOT_GIVEN:
            return
        try:
            json.dumps(self.skip_result)
        except (TypeError, ValueError, RecursionError) as error:
            raise OptionError(
                f"{type(self).__name__}(): skip_result= must be a constant that JSON can express, not a "
                f"{type(self.skip_result).__name__} ({error}). Use None, a string, a number, or a list or "
                "dict of these."
            ) from error

    def _names(self) -> tuple[str, ...] | None:
        if self.by is None:
            return None
        if callable(self.by):
            self.refuse(
                f"by= is a function. To declare a task write @app.task({self.attribute}={type(self).__name__}"
                "(...)); a function that makes the key of a call is key=."
            )
        given: list[object] = [*self.by] if isinstance(self.by, (tuple, list)) else [self.by]
        names = tuple(name for name in given if isinstance(name, str) and name.isidentifier())
        if given == ["*"]:
            return ALL
        if not names or len(names) < len(given):
            self.refuse(
                f"by={self.by!r} must be a parameter of the task, several of them, or '*' (identical "
                f"arguments). {self.whole_task}; an attribute of an argument goes into key='...{{a.b}}'."
            )
        if len(set(names)) < len(names):
            self.refuse(f"by={self.by!r} names a parameter twice. Name each once.")
        return names


def is_switch(value: object) -> bool:
    return isinstance(value, bool)


def explain_wrong_arguments(cls: type[T]) -> type[T]:
    """Let the constructor of an option suggest the right word, where Python would raise a TypeError."""
    init: Any = cls.__init__
    known = [field.name for field in fields(cls)]
    required = [field.name for field in fields(cls) if field.default is MISSING]

    @wraps(init)
    def checked(self: T, by: object = None, *more: object, **options: object) -> None:
        for name, value in options.items():
            if name not in known or (name in cls.elsewhere and value is not None):
                own = [name for name in known if name not in cls.elsewhere]
                self.refuse(unknown_option(name, own, cls.elsewhere))
        if missing := [f"{name}=..." for name in required if name not in options]:
            self.refuse(f"{' and '.join(missing)} must be given by name.")
        if more:
            self.refuse(f"give several parameters as one tuple: {cls.__name__}({(by, *more)!r}).")
        init(self, by, **options)

    cls.__init__ = checked  # type: ignore[method-assign, assignment]
    return cls


def check_declaration(cls: type, name: str, app: object) -> None:
    """Refuse an option under another name than its own, or in an app without `install`."""
    option = getattr(cls, name, None)
    if not isinstance(option, Option):
        return  # switched off in this subclass
    task_name = getattr(cls, "name", None) or f"{cls.__module__}.{cls.__qualname__}"
    if name != option.attribute:
        raise OptionError(
            f"task {task_name!r} has option '{name}={type(option).__name__}(...)': "
            f"did you mean '{option.attribute}='?"
        )
    if app in apps_with_locks:
        apps_with_locks[app](app, cls)
        return
    problem = (
        f"task {task_name!r} declares {name}=... but the app {app!r} has no locks: "
        "call celery_exclusive.install(app) right after you make the app."
    )
    if not apps_with_locks:
        raise OptionError(problem)
    # Celery copies tasks into every app of the process, also into one that will never run them.
    warn_of_task(problem, getattr(cls, "run", None))


@worker_init.connect(weak=False)
def look_for_options(sender: Any, **_: object) -> None:
    """Let a worker whose app has no locks look for tasks with options: of other apps, or by annotations."""
    if sender.app not in apps_with_locks:
        sender.app.steps["worker"].add("celery_exclusive.worker.without_locks:WithoutLocks")
