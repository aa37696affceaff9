"""Attributes that are computed when they are first read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class cached(Generic[T]):  # noqa: N801 - it is used as `functools.cached_property` is
    """An attribute that is computed when it is first read, without a lock.

    Before Python 3.12 `functools.cached_property` has one lock for all objects of a class: a child that is
    forked while a thread holds it hangs at the attribute of any object. Here threads may compute the same
    attribute twice, and all get the first value.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> cached[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> cached[T] | T:
        if instance is None:
            return self
        value: T = vars(instance).setdefault(self.name, self.compute(instance))
        return value
