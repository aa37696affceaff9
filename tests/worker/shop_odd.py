"""A task whose arguments compare as arrays, data frames and queries do: not to True or False."""

from __future__ import annotations

from typing import Any

from celery import Task

from celery_exclusive import Exclusive
from tests.worker.shop import app, noted, task

__all__ = ["app"]


class Odd:
    """An argument with a text for keys."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __exclusive_key__(self) -> str:
        return self.name


class Answers(list[bool]):
    """One answer for each element: it is neither true nor false."""

    def __bool__(self) -> bool:
        raise ValueError("the truth value of more than one element is ambiguous")


class Array(Odd):
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> Any:
        return Answers([False, True])


class Query(Odd):
    """Its comparison is an expression, which is true as every object is."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> Any:
        return object()


class Loud(Odd):
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> Any:
        raise TypeError("it cannot be compared")


KINDS: dict[str, type[Odd]] = {kind.__name__: kind for kind in (Array, Query, Loud)}


@task(exclusive=Exclusive("value"), max_retries=1)
def again(self: Task, value: Odd, tag: str, by_name: bool) -> str:
    """Its retry has another value."""
    noted("start", self, tag, key=self.lease.key)
    if self.request.retries == 0:
        other = type(value)("other")
        args, kwargs = ([], {"value": other}) if by_name else ([other], {})
        raise self.retry(args=args, kwargs={**kwargs, "tag": tag, "by_name": by_name}, countdown=0)
    return value.name
