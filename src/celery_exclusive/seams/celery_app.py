"""Celery's apps and tasks."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final

from celery.app import task as celery_task

known_tasks: Final = attrgetter("_tasks")
"""Return the tasks of an app by their names, without making those that are pending."""
settings_before_use: Final = attrgetter("_conf")
"""Return the configuration of an app without loading it: it may be an empty one that is replaced later."""


def declared_task(app: Any, name: str) -> Any:
    """Return the task of this name; None if there is none. Pending tasks of the app are made first."""
    if app.autofinalize and not app.finalized:
        app.finalize(auto=True)
    return known_tasks(app).get(name)


def wrap_task_factory(app: Any, wrap: Callable[[Any], Any]) -> None:
    """Wrap the method by which an app makes a task of a function."""
    app._task_from_fun = wrap(app._task_from_fun)


def is_decorated(cls: type) -> bool:
    return bool(vars(cls).get("_decorated"))


def namespace_of(conf: Any) -> str:
    """Return the namespace of an app's settings as it begins their names: "CELERY_", or ""."""
    return getattr(conf, "prefix", None) or ""


def own_options(task: Any) -> dict[str, Any]:
    options: dict[str, Any] = vars(celery_task)["extract_exec_options"](task)
    return options
