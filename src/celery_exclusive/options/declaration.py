"""The base of all options of a task: frozen values that are checked when they are made.

No Celery and no store here; only `__set_name__` knows that the owner of an option is a task class.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import fields
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NoReturn, cast, get_args
from weakref import WeakKeyDictionary

from typing_extensions import Self

from celery_exclusive.errors import OptionError, did_you_mean, shown
from celery_exclusive.options.amounts import MIN_TTL, is_duration, seconds_from

OnStoreError = Literal["raise", "allow"]

#: The apps of this process that `install` was called for, with a function that is called for each bound task.
apps_with_locks: WeakKeyDictionary[object, Callable[[Any, Any], None]] = WeakKeyDictionary()


class _NotGiven(Enum):
    NOT_GIVEN = "not given"

    def __repr__(self) -> str:
        return "<default>"


#: Stands for "no `skip_result` was given", since None is a result too.
NOT_GIVEN: Final = _NotGiven.NOT_GIVEN


class Declaration:
    """An option of a task, under the attribute of the task that its class names."""

    __slots__ = ()
    attribute: ClassVar[str]
    kind: ClassVar[str]
    """The first letter of its keys: "x" or "u"."""
    without_store: ClassVar[str]
    """The fate of a task if the store does not answer, in words."""
    names_by_default: ClassVar[tuple[str, ...] | None] = None
    whole_task: ClassVar[str]
    """How to have one key for a whole task, in words."""

    if TYPE_CHECKING:
        by: tuple[str, ...] | None
        key: str | Callable[..., str] | None
        ttl: float | None
        on_store_error: OnStoreError | None
        skip_result: object

    def _fill(self, by: object, more: tuple[object, ...], unknown: dict[str, Any], **values: Any) -> None:
        """Check the parameters that all options have, and set all of them."""
        known = [field.name for field in fields(cast("Any", self))]
        for name in unknown:
            self.refuse(
                f"there is no option {name!r} (there are {', '.join(known)}){did_you_mean(name, known)}"
            )
        if more:
            self.refuse(f"give several parameters as one tuple: {type(self).__name__}({(by, *more)!r}).")
        if by is not None and values["key"] is not None:
            self.refuse(
                "by= and key= are both given. Use by= within the task, key= to share a key between tasks."
            )
        self._check_key(values["key"])
        self._check_ttl("ttl", values["ttl"], "exclusive_ttl")
        self._check_on_store_error(values["on_store_error"])
        self._check_skip_result(values["skip_result"])
        for name, value in {"by": self._names(by), **values}.items():
            object.__setattr__(self, name, value)

    @property
    def names(self) -> tuple[str, ...] | None:
        """The parameters that make up the key, "*" for all of them; None: the whole task has one."""
        return self.names_by_default if self.by is None and self.key is None else self.by

    @property
    def values(self) -> dict[str, Any]:
        """The parameters without default value, except `by` and `key`; JSON can express them."""
        found = {field.name: getattr(self, field.name) for field in fields(cast("Any", self))[2:]}
        plain = type(self)()
        return {name: value for name, value in found.items() if value != getattr(plain, name)}

    def skipped(self, key: str, existing_id: str) -> object:
        """Return the result of a run that was skipped because the task `existing_id` held its key."""
        if self.skip_result is NOT_GIVEN:
            return {"skipped": {"key": key, "existing_id": existing_id}}
        return self.skip_result

    def replace(self, **changes: object) -> Self:
        """Return a copy with these parameters changed and checked: `option.replace(on_conflict="skip")`."""
        values = {field.name: getattr(self, field.name) for field in fields(cast("Any", self))}
        values.update(changes)
        return type(self)(**values)

    def __repr__(self) -> str:
        shown = [] if self.by is None else [repr(self.by[0] if len(self.by) == 1 else self.by)]
        for field in fields(cast("Any", self))[1:]:
            value = getattr(self, field.name)
            if value is not field.default and value != field.default:
                is_function = callable(value)  # its repr would show a memory address
                text = getattr(value, "__qualname__", type(value).__name__) if is_function else repr(value)
                shown.append(f"{field.name}={text}")
        return f"{type(self).__name__}({', '.join(shown)})"

    def __set_name__(self, owner: Any, name: str) -> None:
        """Let the task class check its declaration once it is bound to an app.

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
            try:
                check_declaration(cls, name, app)
            except OptionError:
                getattr(app, "_tasks", {}).pop(cls.name, None)  # else its next use would succeed
                raise

        owner.on_bound = classmethod(on_bound)

    @classmethod
    def refuse(cls, problem: str) -> NoReturn:
        raise OptionError(f"{cls.__name__}(): {problem}")

    @classmethod
    def _check_key(cls, key: object) -> None:
        if key is not None and not callable(key) and (not isinstance(key, str) or not key):
            cls.refuse(
                f"key={key!r} must be a template like 'repo:{{project_id}}', or a function returning a text."
            )

    @classmethod
    def _check_ttl(cls, name: str, ttl: object, setting: str) -> None:
        if ttl is not None and not is_duration(ttl, at_least=MIN_TTL):
            cls.refuse(f"{name}={shown(ttl)} must be {seconds_from(MIN_TTL)}, or None for {setting}.")

    @classmethod
    def _check_on_store_error(cls, on_store_error: object) -> None:
        if on_store_error is not None and on_store_error not in get_args(OnStoreError):
            hint = did_you_mean(str(on_store_error), get_args(OnStoreError))
            cls.refuse(
                f"on_store_error={on_store_error!r} is neither 'raise' ({cls.without_store}) nor 'allow' "
                f"(without a lease){hint}"
            )

    @classmethod
    def _check_skip_result(cls, skip_result: object) -> None:
        if skip_result is NOT_GIVEN:
            return
        try:
            json.dumps(skip_result)
        except (TypeError, ValueError, RecursionError) as error:
            raise OptionError(
                f"{cls.__name__}(): skip_result= must be a constant that JSON can express, not a "
                f"{type(skip_result).__name__} ({error}). Use None, a text, a number, or a list or dict of "
                "these."
            ) from error

    @classmethod
    def _names(cls, by: object) -> tuple[str, ...] | None:
        if by is None:
            return None
        given = list(cast("list[object]", by)) if isinstance(by, (tuple, list)) else [by]
        names = tuple(name for name in given if isinstance(name, str) and name.isidentifier())
        if given == ["*"]:
            return ("*",)
        if not names or len(names) < len(given):
            cls.refuse(
                f"by={by!r} must be a parameter of the task, several of them, or '*' (identical arguments). "
                f"{cls.whole_task}; an attribute of an argument goes into key='...{{a.b}}'."
            )
        if len(set(names)) < len(names):
            cls.refuse(f"by={by!r} names a parameter twice. Name each once.")
        return names


def check_declaration(cls: type, name: str, app: object) -> None:
    """Refuse an option under another name than its own, and one of an app without locks."""
    option = getattr(cls, name, None)
    if not isinstance(option, Declaration):
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
    warnings.warn(problem, stacklevel=2)
