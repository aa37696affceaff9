"""`Singleton`, `DuplicateTaskError` and `clear_locks` of celery-singleton."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar

from celery_exclusive.compat.changed import report
from celery_exclusive.compat.recipe_task import RecipeDuplicate, RecipeTask
from celery_exclusive.errors import OptionError
from celery_exclusive.leases.operator_release import queued_keys, release_queued
from celery_exclusive.options.declared import Unique

if TYPE_CHECKING:
    from typing_extensions import Self

    from celery_exclusive.errors import DuplicateTask
    from celery_exclusive.services import Services

_OPTIONS = ("unique_on", "raise_on_duplicate", "lock_expiry")


class DuplicateTaskError(RecipeDuplicate):
    """A call was not published, since the same call is queued or runs.

    Attributes:
        task_id: the task that holds the key.
    """

    def __init__(self, message: str, task_id: str, key: str = "", remaining: float = 0) -> None:
        super().__init__(message, key, task_id, remaining)
        self.task_id = task_id
        self.args = (message, task_id, key, remaining)

    @classmethod
    def of(cls, duplicate: DuplicateTask, remaining: float) -> Self:
        return cls(str(duplicate), duplicate.holder, duplicate.key, remaining)


class Singleton(RecipeTask):
    """A base of tasks that are not queued twice: a duplicate returns the AsyncResult of the queued task.

    Example:
        @app.task(base=Singleton, unique_on=["user_id"], lock_expiry=3600)
        def send_digest(user_id, *, force=False): ...

    Attributes:
        unique_on: the parameter or parameters that make up the key. Default None: all; `[]`: the whole task.
        raise_on_duplicate: whether a duplicate raises `DuplicateTaskError`. Default None: the setting
            `singleton_raise_on_duplicate`, else False.
        lock_expiry: seconds after which the key of a lost message expires. Default None: the setting
            `singleton_lock_expiry`, else `exclusive_queued_ttl`.

    Raises:
        OptionError: an attribute is misspelt, or `unique_on` names no parameter, when the task is declared.

    What changes: `lock_expiry` ends no key of a body that runs, and without it no key is held for ever. The
    other settings `singleton_*` are not used: the store is `exclusive_store`.
    """

    abstract = True
    unique_on: ClassVar[str | list[str] | tuple[str, ...] | None] = None
    raise_on_duplicate: ClassVar[bool | None] = None
    lock_expiry: ClassVar[float | None] = None
    duplicate_error = DuplicateTaskError
    not_called: ClassVar[Mapping[str, str]] = {
        "generate_lock": "write unique=Unique(key=...), with a function of the arguments",
        "on_duplicate": "look at the outcome of the call",
        "singleton_backend": "the store is exclusive_store",
    }

    @classmethod
    def new_option(cls, app: Any) -> tuple[Unique, str]:
        for name in vars(cls).keys() - {*_OPTIONS, "unique"}:
            if close := get_close_matches(name, _OPTIONS, n=1, cutoff=0.85):
                raise OptionError(f"task {cls.name}: there is no option {name!r}: did you mean {close[0]!r}?")
        raises, expiry = cls.raise_on_duplicate, cls.lock_expiry
        raises = app.conf.get("singleton_raise_on_duplicate") if raises is None else raises
        names = [cls.unique_on] if isinstance(cls.unique_on, str) else cls.unique_on
        names = names if names is None else [name for name in names if name]
        return Unique(
            tuple(names) if names else None,
            key=cls.name if names == [] else None,
            on_conflict="raise" if raises else "skip",
            queued_ttl=app.conf.get("singleton_lock_expiry") if expiry is None else expiry,
        ), "lock_expiry ends no key of a body that runs, whose lease is renewed, and none is held for ever"

    def release_lock(  # type: ignore[override]
        self,
        task_args: Any = None,
        task_kwargs: Any = None,
        *,
        force: bool = False,
        headers: Mapping[str, Any] | None = None,
    ) -> None:
        """Release the key of a call whose message is lost.

        Raises:
            LockHeld: a running task holds it, without `force`; nothing was changed.
            StoreUnavailable: the store does not answer.
        """
        kwargs = task_kwargs or {} if headers is None else {**(task_kwargs or {}), "headers": headers}
        super().release_lock(*(task_args or ()), force=force, **kwargs)


def clear_locks(app: Any) -> None:
    """Release the keys of all `Singleton` tasks whose messages have not begun, as after `celery purge`.

    A message that is still in a queue runs all the same, and the same call may be queued again beside it.

    Raises:
        ExclusiveError: the store cannot list its keys, or does not answer.
    """
    services: Services = app._celery_exclusive
    names = [name for name, task in app.tasks.items() if isinstance(task, Singleton)]
    released = sum(release_queued(services, queued_keys(services.store, name)) for name in names)
    report(
        __name__,
        f"clear_locks({app!r}) has released {released} keys, of tasks that have not begun. A dead worker's "
        "leases expire after their ttl: call it after `celery purge`, not when a worker starts",
    )
