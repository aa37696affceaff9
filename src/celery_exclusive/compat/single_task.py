"""`SingleTask`: one run at a time of all tasks with one TAG; the others return False."""

from __future__ import annotations

from typing import Any

from celery_exclusive.compat.recipe_task import RecipeTask
from celery_exclusive.local.lock import lock
from celery_exclusive.options.declared import Exclusive


class SingleTask(RecipeTask):
    """A base of tasks that run one at a time.

    Example:
        @app.task(base=SingleTask, TAG="SYNC")
        def sync_feeds(): ...

        sync_feeds.is_being_executed()      # or sync_feeds.lock.locked()

    Attributes:
        TAG: names the lock, in upper or lower case. Tasks with one TAG exclude each other. Default: the name
            of the task.
        single_run: False switches the lock off. Default True.

    What changes: a run that finds the lock held returns False, as before, but frees nothing. A task without
    a TAG no longer shares its lock with all others that have none.
    """

    abstract = True
    TAG = ""
    single_run = True

    @classmethod
    def new_option(cls, app: Any) -> tuple[Exclusive, str] | None:
        if not cls.single_run:
            return None
        template = cls._lock_id().replace("{", "{{").replace("}", "}}")
        changes = "a run that finds the lock held returns False and frees nothing; the lock has no timeout"
        return Exclusive(key=template, on_conflict="skip", skip_result=False), changes

    @property
    def lock(self) -> lock:
        """The lock of this task, for code that is no task."""
        return lock(self._lock_id(), wait=0, app=self.app)

    def is_being_executed(self) -> bool:
        """Whether a task with this TAG runs now. StoreUnavailable: the store does not answer."""
        return self.lock.locked()

    @classmethod
    def _lock_id(cls) -> str:
        return f"lock_{cls.TAG.lower() or cls.name}"
