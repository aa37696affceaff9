"""`QueueOnce` and `AlreadyQueued` of celery-once: `once={"keys": ..., "graceful": ..., ...}`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ClassVar, cast

from celery_exclusive.compat.recipe_task import RecipeDuplicate, RecipeTask, check_names
from celery_exclusive.errors import OptionError
from celery_exclusive.options.canonical import Refused, digest, scalar, unwrap, utf8
from celery_exclusive.options.declared import Unique
from celery_exclusive.options.keys import AsCalled, argument, bind, check

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


class QueueOnce(RecipeTask):
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

    Arguments with the same text are the same, such as 7 and "7", or a UUID and its string. In the new
    spelling their types count.

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
        if keys:
            check(cls.name, cls.run, Unique(tuple(keys)))
        return Unique(
            key=_TextKey(app, cls.name, keys) if keys or keys is None else cls.name,
            until="started" if once.get("unlock_before_run") else "finished",
            on_conflict="skip" if once.get("graceful") else "raise",
            queued_ttl=once.get("timeout", settings.get("default_timeout")),
        ), "; ".join(changes)

    @classmethod
    def new_spelling(cls, option: Any) -> Any:
        keys = cls.once.get("keys")
        return option.replace(key=None, by=tuple(keys) if keys else None) if callable(option.key) else option

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


class _TextKey(AsCalled):
    """A function as `key=`, which makes a key of the texts of arguments, as celery-once does.

    7 and "7" have one key, as a UUID and its string do. No text and no list is too long.
    """

    def __init__(self, app: Any, task: str, names: Sequence[str] | None) -> None:
        def text_key(*args: Any, **kwargs: Any) -> str:
            bound = bind(app.tasks[task].run, args, kwargs)
            given = {name: argument(bound, name) for name in names or bound.arguments}
            try:
                texts = [(name, _text(given[name])) for name in sorted(given)]
            except Refused as refused:
                raise OptionError(f"task {task!r}: an argument {refused.problem}") from None
            return f"{task}:{blake2b(utf8(repr(texts)), digest_size=16).hexdigest()}"

        super().__init__(text_key)


def _text(value: object) -> object:
    known = scalar(unwrap(value))
    return known[1] if known else _form(value)


def _form(value: object) -> object:
    """Return what distinguishes a value within another one, as JSON brings it."""
    value = unwrap(value)
    if isinstance(value, (list, tuple)):
        return [_form(item) for item in value]
    if isinstance(value, dict):
        return sorted((str(key), _form(item)) for key, item in value.items())
    return scalar(value) or digest({"": value})
