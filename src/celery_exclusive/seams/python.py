"""Names of the standard library that its documentation does not have."""

from __future__ import annotations

import signal
import sys
from importlib import import_module
from typing import Any, Final

set_signal_handler: Final[Any] = getattr(import_module("_signal"), "signal", signal.signal)
"""`signal.signal` without its conversion of handlers to enums, which takes longer than the call itself."""
_NATIVE: Final = {"Lock": "allocate_lock", "local": "_local"}


def native(name: str) -> Any:
    """Return `Lock`, `RLock`, `local` or `start_new_thread` of the system's threads, never gevent's own.

    `threading` would make them of its own globals, which gevent replaces.
    """
    return original("_thread", _NATIVE.get(name, name))


def original(module: str, name: str) -> Any:
    """Return the unpatched object of a standard module."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey.get_original(module, name) if monkey else getattr(import_module(module), name)
