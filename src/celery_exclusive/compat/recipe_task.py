"""The base of the packages' task classes, which makes a `unique=` of a package's attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from celery_exclusive.compat.changed import report
from celery_exclusive.core.records import SECOND
from celery_exclusive.errors import DuplicateTask, OptionError, did_you_mean
from celery_exclusive.installer import Task
from celery_exclusive.options.keys import key_of
from celery_exclusive.seams.celery_app import known_tasks

if TYPE_CHECKING:
    from typing_extensions import Self

    from celery_exclusive.options.declared import Unique
    from celery_exclusive.services import Services

_PACKAGE: Final = __name__.rpartition(".")[0]


class RecipeTask(Task):
    """A task class whose options are written as a package has them, and whose duplicates raise its error.

    A `unique=` that the task declares itself is kept.
    """

    abstract = True
    _translated: ClassVar[str | None] = None
    """The name of the task whose option was made from old ones."""
    not_called: ClassVar[Mapping[str, str]] = {}
    """Methods of the package that a subclass may have overridden, each with its replacement."""
    duplicate_error: ClassVar[type[RecipeDuplicate]]

    @classmethod
    def new_option(cls, app: Any) -> tuple[Unique, str] | None:
        """Return the option of this task, with a text of the changes that it brings. None: no option.

        Raises:
            OptionError: an old option is misspelt, or has no counterpart.
        """
        raise NotImplementedError

    @classmethod
    def on_bound(cls, app: Any) -> None:
        if cls._translated != cls.name:  # Celery binds a task again when it finalises its app
            try:
                cls._refuse_overrides()
                found = cls.new_option(app)
            except OptionError:
                known_tasks(app).pop(cls.name, None)  # else its next use would succeed
                raise
            if found and not cls._declares():
                cls._translate(*found)
        super().on_bound(app)

    @classmethod
    def _refuse_overrides(cls) -> None:
        for name, instead in cls.not_called.items():
            if hasattr(cls, name):
                raise OptionError(f"task {cls.name}: {name} is of no use, since nothing calls it: {instead}")

    @classmethod
    def _declares(cls) -> bool:
        """Whether the task, or a base of it, has a `unique=` by a declaration of its own."""
        owner = next((base for base in cls.__mro__ if "unique" in vars(base)), None)
        return owner is not None and "_translated" not in vars(owner)

    @classmethod
    def _translate(cls, option: Unique, changes: str) -> None:
        cls.unique = option  # type: ignore[attr-defined]
        cls._translated = cls.name
        modules = (str(base.__module__) for base in cls.__mro__)  # code from a string has none
        recipe = next(module for module in modules if module.startswith(_PACKAGE))
        spelling = cls.new_spelling(option)
        report(recipe, f"task {cls.name}: {changes}. Write unique={spelling!r}", cls.run)

    @classmethod
    def new_spelling(cls, option: Unique) -> Unique:
        """Return the option as the user should write it."""
        return option

    def apply_async(self, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        is_eager = self.app.conf.task_always_eager
        try:
            return super().apply_async(args, kwargs, *rest, **options)
        except DuplicateTask as duplicate:
            services: Services = self.app._celery_exclusive
            if is_eager and duplicate.key != self._unique_key(services, args, kwargs, options):
                raise  # a duplicate of another task, which the body has published
            holders = services.store.inspect(duplicate.key).holders
            remaining = holders[0].remaining / SECOND if holders else 0
            raise self.duplicate_error.of(duplicate, remaining) from duplicate

    def _unique_key(
        self, services: Services, args: Any, kwargs: Any, options: Mapping[str, Any]
    ) -> str | None:
        """Return the unique key of a call. None: the call has no unique key."""
        option = options.get("unique") or services.unique(self)
        of_message = options.get("headers"), services.key_headers
        return key_of(self.name, self.run, option, args, kwargs, *of_message) if option else None


def check_names(
    task: str, option: str, given: Mapping[str, Any], known: tuple[str, ...], not_used: tuple[str, ...] = ()
) -> None:
    """Raise OptionError if a dict of options has a name that the package does not know."""
    for name in given:
        if name not in known + not_used:
            raise OptionError(
                f"task {task}: {option}={dict(given)!r} has no option {name!r} (there are {', '.join(known)})"
                f"{did_you_mean(name, known)}"
            )


class RecipeDuplicate(DuplicateTask):
    """A call was not published, since another task that is queued or runs holds its unique key.

    The constructor of a subclass takes the arguments of its package's error, since tests of users make such
    errors, and then ours. All of them are its `args`, from which pickle and result backends make it again.

    Attributes:
        message: the text.
        remaining: seconds until the lease of that task expires, if it is not renewed.
    """

    def __init__(self, text: str, key: str, holder: str, remaining: float) -> None:
        super().__init__(text, key, holder)
        self.message = str(self.args[0])
        self.remaining = remaining

    def __str__(self) -> str:
        return self.message

    @classmethod
    def of(cls, duplicate: DuplicateTask, remaining: float) -> Self:
        """Return this error for a duplicate, with the seconds left of the holder's lease."""
        raise NotImplementedError
