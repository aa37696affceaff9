from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from tests.conftest import or_leave_out
from tests.rabbit import RabbitServer
from tests.shared import shared
from tests.worker.crashes.lane import Lane
from tests.worker.crashes.stack import Stack


@pytest.fixture(scope="session")
def rabbit_port(run_folder: Path) -> Iterator[int]:
    """The port of a RabbitMQ that all processes of the run share."""
    with ExitStack() as servers:
        yield or_leave_out(lambda: servers.enter_context(shared(RabbitServer, run_folder)))


@pytest.fixture
def make_lane(request: pytest.FixtureRequest) -> Iterator[Callable[[Stack], Lane]]:
    """Makes lanes, and clears them away."""
    with ExitStack() as lanes:

        def make(stack: Stack) -> Lane:
            prefix = f"c{uuid4().hex[:8]}"
            lane = Lane(stack.make_lab(request, prefix), prefix)
            lanes.callback(lane.close)
            return lane

        yield make
