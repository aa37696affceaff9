"""`UniqueCeleryTask`: one run at a time per lock id; the others are skipped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_exclusive.compat.recipe_task import RecipeTask
from celery_exclusive.leases.operator_release import release
from celery_exclusive.options.declared import Exclusive
from celery_exclusive.options.key_text import absolute_key
from celery_exclusive.options.keys import AsCalled, key_of

if TYPE_CHECKING:
    from celery_exclusive.services import Services


class UniqueCeleryTask(RecipeTask):
    """A base of tasks that are not run twice at the same time with the same lock id.

    Example:
        @app.task(base=UniqueCeleryTask, custom_lock_expire=60)
        def import_feed(feed_url): ...

    Attributes:
        LOCK_EXPIRE, custom_lock_expire: seconds after which the lock of a dead process is free again; the
            second one counts if there are both. The lease of a living one is renewed. Default None: the
            setting `exclusive_ttl` (30 s).

    What changes: a run that finds the lock held is skipped with a result, where it raised `Ignore`, so that
    `get()`, chains and chords end. Only its holder releases a lock.
    """

    abstract = True
    LOCK_EXPIRE: float | None = None
    custom_lock_expire: float | None = None

    @classmethod
    def new_option(cls, app: Any) -> tuple[Exclusive, str]:
        def lock_id(*args: Any, **kwargs: Any) -> str:
            return _text(app.tasks[cls.name].generate_lock_id(*args, **kwargs))

        lock_id.__qualname__ = "generate_lock_id"  # as the new spelling shows it
        changes = "a run that finds the lock held is skipped with a result, and its chain and chord go on"
        ttl = cls.custom_lock_expire or cls.LOCK_EXPIRE
        if ttl:
            changes += "; LOCK_EXPIRE and custom_lock_expire no longer end the lock of a living process"
        return Exclusive(key=AsCalled(lock_id), ttl=ttl, on_conflict="skip"), changes

    def generate_lock_id(self, *args: Any, **kwargs: Any) -> str | bytes:
        """Return the name of the lock of a call with these arguments. Override it to choose some of them.

        The method gets the arguments in the form in which the call gives them, as in the recipe.

        Raises:
            TypeError: the arguments do not fit.
            OptionError: an argument has no stable string form.
        """
        return key_of(self.name, self.run, Exclusive("*"), args, kwargs)

    def release_lock(self, lock_id: str | bytes) -> None:  # type: ignore[override]
        """Release a lock whose holder is gone, and let its line go on.

        Raises:
            LockHeld: a running task holds it; nothing was changed.
            StoreUnavailable: the store does not answer.
        """
        services: Services = self.app._celery_exclusive
        release(services, absolute_key(_text(lock_id)))


def _text(lock_id: str | bytes) -> str:
    return lock_id.decode() if isinstance(lock_id, bytes) else lock_id
