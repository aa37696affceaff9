"""Give one app exclusive tasks."""

from __future__ import annotations

from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any

from celery import Task as CeleryTask

from celery_exclusive import keys
from celery_exclusive.declaration import apps_with_locks, check_declaration
from celery_exclusive.errors import OptionError, did_you_mean
from celery_exclusive.options import Exclusive
from celery_exclusive.publish import wrap_send_task
from celery_exclusive.settings import Settings, tombstone_ttl
from celery_exclusive.stores.base import Store, open_store
from celery_exclusive.stores.choose import choose
from celery_exclusive.stores.mark import Mark
from celery_exclusive.task import TaskMixin
from celery_exclusive.worker.gate import GatedTask
from celery_exclusive.worker.request import request_class

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from celery_exclusive.worker.endings import Endings
    from celery_exclusive.worker.heartbeat import Heartbeat

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
    """What an installed app has: settings, the store, and on a worker the heartbeat and the endings."""

    heartbeat: Heartbeat | None = None
    endings: Endings | None = None
    events_from: str | None = None
    """The worker's name, if it sends events."""
    _is_complete = False
    is_rehearsal = False
    """Whether a test wants eager tasks to conflict too."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.mark = Mark(lambda: self.store)
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

    def allows_without(self, task: Any) -> bool:
        """Whether a task may run without a lease while the store does not answer."""
        return (self.option(task).on_store_error or self.settings.exclusive_on_store_error) == "allow"

    @property
    def is_needed(self) -> bool:
        """Whether any task of the app has options."""
        return any(isinstance(task, GatedTask) for task in self.app.tasks.values())

    def adopt_all(self) -> None:
        for task in list(self.app._tasks.values()):
            self.adopt(task)

    def adopt(self, task: Any) -> None:
        """Check a task's options and put the gate before its class; a task without options stays as it is."""
        cls: Any = type(task)  # from here on: what we call may look at the app, and so adopt it meanwhile
        if issubclass(cls, GatedTask):
            return
        for name, value in vars(cls).items():
            if isinstance(value, Exclusive) and name != "exclusive":  # by an annotation: nothing has told yet
                check_declaration(cls, name, self.app)
        if cls.__module__ == "celery.app.builtins" and task.name not in self._annotations:
            cls.exclusive = None  # what is given to all tasks is not meant for Celery's own
        option = getattr(task, "exclusive", None)
        if option is None:
            return
        if not isinstance(option, Exclusive):
            raise OptionError(
                f"task {task.name}: exclusive={option!r} is not an option; write exclusive=Exclusive(...), "
                'for example exclusive=Exclusive() or exclusive=Exclusive("feed_url")'
            )
        keys.check(task.name, task.run, option)
        names = {"__module__": cls.__module__, "__doc__": cls.__doc__, "Request": request_class(cls.Request)}
        task.__class__ = type(cls.__name__, (GatedTask, cls), names)

    def unknown_tasks(self) -> Iterator[str]:
        """Tell of the tasks that an annotation gives options to, and that nobody has declared here."""
        for name, attributes in self._annotations.items():
            if name != "*" and "exclusive" in dict(attributes) and name not in self.app.tasks:
                hint = did_you_mean(name, self.app.tasks)
                yield f"task_annotations: exclusive= of task {name!r} does nothing, no such task here{hint}"

    @property
    def _annotations(self) -> dict[str, Any]:
        """Those that name their task."""
        return {
            name: attributes
            for annotation in reversed(self.app.annotations)
            if isinstance(annotation, dict)
            for name, attributes in annotation.items()
        }

    def _check_annotations(self) -> None:
        """Celery would stumble over an option in the place of its attributes, and not tell where."""
        for name, attributes in self._annotations.items():
            if isinstance(attributes, Exclusive):
                raise OptionError(
                    f"task_annotations: task {name!r} has {attributes!r} where its attributes belong; "
                    f"write {{{name!r}: {{'exclusive': {attributes!r}}}}}"
                )

    def _adopting(self, register: Any) -> Any:
        @wraps(register)
        def adopting(*args: Any, **kwargs: Any) -> Any:
            self._check_annotations()
            task = register(*args, **kwargs)
            self.adopt(task)
            return task

        return adopting

    def _finalizing(self, finalize: Any) -> Any:
        @wraps(finalize)
        def finalizing(*args: Any, **kwargs: Any) -> None:
            if self._is_complete:
                return
            self._check_annotations()
            finalize(*args, **kwargs)
            self.adopt_all()
            self._is_complete = True

        return finalizing
