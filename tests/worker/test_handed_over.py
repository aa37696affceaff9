"""A child runs what Celery has forgotten: its main process lost the broker before it heard of the start."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.proxy import Proxy
from tests.rabbit import RabbitServer
from tests.servers import RedisServer
from tests.worker.lab import Lab, Worker, eventually
from tests.worker.message import stop_consuming
from tests.worker.pipe import ask, in_the_pipe
from tests.worker.stage import Stage, on_stages


def start_forgotten(lab: Lab, network: Proxy) -> Worker:
    """Start a worker, and in it a body that stays open and that Celery has forgotten.

    The connection to the broker is cut when the task has been handed to a child that has not read it yet.
    """
    server = urlsplit(lab.conf["broker_url"])
    netloc = server.netloc.replace(f":{server.port}", f":{network.port}")
    broker_url = server._replace(netloc=netloc).geturl()
    worker = lab.start_worker("w1", 1, options=("-Q", "lab,side"), broker_url=broker_url)
    with in_the_pipe(worker, "wait", "k", tag="forgotten", hold=True):
        stop_consuming(lab, worker, "lab")  # else it would get the message again
        connected = worker.log.count("Connected to ")
        network.cut()
        network.restore()
        eventually(lambda: worker.log.count("Connected to ") > connected, "a new connection")
    lab.journal.wait_for("start", tag="forgotten")
    assert not ask(worker, "active")
    return worker


@pytest.fixture
def network(stage: Stage, request: pytest.FixtureRequest) -> Iterator[Proxy]:
    """The network between a worker and its broker."""
    server: RedisServer | RabbitServer = request.getfixturevalue(
        "redis_server" if stage.broker == "redis" else "rabbit_server"
    )
    with Proxy(server.port) as proxy:
        yield proxy


def wait_until_free(lab: Lab) -> None:
    eventually(lambda: not lab.task("wait").lock_state("k").is_running, "a free key")


@pytest.mark.promise(
    "A body that Celery has forgotten, since the connection to the broker was lost after the task was "
    "handed to a child and before the main process had heard of its start (Redis, RabbitMQ late), keeps "
    "its key while it runs and no longer: it is renewed, and restored after a loss of data. Its child is "
    "killed; the worker shuts down",
    name="forgotten body",
    broke=(
        "red before: restored for ever, renewed after its child was killed; only what Celery knows is "
        "renewed; a slot counts without its pid; all are remembered"
    ),
)
@on_stages("prefork", late_only=("rabbitmq",))
def test_a_body_that_celery_has_forgotten_keeps_its_key_while_it_runs_and_no_longer(
    stage: Stage, network: Proxy, store: RedisServer
) -> None:
    lab = stage.make_lab("tests.worker.shop", exclusive_store=store.url, exclusive_ttl=9)
    worker = start_forgotten(lab, network)
    lab.assert_kept("wait", "k", renewals=4)
    lab.open("forgotten")
    lab.journal.wait_for("end", tag="forgotten")
    wait_until_free(lab)
    with store.client() as client:
        client.flushall()
    worker.wait_for_log("0 of this worker's leases were restored")
    assert not lab.task("wait").lock_state("k").is_running


@pytest.mark.proves("forgotten body")
@on_stages("prefork", brokers=("redis",))
def test_a_forgotten_body_gets_its_key_back_from_a_store_that_has_lost_its_data(
    stage: Stage, network: Proxy, store: RedisServer
) -> None:
    lab = stage.make_lab("tests.worker.shop", exclusive_store=store.url, exclusive_ttl=600)
    worker = start_forgotten(lab, network)
    with store.client() as client:
        client.flushall()
    worker.wait_for_log("1 of this worker's leases were restored")
    assert lab.task("wait").lock_state("k").is_running
    lab.open("forgotten")
    wait_until_free(lab)


@pytest.mark.proves("forgotten body")
@on_stages("prefork", brokers=("redis",))
def test_the_key_of_a_forgotten_body_is_free_after_ttl_when_its_process_is_killed(
    stage: Stage, network: Proxy, store: RedisServer
) -> None:
    lab = stage.make_lab("tests.worker.shop", exclusive_store=store.url, exclusive_ttl=9)
    start_forgotten(lab, network)
    (start,) = lab.journal.events("start", tag="forgotten")
    os.kill(start["pid"], signal.SIGKILL)
    wait_until_free(lab)


@pytest.mark.proves("forgotten body")
@on_stages("prefork", brokers=("redis",), lates=(True,))
def test_a_worker_that_shuts_down_keeps_the_key_of_a_forgotten_body_until_that_has_ended(
    stage: Stage, network: Proxy, store: RedisServer
) -> None:
    lab = stage.make_lab("tests.worker.shop", exclusive_store=store.url, exclusive_ttl=9)
    worker = start_forgotten(lab, network)
    worker.process.send_signal(signal.SIGTERM)
    lab.assert_kept("wait", "k", renewals=4)
    lab.open("forgotten")
    worker.process.wait(60)
    wait_until_free(lab)
