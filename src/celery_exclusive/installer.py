"""Give one app exclusive tasks."""

from __future__ import annotations

import sys
import warnings
from functools import partial, wraps
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet

from celery import Celery
from celery import Task as CeleryTask
from kombu.utils.json import register_type

from celery_exclusive.display import printable
from celery_exclusive.errors import DuplicateTask, ExclusiveError, OptionError, did_you_mean, warn_of_task
from celery_exclusive.leases.releaser import Releaser
from celery_exclusive.local.eager import EagerTask
from celery_exclusive.messages.courier import Courier
from celery_exclusive.options import keys
from celery_exclusive.options.declared import FAMILIES, KINDS, NAMES
from celery_exclusive.options.masking import mask
from celery_exclusive.options.misplaced import leftovers, refuse_autoretry, refuse_misplaced
from celery_exclusive.options.option import Option, apps_with_locks, check_declaration
from celery_exclusive.publishing.publisher import PUBLISHER, Publisher
from celery_exclusive.publishing.send import with_our_header
from celery_exclusive.seams import probe
from celery_exclusive.seams.celery_app import known_tasks, wrap_task_factory
from celery_exclusive.seams.probe import load_transport
from celery_exclusive.seams.table import OF_PUBLISHERS
from celery_exclusive.services import ATTRIBUTE, Services
from celery_exclusive.task import TaskMixin, explain_absence
from celery_exclusive.worker.body import refuse_never_run
from celery_exclusive.worker.checks import refuse_declared
from celery_exclusive.worker.context import WorkerContext
from celery_exclusive.worker.gate import GatedTask
from celery_exclusive.worker.request import request_class
from celery_exclusive.worker.roster import Roster, SharedRoster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_exclusive.typing import App

_REPLACED = (
    "send_task of this app was replaced before install(app): what it publishes may have no keys, like the "
    "messages of a publisher without this library. Call install(app) first, or override it in the class"
)


def install(app: Celery[Any]) -> App:
    """Give an app exclusive tasks; do it once, where the app is made, before or after its configuration.

    Example:
        app = install(Celery("feeds", broker="redis://"))

    Parameters:
        app: the Celery app. Tasks keep the base classes they have.

    Returns:
        The same app.

    Raises:
        OptionError: `app` is no Celery app, or a task that exists already has a wrong option. For later tasks
            the error comes when they are declared, or when the app is finalised.

    Wrong settings, and a store that does not answer, are errors later: a worker does not start with them.
    """
    if not isinstance(app, Celery):
        raise OptionError(
            f"install() takes a Celery app, not {type(app).__name__}: write "
            'app = install(Celery("feeds", broker="redis://localhost"))'
        )
    if getattr(app, ATTRIBUTE, None) is None:
        if found := probe.refusals(OF_PUBLISHERS):
            raise OptionError(found[0])
        if "send_task" in vars(app):
            warnings.warn(_REPLACED, UserWarning, stacklevel=2)
        for kind in KINDS:  # so that signatures which give options can travel in a chain
            register_type(kind, f"celery_exclusive.{kind.__name__}", _written, partial(_read, kind))
        services = Services(app)
        services.courier, services.releaser = Courier(services), Releaser(services)
        services.installer = installer = Installer(app)
        mask(app)
        app.steps["worker"].add("celery_exclusive.worker.steps:Locks")
        setattr(app, ATTRIBUTE, services)
        setattr(app, PUBLISHER, Publisher(services))
        app.__class__ = with_our_header(app.__class__)
        apps_with_locks[app] = _adopt_when_bound
        if "django.core.checks" in sys.modules:  # one of its checks is whether the project has our app
            import_module("celery_exclusive.contrib.django.checks")
            import_module("celery_exclusive.contrib.django.private_file")
        installer.adopt_all()
    return cast("App", app)


def _adopt_when_bound(app: Any, cls: Any) -> None:
    """Adopt a task that was declared before `install`, when Celery binds it to the app."""
    task = known_tasks(app).get(cls.name)
    if type(task) is cls:
        app._celery_exclusive.installer.adopt(task)


class Task(TaskMixin, CeleryTask):  # type: ignore[type-arg]
    """A base class for tasks that installs its app: `base=celery_exclusive.Task` in place of `install(app)`.

    Example:
        @app.task(base=celery_exclusive.Task, exclusive=Exclusive())
        def rebuild_index(): ...
    """

    abstract = True

    @classmethod
    def on_bound(cls, app: Any) -> None:
        super().on_bound(app)
        install(app)


class Installer:
    """Adopts the tasks of an app: each task with options gets its checks, and a gate before its class."""

    _is_complete = False

    def __init__(self, app: Any) -> None:
        self.app = app
        self._seen: WeakSet[type] = WeakSet()
        wrap_task_factory(app, self._adopting)
        app.register_task = self._adopting(app.register_task)
        app.finalize = self._finalizing(app.finalize)
        app.bugreport = partial(_bugreport, app, app.bugreport)

    def adopt_all(self) -> None:
        for task in list(known_tasks(self.app).values()):
            self.adopt(task)

    def adopt(self, task: Any) -> None:
        """Check a task's options and put the gate before its class; a task without options stays as it is."""
        cls: Any = type(task)  # from here on: what we call may look at the app, and so adopt it meanwhile
        if issubclass(cls, GatedTask):
            return
        if cls not in self._seen:
            self._seen.add(cls)
            for text in leftovers(cls, task.name):
                warn_of_task(text, task.run)
        for name, value in vars(cls).items():
            if isinstance(value, Option) and name != value.attribute:  # by an annotation: not reported yet
                check_declaration(cls, name, self.app)
        if cls.__module__ == "celery.app.builtins" and task.name not in self._annotations:
            cls.exclusive = cls.unique = None  # an annotation for all tasks is not meant for Celery's own
        refuse_misplaced(cls, task.name)
        options = [option for name in NAMES if (option := _declared(task, name))]
        if not options:
            explain_absence(cls)
            return
        refuse_never_run(task)
        refuse_autoretry(task)
        for option in options:
            keys.check(task.name, task.run, option)
            if doubt := keys.doubt(task.name, task.run, option):
                warn_of_task(doubt, task.run)
            refuse_declared(self.app.conf, task.name, option)
        names = {"__module__": cls.__module__, "__doc__": cls.__doc__, "Request": request_class(cls.Request)}
        throws = cls.throws or ()
        throws = (throws,) if isinstance(throws, type) else throws
        names["throws"] = (*throws, DuplicateTask)  # of what its body calls: no alarm
        # Ours stand behind the class: celery-singleton, for one, calls a release_lock() of its own.
        task.__class__ = type(cls.__name__, (GatedTask, cls, TaskMixin, EagerTask), names)

    def unknown_tasks(self) -> Iterator[str]:
        """Yield a warning for each task with options by an annotation that is not declared here."""
        for name, attributes in self._annotations.items():
            if name == "*" or name in self.app.tasks:
                continue
            for option in NAMES:
                if option in dict(attributes):
                    what = f"{option}= of task {name!r} does nothing"
                    hint = did_you_mean(name, self.app.tasks)
                    yield f"task_annotations: {what}, no such task here{hint}"

    @property
    def _annotations(self) -> dict[str, Any]:
        return {
            name: attributes
            for annotation in reversed(self.app.annotations)
            if isinstance(annotation, dict)
            for name, attributes in annotation.items()
        }

    def _check_annotations(self) -> None:
        """Refuse an option in the place of attributes, for which Celery's own error names no place."""
        for name, attributes in self._annotations.items():
            if isinstance(attributes, Option):
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


def _bugreport(app: Any, bugreport: Callable[[], str]) -> str:
    """Return the text of `celery -A proj report`, with our version, store, and names of others."""
    load_transport(app)
    probe.load("celery", "billiard", "kombu")
    place = _place(app._celery_exclusive)  # before the probe: the store's driver is imported
    lines = [f"celery-exclusive {version('celery-exclusive')}: {line}" for line in (place, *probe.report())]
    return "\n".join([bugreport().rstrip("\n"), "", *lines, ""])


def _place(services: Services) -> str:
    """Return where the locks of an app are, without a password."""
    try:
        prefix = services.settings.exclusive_prefix
        return printable(f"locks in {services.store.url} ({services.origin}), exclusive_prefix {prefix}")
    except ExclusiveError as error:
        return f"no store for locks: {error}"


def _declared(task: Any, name: str) -> Option | None:
    option: Option | None = getattr(task, name, None)
    if option is None or isinstance(option, FAMILIES[name]):
        return option
    example = name.capitalize()
    hint = f'for example {name}={example}() or {name}={example}("feed_url")'
    if isinstance(option, (list, tuple)):
        hint = (
            f'with one key of several parameters: {name}={example}(("tenant_id", "feed_url")). A second lock '
            "is a lock() in the body"
        )
    raise OptionError(
        f"task {task.name}: {name}={option!r} is not an option; write {name}={example}(...), {hint}"
    )


def _written(option: Option) -> dict[str, Any]:
    if functions := [name for name, value in option.functions.items() if callable(value)]:
        name = functions[0]
        instead = "a template" if name == "key" else "a number"
        raise OptionError(f"{option!r} cannot be written into a message: use {instead} as {name}=")
    return {"by": option.by, **option.functions, **option.values}


def _read(kind: type[Option], written: dict[str, Any]) -> Option:
    return kind(**written)


def install_copy(app: Any) -> None:
    """Install locks in the copy of an app, which a child that is not forked makes and runs tasks of."""
    services: Services = cast("Any", install(app))._celery_exclusive
    services.workers.append(WorkerContext(services, SharedRoster.of_parent() or Roster()))
