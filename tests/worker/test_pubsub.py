"""Why Google Pub/Sub is no proven broker: what kombu 5.7 does with it.

docs/how-to/brokers.md and docs/evidence/rare-cases.md name each.
A test that fails with a newer kombu is good news: look whether its reason still stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from kombu import Connection, Exchange, Queue

from tests.conftest import or_leave_out
from tests.pubsub import PubSubServer
from tests.worker.lab import Lab, eventually
from tests.worker.versions import needs_celery

pytestmark = [
    pytest.mark.xdist_group("pubsub"),
    needs_celery("5.7", "the Pub/Sub transport of kombu 5.7"),
    pytest.mark.promise(
        "Google Pub/Sub is refused for what is so with kombu 5.7: a redelivered task looks new and is "
        "skipped, a rejected message comes back, publishing does not wait for the server, and a child "
        "cannot publish the next task in line, which waits for an offer",
        name="Pub/Sub",
        figure="they show what is broken; a newer kombu may turn them red",
    ),
]
DEADLINE = 90
SOON = {"ack_deadline_seconds": 10, "wait_time_seconds": 1}
"""Pub/Sub allows no shorter deadline for an acknowledgement."""


@pytest.fixture(scope="module")
def pubsub_server() -> Iterator[PubSubServer]:
    with ExitStack() as servers:
        yield servers.enter_context(or_leave_out(PubSubServer))


@pytest.fixture
def url(pubsub_server: PubSubServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty project."""
    for name, value in pubsub_server.environment.items():
        monkeypatch.setenv(name, value)
    return pubsub_server.new_url()


@pytest.fixture
def connection(url: str) -> Iterator[Connection]:
    with Connection(url, transport_options=SOON) as connection:
        yield connection


@pytest.fixture
def make_pubsub_lab(url: str, make_lab: Callable[..., Lab]) -> Callable[..., Lab]:
    """Makes a lab whose broker is Pub/Sub, with late acknowledgement."""
    settings = {
        "broker_url": url,
        "broker_transport_options": SOON,
        "exclusive_unproven_broker": True,
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "worker_enable_remote_control": False,
        "worker_prefetch_multiplier": 1,
    }
    return lambda **conf: make_lab(**{**settings, **conf})


def declared(connection: Connection, name: str) -> Any:
    queue = Queue(name, Exchange(name), routing_key=name)(connection.default_channel)
    queue.declare()
    return queue


def publish(connection: Connection, queue: str, body: str) -> None:
    # As Celery does it: to the default exchange.
    connection.Producer(auto_declare=False).publish(body, exchange="", routing_key=queue)


def test_a_redelivered_task_looks_new_and_is_skipped(make_pubsub_lab: Callable[..., Lab]) -> None:
    """Neither flag nor count: a run that was cut off is lost where another holds the key meanwhile."""
    lab = make_pubsub_lab(exclusive_ttl=2, exclusive_recover=False)
    doomed = lab.start_worker("doomed", 1)
    again = lab.send("skip", "k", tag="again", hold=True)
    lab.journal.wait_for("start", tag="again")
    doomed.kill()
    lab.start_worker("other", 2)
    eventually(lambda: not lab.task("skip").lock_state("k").is_running, "the end of the lease")
    lab.send("skip", "k", tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    assert "skipped" in again.get(timeout=DEADLINE)
    lab.open("holder", "again")
    lab.journal.wait_for("end", tag="holder")
    assert lab.journal.tags("end") == ["holder"]


def test_a_task_of_a_killed_worker_runs_again_when_its_acknowledgement_is_overdue(
    make_pubsub_lab: Callable[..., Lab],
) -> None:
    lab = make_pubsub_lab(exclusive_ttl=2, exclusive_offer=3)
    doomed = lab.start_worker("doomed", 1)
    result = lab.send("wait", "k", tag="a", hold=True)
    lab.journal.wait_for("start", tag="a")
    lab.start_worker("other", 1)
    doomed.kill()
    lab.open("a")
    assert result.get(timeout=DEADLINE) == "a"
    assert lab.journal.tags("start") == ["a", "a"]


def test_a_child_cannot_publish_the_next_task_in_line_so_that_waits_for_an_offer(
    make_pubsub_lab: Callable[..., Lab],
) -> None:
    lab = make_pubsub_lab(exclusive_offer=3)
    worker = lab.start_worker("w1", 2)
    results = [lab.send("wait", "k", tag="a", hold=True)]
    lab.journal.wait_for("start", tag="a")
    for number, tag in enumerate("bc", 1):
        results.append(lab.send("wait", "k", tag=tag))
        lab.wait_for_line(number, "wait", "k")
    lab.open("a")
    assert [result.get(timeout=DEADLINE) for result in results] == list("abc")
    assert lab.journal.tags("start") == list("abc")
    assert worker.log.count("was not republished and will be offered again: 'kombu-lab'") >= 2


def test_a_worker_is_refused_with_what_these_tests_show(make_pubsub_lab: Callable[..., Lab]) -> None:
    lab = make_pubsub_lab(exclusive_unproven_broker=False)
    refused = lab.start_worker("refused", 1, ready=False)
    assert refused.process.wait(60) == 1
    assert (
        "broker_url: gcpubsub:// is not proven with this library: with kombu 5.7 a redelivered" in refused.log
    )


def test_kombu_knows_only_the_queues_that_its_process_has_declared(connection: Connection) -> None:
    with pytest.raises(KeyError, match="kombu-unknown"):
        publish(connection, "unknown", "a")


def test_publishing_does_not_wait_until_the_server_has_the_message(
    pubsub_server: PubSubServer, connection: Connection
) -> None:
    queue = declared(connection, "unheard")
    pubsub_server.pause()
    try:
        publish(connection, "unheard", "a")  # what fails from here on, nobody is told
    finally:
        pubsub_server.resume()
    eventually(lambda: (message := queue.get()) and message.ack() is None, "the message")


def test_a_message_that_was_rejected_comes_back_when_the_process_has_ended(
    url: str, connection: Connection
) -> None:
    queue = declared(connection, "rejected")
    publish(connection, "rejected", "a")
    eventually(lambda: (message := queue.get()) and message.reject() is None, "the message")
    connection.release()  # and nobody extends its deadline any more
    with Connection(url, transport_options=SOON) as other:
        again = declared(other, "rejected")
        eventually(lambda: (message := again.get()) and message.ack() is None, "the same message")
