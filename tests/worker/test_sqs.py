"""Amazon SQS as the broker: a visibility timeout, counted deliveries, groups, and a limit of sizes."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from bisect import bisect_left
from collections.abc import Callable
from select import PIPE_BUF
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.proxy import Proxy
from tests.servers import RedisServer
from tests.sqs import LONGEST, SqsServer
from tests.worker.lab import Lab, eventually
from tests.worker.versions import needs_celery

pytestmark = [
    pytest.mark.xdist_group("sqs"),
    needs_celery("5.7", "the SQS transport of kombu 5.7"),
]
LATE = {"task_acks_late": True, "task_reject_on_worker_lost": True}
DEADLINE = 90


@pytest.fixture
def make_sqs_lab(sqs_url: str, make_lab: Callable[..., Lab]) -> Callable[..., Lab]:
    """Makes a lab whose broker is SQS: `make_sqs_lab(visibility_timeout=6)`."""

    def make(visibility_timeout: float = 600, **conf: Any) -> Lab:
        options = {"visibility_timeout": visibility_timeout, "wait_time_seconds": 1, "polling_interval": 0.1}
        settings = {
            "broker_url": sqs_url,
            "broker_transport_options": options,
            "worker_enable_remote_control": False,
            **LATE,
        }
        return make_lab(**{**settings, **conf})

    return make


@pytest.mark.promise(
    "An outage of the store brings no task nearer to the dead-letter queue of SQS",
    broke="red before: it was moved there at its third return",
)
def test_an_outage_of_the_store_brings_no_message_into_the_dead_letter_queue(
    make_sqs_lab: Callable[..., Lab], sqs_server: SqsServer, store: RedisServer, proxy: Proxy
) -> None:
    sqs_server.create("dead")
    sqs_server.create("lab", RedrivePolicy=json.dumps(
        {"deadLetterTargetArn": "arn:aws:sqs:us-east-1:123456789012:dead", "maxReceiveCount": 2}
    ))  # fmt: skip
    url = f"redis://127.0.0.1:{proxy.port}/0?socket_timeout=0.5"
    lab = make_sqs_lab(exclusive_store=url, exclusive_store_wait=0.5)
    worker = lab.start_worker("w1", 1)
    proxy.cut()
    result = lab.send("wait", "k", tag="a")
    eventually(lambda: worker.log.count(f"[{result.id}] goes back to the broker") >= 4, "four returns")
    proxy.restore()
    assert result.get(timeout=DEADLINE) == "a"
    assert sqs_server.messages("dead") == 0


@pytest.mark.promise(
    "A message that just fits into SQS can wait in line and run, of text that compresses well and of "
    "random text",
    broke="red before: refused at each offer, and its line stood still for 20 minutes",
)
@pytest.mark.parametrize(
    "text", ["a" * LONGEST, b64encode(os.urandom(LONGEST)).decode()], ids=["text", "random"]
)
def test_a_message_that_just_fitted_can_wait_and_run(
    make_sqs_lab: Callable[..., Lab], sqs_server: SqsServer, text: str
) -> None:
    """When it leaves the line, its header is longer."""
    lab = make_sqs_lab()
    sizes = range(LONGEST * 9 // 16 - 4000, LONGEST * 9 // 16)  # kombu encodes a body twice

    def is_refused(size: int) -> bool:
        try:
            lab.send("wait", "k", tag=text[:size])
        except ClientError:
            return True
        return False

    longest = text[: sizes[bisect_left(sizes, True, key=is_refused) - 1]]
    sqs_server.purge("lab")
    lab.start_worker("w1", 2)
    lab.send("wait", "k", tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    waiting = lab.send("wait", "k", tag=longest)
    lab.wait_for_line(1, "wait", "k")
    lab.open("holder")
    assert waiting.get(timeout=DEADLINE) == longest


@pytest.mark.promise(
    "A message keeps its `MessageGroupId` in the line, and loses its deduplication id, by which a FIFO "
    "queue would drop it",
    broke="no group kept; the deduplication id kept, too",
)
def test_a_message_keeps_its_group_in_the_line_and_loses_its_deduplication_id(
    make_sqs_lab: Callable[..., Lab],
) -> None:
    """Within five minutes a FIFO queue drops a message with the same deduplication id."""
    lab = make_sqs_lab(task_default_queue="lab.fifo", module="tests.worker.shop_canvas")
    lab.start_worker("w1", 2)
    holder = lab.send("hold", "k")
    lab.journal.wait_for("start", tag="holder")
    long = "a" * PIPE_BUF  # too long to be handed on within the worker
    waiting = lab.send("watched", "k", long, options={"MessageGroupId": "g", "MessageDeduplicationId": "d"})
    lab.wait_for_line(1, "hold", "k")
    lab.open("holder")
    assert holder.get(timeout=DEADLINE) == "holder"
    waiting.get(timeout=DEADLINE)
    seen = [event["properties"] for event in lab.journal.events("message", id=waiting.id)]
    assert [properties["MessageGroupId"] for properties in seen] == ["g", "g"]
    assert ["MessageDeduplicationId" in properties for properties in seen] == [True, False]


@pytest.mark.promise(
    "On SQS a unique task is queued once, through its countdown, while it runs, and until the message of "
    "its killed worker has come back and run",
    broke='`until="started"`',
)
def test_a_unique_task_is_queued_once_through_its_countdown_and_the_end_of_its_worker(
    make_sqs_lab: Callable[..., Lab], sqs_server: SqsServer
) -> None:
    lab = make_sqs_lab(visibility_timeout=6, module="tests.worker.shop_unique", exclusive_ttl=3)
    doomed = lab.start_worker("doomed", 1)
    first = lab.send("once", "k", tag="a", hold=True, options={"countdown": 1})
    assert lab.send("once", "k", tag="b").id == first.id
    lab.journal.wait_for("start", tag="a")
    assert lab.send("once", "k", tag="c").id == first.id
    doomed.kill()
    lab.start_worker("other", 2)
    lab.open("a")
    assert first.get(timeout=DEADLINE) == "a"
    eventually(lambda: lab.task("once").lock_state("k").unique_holder is None, "a free key")
    assert lab.send("once", "k", tag="d").get(timeout=DEADLINE) == "d"
    assert lab.journal.tags("start") == ["a", "a", "d"]
    eventually(lambda: sqs_server.messages("lab") == 0, "an empty queue")


@pytest.mark.promise("On SQS a rescheduled task comes again, and runs once", broke="not published again")
def test_a_rescheduled_task_comes_again_and_runs_once(
    make_sqs_lab: Callable[..., Lab], sqs_server: SqsServer
) -> None:
    """By its worker's eta: SQS itself delays a message by whole seconds, and by 15 minutes at most."""
    lab = make_sqs_lab(module="tests.worker.shop_lineless")
    worker = lab.start_worker("w1", 2)
    lab.send("later", "k", tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    later = lab.send("later", "k", tag="later", options={"DelaySeconds": 1})
    worker.wait_for_log(f"[{later.id}] rescheduled")
    lab.open("holder")
    assert later.get(timeout=DEADLINE) == "later"
    assert lab.journal.tags("start") == ["holder", "later"]
    eventually(lambda: sqs_server.messages("lab") == 0, "an empty queue")
