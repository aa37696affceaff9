"""Warns of an option of a package whose meaning is another one here."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from celery_exclusive.errors import warn_of_task


class CompatWarning(UserWarning):
    """An option of a package means something else here.

    The text names the task, the option and the new spelling.

    Example:
        warnings.simplefilter("ignore", CompatWarning)      # once you have read them
    """


def report(module: str, text: str, function: Callable[..., Any] | None = None) -> None:
    """Warn at the line of this function, or else at the line that imports or calls the caller.

    Parameters:
        function: the body of a task, which Celery may bind later, without any code of the user on the stack.
    """
    said = f"{module}: {text}"
    if function:
        warn_of_task(said, function, CompatWarning)
    else:
        warnings.warn(said, CompatWarning, stacklevel=3)
