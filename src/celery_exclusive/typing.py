"""The types of an installed app, of its tasks, and of their calls.

    from celery_exclusive.typing import App, Result

    def start_import(app: App, url: str) -> Result[int]:
        return import_feed.delay(url)

A type checker finds in them what this library adds to Celery's classes, with and without the stubs of
Celery (`celery-types`). At runtime each name is Celery's own class or function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, Concatenate, Generic, Literal, Protocol, overload

    from celery import Celery
    from celery import Signature as CelerySignature
    from celery import Task as CeleryTask
    from celery.result import AsyncResult
    from typing_extensions import ParamSpec, Self, TypeVar

    from celery_exclusive.options.declared import Exclusive, UniqueOption
    from celery_exclusive.task import TaskMixin

    P = ParamSpec("P", default=...)
    R = TypeVar("R", default=Any)
    R_co = TypeVar("R_co", covariant=True, default=Any)
    Base = TypeVar("Base", bound=CeleryTask[Any, Any])

    # Generic is for checkers without the stubs, to which each class of Celery is Any, or not generic.
    class Result(AsyncResult[R_co], Generic[R_co]):
        """The result of a call, and how the call was published."""

        id: str
        outcome: Literal["published", "skipped", "updated"]
        existing_id: str | None
        key: str | None

        @property
        def result(self) -> Any: ...

    class Signature(CelerySignature[R_co], Generic[R_co]):
        """A signature of a task: its options may replace the options of the task."""

        def set(
            self,
            immutable: bool | None = None,
            *,
            exclusive: Exclusive | None = ...,
            unique: UniqueOption | None = ...,
            **options: Any,
        ) -> Self: ...
        def delay(self, *args: Any, **kwargs: Any) -> Result[R_co]: ...
        def apply_async(
            self,
            args: Iterable[Any] | None = None,
            kwargs: Mapping[str, Any] | None = None,
            route_name: str | None = None,
            *,
            exclusive: Exclusive | None = ...,
            unique: UniqueOption | None = ...,
            **options: Any,
        ) -> Result[R_co]: ...

    class Task(CeleryTask[P, R_co], TaskMixin, Generic[P, R_co]):
        """A task of an installed app."""

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
        def delay(self, *args: P.args, **kwargs: P.kwargs) -> Result[R_co]: ...
        def apply_async(
            self,
            args: Iterable[Any] | None = None,
            kwargs: Mapping[str, Any] | None = None,
            task_id: str | None = None,
            producer: Any = None,
            link: Any = None,
            link_error: Any = None,
            shadow: str | None = None,
            *,
            exclusive: Exclusive | None = ...,
            unique: UniqueOption | None = ...,
            **options: Any,
        ) -> Result[R_co]: ...
        def delay_on_commit(self, *args: P.args, **kwargs: P.kwargs) -> None: ...  # in a Django project
        def apply_async_on_commit(self, *args: Any, **options: Any) -> None: ...
        def s(self, *args: Any, **kwargs: Any) -> Signature[R_co]: ...
        def si(self, *args: P.args, **kwargs: P.kwargs) -> Signature[R_co]: ...
        def signature(self, *args: Any, **options: Any) -> Signature[R_co]: ...

    class TaskDecorator(Protocol):
        """`app.task` and `shared_task`; Celery's own options are among `options`."""

        @overload
        def __call__(self, fun: Callable[P, R], /) -> Task[P, R]: ...
        @overload
        def __call__(
            self,
            *,
            base: type[Base],
            exclusive: Exclusive | None = ...,
            unique: UniqueOption | None = ...,
            **options: Any,
        ) -> Callable[[Callable[..., Any]], Base]: ...
        @overload
        def __call__(
            self,
            *,
            bind: Literal[True],
            base: None = None,
            exclusive: Exclusive | None = ...,
            unique: UniqueOption | None = ...,
            **options: Any,
        ) -> Callable[[Callable[Concatenate[Any, P], R]], Task[P, R]]: ...
        @overload
        def __call__(
            self,
            *,
            bind: Literal[False] = False,
            base: None = None,
            exclusive: Exclusive | None = ...,
            unique: UniqueOption | None = ...,
            **options: Any,
        ) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    class App(Celery):
        """An app that `install` has given locks."""

        @property
        def task(self) -> TaskDecorator: ...  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]

        @overload
        def register_task(self, task: Base, **options: Any) -> Base: ...
        @overload
        def register_task(self, task: Base | type[Base], **options: Any) -> Base: ...
        def register_task(self, task: Any, **options: Any) -> Any: ...

    shared_task: TaskDecorator
else:
    from celery import Celery as App
    from celery import Signature, shared_task
    from celery.result import AsyncResult as Result

__all__ = ["App", "Result", "Signature", "shared_task"]
