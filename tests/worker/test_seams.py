"""Workers and publishers beside a Celery, kombu or billiard in which a private name is another one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.worker.lab import Lab, command
from tests.worker.test_misuse import refused, said_in_one_line
from tests.worker.versions import SETTINGS, of_fast_part

SHOP = "tests.worker.shop_unique"
FASTER = {
    "_result_handler": "hand the next message on within a worker",
    "_put": "acquire a unique key in the call that pushes the message",
}
CALL_TWICE = f"""
import tests.worker.renamed
from {SHOP} import once
print(*(once.delay("k").outcome for _ in range(2)))
"""


def beside(name: str) -> dict[str, Any]:
    """The settings of a worker in whose process this name is another one."""
    return {"renamed": name, "imports": [*SETTINGS.get("imports", ()), "tests.worker.renamed"]}


@pytest.mark.proves("missing name for speed")
@of_fast_part
@pytest.mark.parametrize("name", FASTER)
def test_a_worker_without_a_name_that_is_for_speed_warns_once_and_runs_its_line_in_order(
    make_lab: Callable[..., Lab], name: str
) -> None:
    lab = make_lab(task_acks_late=True)
    worker = lab.start_worker("w1", 2, **beside(name))
    lab.send("wait", "k", tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    for number in range(5):
        lab.send("wait", "k", tag=str(number))
        lab.wait_for_line(number + 1, "wait", "k")
    lab.open("holder")
    lab.journal.wait_for("end", 6)
    assert lab.journal.tags("start") == ["holder", *map(str, range(5))]
    assert lab.journal.most_open() == 1
    (warning,) = [line for line in worker.log.splitlines() if "slower, not less safe" in line]
    assert ": WARNING/MainProcess] " in warning
    assert f".{name}, which helps it to {FASTER[name]}. " in warning
    assert worker.stop() == 0
    assert "Traceback" not in worker.log


@pytest.mark.proves("missing name for speed")
@pytest.mark.parametrize("name", ["_create_client", "_put"])
def test_a_publisher_without_a_name_that_is_for_speed_sends_a_unique_call_once(
    make_lab: Callable[..., Lab], name: str
) -> None:
    lab = make_lab(module=SHOP, renamed=name)
    said = subprocess.run(
        [sys.executable, "-c", CALL_TWICE],
        check=True, env=lab.environment, cwd=lab.folder, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert said.stdout.split() == ["published", "skipped"]
    assert lab.messages_at_the_broker() == 1


@pytest.mark.proves("missing name that a promise needs")
@pytest.mark.parametrize(
    ("name", "purpose"),
    [
        ("Consumer._basic_consume", "note the queue of a message"),
        ("Request._announce_revoked", "release the leases of a revoked or expired task"),
        ("Connection._sock", "limit the time of a store call"),
    ],
)
def test_a_worker_without_a_name_that_a_promise_needs_does_not_start(
    make_lab: Callable[..., Lab], name: str, purpose: str
) -> None:
    log = refused(make_lab(), **beside(name.partition(".")[2]))
    said_in_one_line(log, f"has no {name}. ", purpose)


@pytest.mark.proves("report of private names")
def test_celery_report_shows_what_is_missing_from_what_a_worker_would_use(
    make_lab: Callable[..., Lab],
) -> None:
    said = command(make_lab(), "report", **beside("_result_handler")).stdout
    assert "has no Pool._result_handler, which helps it to hand the next message on within a worker" in said
    assert " private names are as expected in " in said
