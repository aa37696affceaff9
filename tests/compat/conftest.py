from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest

from tests.compat.recipe import Recipe
from tests.worker.conftest import make_lab
from tests.worker.lab import Lab

__all__ = ["make_lab"]


@pytest.fixture
def start_recipe(make_lab: Callable[..., Lab]) -> Callable[..., Recipe]:
    """Starts one worker with a module of recipes: `start_recipe("once", pool="threads")`."""

    def start(name: str, *, pool: str = "prefork", slots: int = 4, **conf: object) -> Recipe:
        lab = make_lab(module=f"tests.compat.shop_{name}", **conf)
        with warnings.catch_warnings():  # what they say is tested in tests/unit/compat
            warnings.simplefilter("ignore", UserWarning)
            lab.app.finalize()
        return Recipe(lab, lab.start_worker(concurrency=slots, pool=pool))

    return start
