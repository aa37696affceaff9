"""The README's examples run as they stand, apart from the servers' addresses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, _state

import celery_exclusive
from tests.worker.lab import disconnect

README = (Path(__file__).parents[2] / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_there_are_examples() -> None:
    assert len(BLOCKS) >= 5


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[-1][:40])
def test_an_example_runs(block: str, redis_url: str) -> None:
    names: dict[str, Any] = {name: getattr(celery_exclusive, name) for name in celery_exclusive.__all__}
    names["app"] = app = celery_exclusive.install(Celery("readme", broker=redis_url, backend=redis_url))
    names |= {"save": lambda *_, **__: None, "rebuild": lambda: None, "page": 1}
    finalizers, current = set(_state._on_app_finalizers), _state.get_current_app()
    try:
        exec(block.replace("redis://localhost", redis_url), names)
        names["app"].finalize()
    finally:
        for used in {app, names["app"]}:
            disconnect(used)
            used.close()
        _state._on_app_finalizers &= finalizers
        current.set_current()
