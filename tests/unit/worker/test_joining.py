"""How a duplicate reads the result of the task for which it waits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.backends.cache import CacheBackend
from celery.exceptions import SoftTimeLimitExceeded

from celery_exclusive.worker.joining import result_of


class Slow(CacheBackend):  # type: ignore[misc]
    """A backend that does not answer until the soft limit strikes."""

    def get_task_meta(self, *_: Any, **__: Any) -> Any:
        raise SoftTimeLimitExceeded


@pytest.mark.promise(
    "A soft time limit that strikes while a duplicate waits for the result of another task ends it",
    broke="red before: swallowed as an error of the backend",
)
def test_a_soft_limit_while_a_result_is_read_is_the_end_of_the_duplicate():
    services: Any = SimpleNamespace(app=SimpleNamespace(backend=Slow(app=Celery(), backend="memory://")))
    result, error = result_of(services, "other") or (None, None)
    assert result is None
    assert isinstance(error, SoftTimeLimitExceeded)
