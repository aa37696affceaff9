from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from tests.worker.lab import Lab, disconnect


@pytest.fixture
def make_lab(redis_url: str, tmp_path: Path) -> Iterator[Callable[..., Lab]]:
    """Makes a lab on this test's Redis: `make_lab(task_acks_late=True)`."""
    with ExitStack() as labs:
        yield lambda url=redis_url, module="tests.worker.shop", **conf: labs.enter_context(
            Lab(url, tmp_path, conf, module)
        )


@pytest.fixture
def lab(make_lab: Callable[..., Lab]) -> Lab:
    """A lab with late ack, as our README advises."""
    return make_lab(task_acks_late=True, task_reject_on_worker_lost=True)


@pytest.fixture(params=["late", "early"])
def acks(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The settings of late and of early acknowledgement."""
    late = request.param == "late"
    return {"task_acks_late": late, "task_reject_on_worker_lost": late}


@pytest.fixture
def stranger(redis_url: str) -> Iterator[Celery]:
    """A publisher that knows neither the tasks nor the library."""
    app = Celery("stranger", broker=redis_url, backend=redis_url, set_as_current=False)
    app.conf.update(task_default_queue="lab")
    yield app
    disconnect(app)
    app.close()
