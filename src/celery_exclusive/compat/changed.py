"""Reports what an old name means here."""

from __future__ import annotations

import warnings


class CompatWarning(UserWarning):
    """An option of a recipe means something else here.

    The text names the task, the option and the new spelling.

    Example:
        warnings.simplefilter("ignore", CompatWarning)      # once you have read them
    """


def report(module: str, text: str, *, stacklevel: int = 3) -> None:
    warnings.warn(f"{module}: {text}", CompatWarning, stacklevel=stacklevel)
