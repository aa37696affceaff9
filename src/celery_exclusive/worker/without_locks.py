"""The boot step of an app without `install`: its worker would run tasks that have options without a lock."""

from __future__ import annotations

from typing import Any

from celery import bootsteps
from celery.platforms import EX_FAILURE

from celery_exclusive import notices
from celery_exclusive.errors import OptionError
from celery_exclusive.options.declared import NAMES
from celery_exclusive.options.option import Option, apps_with_locks


class WithoutLocks(bootsteps.StartStopStep):
    """Refuses the start of a worker whose app has tasks with options."""

    def include(self, parent: Any) -> bool:
        """Put this step before all other steps of Celery."""
        parent.steps.insert(0, self)
        return True

    def start(self, parent: Any) -> None:
        app = parent.app
        if app in apps_with_locks:  # since then
            return
        for name, task in app.tasks.items():
            if any(isinstance(getattr(task, option, None), Option) for option in NAMES):
                notices.cannot_start(
                    OptionError(
                        f"task {name!r} has options, but the app {app!r} has no locks: call "
                        "celery_exclusive.install(app) for this app, too, right after you make it"
                    )
                )
                raise SystemExit(EX_FAILURE)
