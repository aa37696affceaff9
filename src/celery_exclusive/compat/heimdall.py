"""`HeimdallTask` and `AlreadyQueuedError` of celery-heimdall: `heimdall={"unique": True, ...}`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

from celery_exclusive.compat.recipe_task import RecipeDuplicate, RecipeTask, check_names
from celery_exclusive.errors import OptionError
from celery_exclusive.options.declared import Unique

if TYPE_CHECKING:
    from typing_extensions import Self

    from celery_exclusive.errors import DuplicateTask

_OPTIONS = ("unique", "key", "unique_timeout", "unique_raises", "unique_wait_for_expiry")
_NOT_USED = ("unique_lock_timeout", "unique_lock_blocking", "lock_prefix")
_RATES = ("times", "per", "rate_limit", "rate_limit_prefix")
_ONE_HOUR = 3600


class AlreadyQueuedError(RecipeDuplicate):
    """A call was not published, since the same call is queued or runs.

    Attributes:
        likely_culprit: the task that holds the key.
        expires_in: seconds until the key expires if its lease is not renewed.
    """

    def __init__(
        self,
        expires_in: float | None = None,
        likely_culprit: str | None = None,
        text: str = "",
        key: str = "",
    ) -> None:
        super().__init__(text, key, likely_culprit or "", expires_in or 0)
        self.expires_in, self.likely_culprit = expires_in, likely_culprit
        self.args = (expires_in, likely_culprit, text, key)

    @classmethod
    def of(cls, duplicate: DuplicateTask, remaining: float) -> Self:
        return cls(remaining, duplicate.holder, str(duplicate), duplicate.key)


class HeimdallTask(RecipeTask):
    """A base of tasks that are not queued twice.

    Example:
        @app.task(base=HeimdallTask, heimdall={"unique": True, "unique_raises": True})
        def send_digest(user_id): ...

    The options of `heimdall`:
        unique: whether the task is unique. Default False.
        key: a string, or a function of (args, kwargs) that returns one. Default: all arguments.
        unique_timeout: seconds after which the key of a lost message expires. Default: the setting
            `heimdall_unique_timeout`, else `exclusive_queued_ttl`.
        unique_raises: whether a duplicate raises `AlreadyQueuedError`; else its call returns the AsyncResult
            of the queued task. Default: the setting `heimdall_unique_raises`, else False.
        unique_wait_for_expiry: whether the key is held for `unique_timeout` (an hour by default), however
            the task ends.

    Raises:
        OptionError: `heimdall` has an option that does not exist, or one that limits a rate: this library is
            no rate limiter.

    What changes: `unique_timeout` ends no key of a body that runs. A function as `key` gets the arguments
    that the call gave by place as `args`, and all of them by name as `kwargs`.
    """

    abstract = True
    heimdall: ClassVar[Mapping[str, Any]] = {}
    duplicate_error = AlreadyQueuedError
    not_called: ClassVar[Mapping[str, str]] = {"setup_redis": "the store is exclusive_store"}

    @classmethod
    def new_option(cls, app: Any) -> tuple[Unique, str] | None:
        heimdall = cls.heimdall
        _check(cls.name, heimdall)
        if not heimdall.get("unique"):
            return None
        timeout = heimdall.get("unique_timeout", app.conf.get("heimdall_unique_timeout"))
        waits = heimdall.get("unique_wait_for_expiry")
        raises = heimdall.get("unique_raises", app.conf.get("heimdall_unique_raises"))
        key = heimdall.get("key")
        option = Unique(
            key=_by_name(cls, cast("Any", key))
            if callable(key)
            else key and key.replace("{", "{{").replace("}", "}}"),
            period=(timeout or _ONE_HOUR) if waits else None,
            on_conflict="raise" if raises else "skip",
            queued_ttl=None if waits else timeout,
        )
        return option, "unique_timeout ends no key of a body that runs, whose lease is renewed"


def _by_name(cls: Any, key: Callable[[Any, Any], str]) -> Callable[..., str]:
    """Return a function that is called like the task, and calls `key` with its args and kwargs."""
    parameters = [*inspect.signature(cls.run).parameters]
    is_bound = not isinstance(inspect.getattr_static(cls, "run"), staticmethod)
    names = parameters[is_bound:]

    def key_of_call(*args: Any, **kwargs: Any) -> str:
        return key(args, {**dict(zip(names, args, strict=False)), **kwargs})

    key_of_call.__qualname__ = f"lambda {', '.join(names)}: ..."  # as the new spelling shows it
    return key_of_call


def _check(task: str, heimdall: Mapping[str, Any]) -> None:
    for name in heimdall:
        if name in _RATES:
            raise OptionError(
                f"task {task}: heimdall={dict(heimdall)!r} limits a rate, and this library is no "
                "rate limiter: keep celery-heimdall for this task, or write "
                "Unique(period=) for one call per period"
            )
    check_names(task, "heimdall", heimdall, _OPTIONS, _NOT_USED)
