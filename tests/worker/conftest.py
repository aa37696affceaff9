from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from tests.proxy import Proxy
from tests.servers import RedisServer
from tests.worker.lab import Lab, disconnect, living
from tests.worker.once import others_of
from tests.worker.stage import Stage
from tests.worker.versions import needs_celery


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Show where the processes of the workers are when a test has failed."""
    report = yield
    if call.when == "call" and report.failed:
        report.sections += [(f"stacks of {worker.name}", worker.stacks()) for worker in living]
    return report


@pytest.hookimpl(tryfirst=True)  # before pytest looks at the markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the stages to `make test-all` that `make test` does not try a test on."""
    for item in others_of(item for item in items if Path(__file__).parent in item.path.parents):
        item.add_marker("large")


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
def make_rabbit_lab(rabbit_url: str, make_lab: Callable[..., Lab]) -> Callable[..., Lab]:
    """Makes a lab whose broker is RabbitMQ: `make_rabbit_lab({"x-max-priority": 9}, task_acks_late=True)`.

    The first are arguments of its queues, `lab` and `side`. Doors, results and leases are on Redis.
    """

    def make(arguments: dict[str, Any], **conf: Any) -> Lab:
        queue = {"exchange": "lab", "exchange_type": "topic", "queue_arguments": arguments}
        settings = {
            "broker_url": rabbit_url,
            "broker_transport_options": {},
            "broker_native_delayed_delivery_queue_type": "classic",
            "task_queues": {name: {**queue, "routing_key": name} for name in ("lab", "side")},
            "task_default_exchange": "lab",
            "task_default_exchange_type": "topic",
            "task_default_routing_key": "lab",
        }
        return make_lab(**{**settings, **conf})

    return make


@pytest.fixture(params=["classic", pytest.param("quorum", marks=needs_celery("5.5", "quorum queues"))])
def queue_type(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The arguments of a classic and of a quorum queue."""
    return {"x-queue-type": request.param}


@pytest.fixture
def stranger(redis_url: str) -> Iterator[Celery]:
    """A publisher that knows neither the tasks nor the library."""
    app = Celery("stranger", broker=redis_url, backend=redis_url, set_as_current=False)
    app.conf.update(task_default_queue="lab")
    yield app
    disconnect(app)
    app.close()


@pytest.fixture
def store(start_redis: Callable[..., RedisServer]) -> RedisServer:
    """A server of the test's own, for leases, that loses nothing."""
    return start_redis(appendonly=True, appendfsync="always")


@pytest.fixture
def proxy(store: RedisServer) -> Iterator[Proxy]:
    """The network to it."""
    with Proxy(store.port) as proxy:
        yield proxy


@pytest.fixture
def stage(request: pytest.FixtureRequest) -> Stage:
    """A pool, a broker and a way to acknowledge: see `stage.on_stages`."""
    return Stage(*request.param, request)
