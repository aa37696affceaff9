"""`QueueOnce` and `AlreadyQueued` of celery-once: `once={"keys": ..., "graceful": ..., ...}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

from celery_exclusive.compat.recipe_task import RecipeDuplicate, UniqueRecipeTask, check_names
from celery_exclusive.options.declared import Unique

if TYPE_CHECKING:
    from typing_extensions import Self

    from celery_exclusive.errors import DuplicateTask

_OPTIONS = ("graceful", "keys", "timeout", "unlock_before_run")
_OF_CALLS = ("graceful", "timeout")


class AlreadyQueued(RecipeDuplicate):
    """A call was not published, since the same call is queued or runs.

    Attributes:
        countdown: seconds until the key expires if its lease is not renewed.
        message: the text.
        existing_id: the task that holds the key.
    """

    def __init__(self, countdown: float, text: str = "", key: str = "", holder: str = "") -> None:
        super().__init__(text or f"Expires in {countdown} seconds", key, holder, countdown)
        self.countdown = countdown
        self.args = (countdown, text, key, holder)

    @classmethod
    def of(cls, duplicate: DuplicateTask, remaining: float) -> Self:
        return cls(remaining, str(duplicate), duplicate.key, duplicate.holder)


class QueueOnce(UniqueRecipeTask):
    """A base of tasks that are not queued twice.

    Example:
        @app.task(base=QueueOnce, once={"keys": ["user_id"], "graceful": True})
        def send_digest(user_id, *, force=False): ...

        send_digest.apply_async((7,), once={"graceful": False})

    The options of `once`, at the task or in a call:
        keys: the parameters that make up the key, of the task alone. Default: all; `[]`: the whole task.
        graceful: whether a duplicate is no error. Default False: `AlreadyQueued`.
        timeout: seconds after which the key of a lost message expires. Default: `default_timeout` of the
            setting ONCE, else `exclusive_queued_ttl`.
        unlock_before_run: whether the key is released when the body begins, of the task alone. Default False.

    Raises:
        OptionError: `once` has an option that does not exist, when the task is declared or called.

    What changes: `timeout` ends no key of a body that runs. A duplicate that is graceful returns the
    AsyncResult of the task that is queued, with `outcome` "skipped", instead of an EagerResult in state
    REJECTED. Of the setting ONCE only `default_timeout` is used: the store is `exclusive_store`.
    """

    abstract = True
    once: ClassVar[Mapping[str, Any]] = {}
    duplicate_error = AlreadyQueued
    not_called: ClassVar[Mapping[str, str]] = {
        "get_key": "write unique=Unique(key=...), with a function of the arguments",
        "once_backend": "the store is exclusive_store",
    }

    @classmethod
    def new_option(cls, app: Any) -> tuple[Unique, str]:
        once = cls.once
        check_names(cls.name, "once", once, _OPTIONS)
        changes = ["timeout ends no key of a body that runs, whose lease is renewed"]
        if once.get("graceful"):
            changes.append("a duplicate returns the AsyncResult of the queued task, with outcome 'skipped'")
        settings = (app.conf.get("ONCE") or {}).get("settings") or {}
        if settings.keys() - {"default_timeout"}:
            changes.append("the backend of the setting ONCE is not used, write exclusive_store=")
        keys = once.get("keys")
        return Unique(
            tuple(keys) if keys else None,
            key=None if keys or keys is None else cls.name,
            until="started" if once.get("unlock_before_run") else "finished",
            on_conflict="skip" if once.get("graceful") else "raise",
            queued_ttl=once.get("timeout", settings.get("default_timeout")),
        ), "; ".join(changes)

    def apply_async(self, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        once, unique = options.pop("once", None), cast("Unique | None", getattr(self, "unique", None))
        if once and unique:
            check_names(self.name, "once", once, _OF_CALLS)
            changes = {}
            if "graceful" in once:
                changes["on_conflict"] = "skip" if once["graceful"] else "raise"
            if "timeout" in once:
                changes["queued_ttl"] = once["timeout"]
            options.setdefault("unique", unique.replace(**changes))
        return super().apply_async(args, kwargs, *rest, **options)
