"""Give one app exclusive tasks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from celery import Task as CeleryTask
from kombu.utils.json import register_type

from celery_exclusive import keys
from celery_exclusive.core.document import SECOND
from celery_exclusive.courier import Courier, PublishingStore
from celery_exclusive.debts import Debts
from celery_exclusive.declaration import Declaration, apps_with_locks, check_declaration
from celery_exclusive.errors import DuplicateTask, OptionError, did_you_mean
from celery_exclusive.given import Values, option_of_call
from celery_exclusive.header import HEADER, Header
from celery_exclusive.masking import mask
from celery_exclusive.options import KINDS, Exclusive, Unique
from celery_exclusive.publish import wrap_send_task
from celery_exclusive.settings import Settings, tombstone_ttl
from celery_exclusive.signing import Signer
from celery_exclusive.stores.base import Store, open_store
from celery_exclusive.stores.choose import choose
from celery_exclusive.stores.mark import Mark
from celery_exclusive.task import TaskMixin
from celery_exclusive.worker.gate import GatedTask
from celery_exclusive.worker.request import request_class

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery import Celery

    from celery_exclusive.worker.endings import Endings
    from celery_exclusive.worker.heartbeat import Heartbeat
    from celery_exclusive.worker.roster import Roster

ATTRIBUTE = "_celery_exclusive"
T = TypeVar("T", bound=Declaration)


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
        for kind in KINDS:  # so that signatures which give options can travel in a chain
            register_type(kind, f"celery_exclusive.{kind.__name__}", _written, partial(_read, kind))  # type: ignore[arg-type]
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
    """What an installed app has: settings, the store, and on a worker heartbeat, endings and roster.

    `events_from` tells the worker's name while somebody listens to its events.
    """

    heartbeat: Heartbeat | None = None
    endings: Endings | None = None
    roster: Roster | None = None
    worker: Any = None
    """Celery's own object of this worker."""
    _is_complete = False
    is_rehearsal = False
    """Whether a test wants eager tasks to conflict too."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.events_from: Callable[[], str | None] = lambda: None
        self.mark = Mark(lambda: self.store)
        self.debts = Debts(self)
        self.courier = Courier(self)
        mask(app)
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
        """Whatever its answers wake is published."""
        url, _ = self._choice
        settings = self.settings
        store = open_store(
            url,
            prefix=settings.exclusive_prefix,
            offer=settings.exclusive_offer,
            tombstone_ttl=tombstone_ttl(self.app.conf),
        )
        return cast("Store", PublishingStore(store, self.courier))

    @cached_property
    def signer(self) -> Signer:
        settings = self.settings
        return Signer(settings.secrets, settings.exclusive_prefix)

    def header_of(self, headers: Mapping[str, Any], task_id: str | None) -> Header | None:
        """Our header of a message of this task, if it is to be trusted."""
        return Header.read(headers, str(task_id), self.signer) if HEADER in headers else None

    @property
    def origin(self) -> str:
        """Where the store's URL was found."""
        return self._choice[1]

    @cached_property
    def _choice(self) -> tuple[str, str]:
        return choose(self.app.conf, self.settings.exclusive_store)

    def exclusive(self, task: Any, values: Values | None = None) -> Exclusive | None:
        """That of a task, with the values that a call gave instead."""
        return option_of_call(task, Exclusive, values, self._limits)

    def unique(self, task: Any, values: Values | None = None) -> Unique | None:
        return option_of_call(task, Unique, values, self._limits)

    @property
    def _limits(self) -> Settings | None:
        """What limits the values of a header: nothing, if its publisher has signed it."""
        return None if self.signer.is_on else self.settings

    def ttl(self, option: Declaration | None) -> int:
        """Of a lease while a body runs, in microseconds."""
        return round(((option and option.ttl) or self.settings.exclusive_ttl) * SECOND)

    def queued_ttl(self, unique: Unique | None) -> int:
        """Of a unique lease while its message waits, in microseconds."""
        own = unique and (unique.period or unique.queued_ttl)
        return round((own or self.settings.exclusive_queued_ttl) * SECOND)

    def allows_without(self, option: Declaration | None) -> bool:
        """Whether there may be a run, or a message, without a lease while the store does not answer."""
        own = option and option.on_store_error
        return (own or self.settings.exclusive_on_store_error) == "allow"

    @property
    def keeper(self) -> Roster | Heartbeat | None:
        """To whom a body in this process says which leases it holds."""
        return self.roster or self.heartbeat

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
            if isinstance(value, Declaration) and name != value.attribute:  # by an annotation: not told yet
                check_declaration(cls, name, self.app)
        if cls.__module__ == "celery.app.builtins" and task.name not in self._annotations:
            cls.exclusive = cls.unique = None  # what is given to all tasks is not meant for Celery's own
        options = [option for kind in KINDS if (option := _declared(task, kind))]
        if not options:
            return
        for option in options:
            keys.check(task.name, task.run, option)
        names = {"__module__": cls.__module__, "__doc__": cls.__doc__, "Request": request_class(cls.Request)}
        names["throws"] = (*cls.throws, DuplicateTask)  # of what its body calls: no alarm
        task.__class__ = type(cls.__name__, (GatedTask, cls), names)

    def unknown_tasks(self) -> Iterator[str]:
        """Tell of the tasks that an annotation gives options to, and that nobody has declared here."""
        for name, attributes in self._annotations.items():
            if name == "*" or name in self.app.tasks:
                continue
            for kind in KINDS:
                if kind.attribute in dict(attributes):
                    what = f"{kind.attribute}= of task {name!r} does nothing"
                    hint = did_you_mean(name, self.app.tasks)
                    yield f"task_annotations: {what}, no such task here{hint}"

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
            if isinstance(attributes, Declaration):
                raise OptionError(
                    f"task_annotations: task {name!r} has {attributes!r} where its attributes belong; "
                    f"write {{{name!r}: {{{attributes.attribute!r}: {attributes!r}}}}}"
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


def _declared(task: Any, kind: type[Declaration]) -> Declaration | None:
    option = getattr(task, kind.attribute, None)
    if option is None or isinstance(option, kind):
        return option
    name, example = kind.attribute, kind.__name__
    raise OptionError(
        f"task {task.name}: {name}={option!r} is not an option; write {name}={example}(...), for example "
        f'{name}={example}() or {name}={example}("feed_url")'
    )


def _written(option: Declaration) -> dict[str, Any]:
    if callable(option.key):
        raise OptionError(f"{option!r} cannot travel in a message: give it a template as key=")
    return {"by": option.by, "key": option.key, **option.values}


def _read(kind: type[Declaration], written: dict[str, Any]) -> Declaration:
    return kind(**written)
