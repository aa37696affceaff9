"""Refuses bodies that Celery calls and never runs: it awaits no coroutine, and loops over no generator."""

from __future__ import annotations

import inspect
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final

from celery.app.task import Task as CeleryTask

from celery_exclusive.errors import OptionError

NEVER_RUN: Final = frozenset({CoroutineType, GeneratorType, AsyncGeneratorType})
"""The types that such functions return."""
_KINDS: Final = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


def refuse_never_run(task: Any) -> None:
    """Raise OptionError for such a function, unless the user's own `__call__` may run its coroutine."""
    is_one = any(is_kind(task.run) for is_kind in _KINDS)
    if is_one and type(task).__call__ is CeleryTask.__call__:
        raise never_run(task.name)


def never_run(name: str, result: Any = None) -> OptionError:
    """Return the error of such a task, and close the coroutine that it has returned."""
    if isinstance(result, CoroutineType):
        result.close()  # Python would warn of it somewhere else
    return OptionError(
        f"task {name}: its function is `async def` or a generator, and Celery never runs the body of such a "
        "function: write a plain function that runs it, with asyncio.run(...) or list(...), and returns its "
        "result"
    )
