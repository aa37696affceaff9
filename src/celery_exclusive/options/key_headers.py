"""The headers of a message that the user sets: a tenant, a language, an alias of a database.

Functions that make keys see only these, not the headers of Celery and of this library.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from celery.app.task import Context

_OF_CELERY: Final = frozenset(vars(Context)) | {"lang", "task", "argsrepr", "kwargsrepr", "compression"}
"""The names of headers that belong to Celery, which a retry does not send again."""
_OURS: Final = frozenset({"exclusive", "redelivered"})
RESERVED: Final = _OF_CELERY | _OURS
"""The names that no header of the user has."""
PARAMETER: Final = "headers"
"""The parameter of a `key=` function that takes the headers of the message."""


def own_headers(headers: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (headers or {}).items() if name not in RESERVED}


def takes_headers(key: Callable[..., object]) -> bool:
    """Whether a `key=` function has a keyword-only parameter `headers`."""
    code = getattr(key, "__code__", None)
    if code is not None:
        by_place = code.co_argcount
        return PARAMETER in code.co_varnames[by_place : by_place + code.co_kwonlyargcount]
    try:
        parameter = inspect.signature(key).parameters.get(PARAMETER)
    except (ValueError, TypeError):
        return False  # written in C
    return parameter is not None and parameter.kind is inspect.Parameter.KEYWORD_ONLY
