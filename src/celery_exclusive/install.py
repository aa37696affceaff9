"""Give one app exclusive tasks."""

from __future__ import annotations

from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any

from celery import Task as CeleryTask

from celery_exclusive import keys
from celery_exclusive.errors import OptionError
from celery_exclusive.options import Exclusive, apps_with_locks
from celery_exclusive.publish import wrap_send_task
from celery_exclusive.settings import Settings, tombstone_ttl
from celery_exclusive.stores.base import Store, open_store
from celery_exclusive.stores.choose import choose
from celery_exclusive.task import TaskMixin
from celery_exclusive.worker.gate import GatedTask
from celery_exclusive.worker.request import request_class

if TYPE_CHECKING:
    from celery import Celery

    from celery_exclusive.worker.heartbeat import Heartbeat
    from celery_exclusive.worker.reaper import Reaper

ATTRIBUTE = "_celery_exclusive"


def install(app: Celery) -> Celery:
    """Give an app exclusive tasks; do it once, where the app is made, before or after its configuration.

    Example:
        app = install(Celery("feeds", broker="redis://"))

    Parameters:
        app: the Celery app. Tasks keep the base classes they have.

    Returns:
        The same app.

    Raises:
        OptionError: a task that exists already has a wrong option; for later tasks it is raised when they are
            declared, or when the app is finalised.

    What fails later: wrong settings and a store that does not answer stop a worker when it starts.
    """
    if getattr(app, ATTRIBUTE, None) is None:
        installation = Installation(app)
        setattr(app, ATTRIBUTE, installation)
        apps_with_locks[app] = _adopt_when_bound
        installation.adopt_all()
    return app


def _adopt_when_bound(app: Any, cls: Any) -> None:
    """A task that was declared before `install` is made by Celery's own method, but is bound as all are."""
    task = app._tasks.get(cls.name)
    if type(task) is cls:
        app._celery_exclusive.adopt(task)


class Task(TaskMixin, CeleryTask):  # type: ignore[type-arg]
    """A base class for tasks that installs its app, for those who prefer `base=` to `install(app)`.

    Example:
        @app.task(base=celery_exclusive.Task, exclusive=Exclusive())
        def rebuild_index(): ...
    """

    abstract = True

    @classmethod
    def on_bound(cls, app: Any) -> None:
        super().on_bound(app)
        install(app)


class Installation:
    """What an installed app has: settings, the store, and on a worker the heartbeat and the reaper."""

    heartbeat: Heartbeat | None = None
    reaper: Reaper | None = None

    def __init__(self, app: Any) -> None:
        self.app = app
        app.send_task = wrap_send_task(self)
        app._task_from_fun = self._adopting(app._task_from_fun)
        app.register_task = self._adopting(app.register_task)
        app.finalize = self._finalizing(app.finalize)
        app.steps["worker"].add("celery_exclusive.worker.steps:Locks")

    @cached_property
    def settings(self) -> Settings:
        return Settings.from_conf(self.app.conf)

    @cached_property
    def store(self) -> Store:
        url, _ = self._choice
        settings = self.settings
        return open_store(
            url,
            prefix=settings.exclusive_prefix,
            offer=settings.exclusive_offer,
            tombstone_ttl=tombstone_ttl(self.app.conf),
        )

    @property
    def origin(self) -> str:
        """Where the store's URL was found."""
        return self._choice[1]

    @cached_property
    def _choice(self) -> tuple[str, str]:
        return choose(self.app.conf, self.settings.exclusive_store)

    def option(self, task: Any) -> Exclusive:
        option = getattr(task, "exclusive", None)
        if not isinstance(option, Exclusive):
            raise OptionError(
                f"task {task.name} has no exclusive= option: declare it with exclusive=Exclusive(...)"
            )
        return option

    @property
    def is_needed(self) -> bool:
        """Whether any task of the app has options."""
        return any(isinstance(task, GatedTask) for task in self.app.tasks.values())

    def adopt_all(self) -> None:
        for task in list(self.app._tasks.values()):
            self.adopt(task)

    def adopt(self, task: Any) -> None:
        """Check a task's options and put the gate before its class; a task without options stays as it is."""
        option = getattr(task, "exclusive", None)
        if option is None or isinstance(task, GatedTask):
            return
        if not isinstance(option, Exclusive):
            raise OptionError(
                f"task {task.name}: exclusive={option!r} is not an option; write exclusive=Exclusive(...), "
                'for example exclusive=Exclusive() or exclusive=Exclusive("feed_url")'
            )
        keys.check(task.name, task.run, option)
        cls: Any = type(task)
        names = {"__module__": cls.__module__, "__doc__": cls.__doc__, "Request": request_class(cls.Request)}
        task.__class__ = type(cls.__name__, (GatedTask, cls), names)

    def _adopting(self, register: Any) -> Any:
        @wraps(register)
        def adopting(*args: Any, **kwargs: Any) -> Any:
            task = register(*args, **kwargs)
            self.adopt(task)
            return task

        return adopting

    def _finalizing(self, finalize: Any) -> Any:
        @wraps(finalize)
        def finalizing(*args: Any, **kwargs: Any) -> Any:
            result = finalize(*args, **kwargs)
            self.adopt_all()
            return result

        return finalizing
