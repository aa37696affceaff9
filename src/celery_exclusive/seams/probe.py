"""Looks for the private names of the table in the packages that are installed."""

from __future__ import annotations

import inspect
import platform
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import CodeType
from typing import Any, Final

from celery_exclusive.seams.seam import Seam
from celery_exclusive.seams.table import SEAMS

_ABSENT: Final = object()


def refusals(seams: Iterable[Seam] = SEAMS) -> list[str]:
    """Return a sentence for each name that a promise depends on, and that is missing or changed."""
    return [
        f"{found}. celery-exclusive needs it to {seam.needed_to}: install another {seam.package} (it has it "
        f"since {seam.since}), or a newer celery-exclusive"
        for seam, found in _faults(seams)
        if not seam.faster
    ]


def warnings(seams: Iterable[Seam] = SEAMS) -> list[str]:
    """Return a sentence for each name that makes things faster, and that is missing or changed."""
    return [
        f"{found}, which helps it to {seam.faster}. exclusive_fast is off: slower, not less safe"
        for seam, found in _faults(seams)
        if seam.faster
    ]


def report(seams: Iterable[Seam] = SEAMS) -> list[str]:
    used = [seam for seam in seams if seam.module in sys.modules]
    packages = {seam.package: version_of(seam.package) for seam in used}
    names = ", ".join(f"{package} {number}" for package, number in packages.items())
    faults = [*refusals(used), *warnings(used)]
    return [f"{len(used) - len(faults)} of {len(used)} private names are as expected in {names}", *faults]


def load(*packages: str) -> None:
    """Import what the table names of these packages, but for transports: a worker does when it starts."""
    for seam in SEAMS:
        if seam.package in packages and not seam.module.startswith("kombu.transport"):
            with suppress(ImportError):  # the probe does not count it then
                import_module(seam.module)


def load_transport(app: Any) -> None:
    """Import the transport of this app's broker, as its first use does. It connects to nothing."""
    with suppress(Exception):  # a broker that cannot be reached in this way is refused elsewhere
        app.connection_for_write().get_transport_cls()


def _faults(seams: Iterable[Seam]) -> Iterator[tuple[Seam, str]]:
    """Yield the names that are missing or changed, each with the sentence that says so."""
    for seam in seams:
        if seam.module in sys.modules and (fault := _fault(seam)):  # others may not be installed
            yield seam, f"{seam.package} {version_of(seam.package)} {fault} {seam.name}"


def _fault(seam: Seam) -> str | None:
    *path, last = seam.name.split(".")
    owner: Any = sys.modules[seam.module]
    for name in path:
        owner = getattr(owner, name, None)
    found = inspect.getattr_static(owner, last, _ABSENT)
    if found is _ABSENT:
        has_it = inspect.isclass(owner) and any(last in names for names in _names_in(owner))
        return None if has_it else "has no"
    code = _code(found)
    return "has changed" if code and not _is_as_expected(code, seam) else None


def _names_in(cls: type) -> Iterator[tuple[str, ...]]:
    for base in cls.__mro__:
        for value in vars(base).values():
            if code := _code(value):
                yield code.co_names


def _code(value: Any) -> CodeType | None:
    """Return the code of a function, of a property, or of what wraps a function."""
    for name in ("__func__", "fget", "func", "__wrapped__"):
        value = getattr(value, name, None) or value
    code = getattr(value, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _is_as_expected(code: CodeType, seam: Seam) -> bool:
    """Whether a function uses these names, and begins with these parameters or takes any, as wrappers do."""
    expected = seam.parameters.split()
    begins = list(code.co_varnames[1 : code.co_argcount][: len(expected)]) == expected
    takes_any = code.co_flags & (inspect.CO_VARKEYWORDS | inspect.CO_VARARGS)
    uses, needed = set(code.co_names), set(seam.uses.split())
    uses_no_other = not seam.may_use or uses <= needed.union(seam.may_use.split())
    return bool(takes_any or begins) and needed <= uses and uses_no_other


def version_of(package: str) -> str:
    try:
        return platform.python_version() if package == "Python" else version(package)
    except PackageNotFoundError:  # its modules were found somewhere else
        return "(of unknown version)"
