"""Reports what an old name means here."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from celery_exclusive.errors import warn_of_task


class CompatWarning(UserWarning):
    """An option of a recipe means something else here.

    The text names the task, the option and the new spelling.

    Example:
        warnings.simplefilter("ignore", CompatWarning)      # once you have read them
    """


def report(module: str, text: str, function: Callable[..., Any] | None = None) -> None:
    """Warn at the line of this function, or else of who imports or calls the caller.

    Parameters:
        function: of a task: Celery binds tasks later, perhaps without any code of the user on the stack.
    """
    said = f"{module}: {text}"
    if function:
        warn_of_task(said, function, CompatWarning)
    else:
        warnings.warn(said, CompatWarning, stacklevel=3)
