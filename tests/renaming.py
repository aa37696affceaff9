"""Renames a private name in an installed package, as one of its next versions might."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

from celery_exclusive.seams.seam import Seam

NEW = "_as_it_is_called_now"


def attribute(seam: Seam) -> str:
    """Return the name without its class."""
    return seam.name.rpartition(".")[2]


def remove(seam: Seam, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rename it in the class that has it, where the probe looks. Nothing works with it any more."""
    *path, name = seam.name.split(".")
    module: Any = sys.modules[seam.module]
    if not path:
        stripped = ModuleType(seam.module)  # a copy: pytest needs some of them itself
        vars(stripped).update({it: value for it, value in vars(module).items() if it != name})
        monkeypatch.setitem(sys.modules, seam.module, stripped)
        return
    (cls,) = path
    for base in getattr(module, cls).__mro__[:-1]:
        if name in vars(base):
            monkeypatch.delattr(base, name)
        for function in functions(base):
            monkeypatch.setattr(function, "__code__", renamed(function.__code__, name, NEW))


def rename_everywhere(*packages: str, name: str) -> None:
    """Rename it in all that is imported of these packages, which work with the new name."""
    for module in [found for found in list(sys.modules) if found.partition(".")[0] in packages]:
        for holder in holders(sys.modules[module]):
            if name in vars(holder):
                setattr(holder, NEW, vars(holder)[name])
                delattr(holder, name)
            for function in functions(holder):
                function.__code__ = renamed(function.__code__, name, NEW)


def holders(module: ModuleType) -> Iterator[Any]:
    yield module
    for value in list(vars(module).values()):
        if isinstance(value, type) and value.__module__ == module.__name__:
            yield value


def functions(holder: Any) -> Iterator[FunctionType]:
    """Yield the functions of a class or module, also those in properties."""
    for value in list(vars(holder).values()):
        parts = [getattr(value, part, None) for part in ("__func__", "fget", "fset", "func", "__wrapped__")]
        for function in (value, *parts):
            if isinstance(function, FunctionType):
                yield function


def renamed(code: CodeType, old: str, new: str) -> CodeType:
    """Return the code with another name for an attribute, also in functions within it."""
    inner = (renamed(it, old, new) if isinstance(it, CodeType) else it for it in code.co_consts)
    names = tuple(new if name == old else name for name in code.co_names)
    return code.replace(co_names=names, co_consts=tuple(inner))
