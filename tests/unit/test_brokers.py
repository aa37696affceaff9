"""What the URLs of a broker tell."""

from __future__ import annotations

import re
import socket
from typing import Any

import pytest
from celery import Celery

from celery_exclusive.brokers import (
    broker_id,
    broker_urls,
    is_broker_of,
    is_on_this_machine,
    is_server_of_broker,
    refuse_unproven,
    refuse_without_transport,
)
from celery_exclusive.errors import OptionError
from tests.worker.versions import needs_celery

SINCE_5_7 = needs_celery("5.7", "what was proven since")
SAME: list[tuple[Any, Any]] = [
    ("redis://localhost", "redis://:secret@127.0.0.1:6379/0"),
    ("redis://cache/3", "rediss://me:secret@cache:6379/3?ssl_cert_reqs=none"),
    ("redis+socket:///run/r.sock", "redis+socket:///run/r.sock"),
    ("sentinel://a:26379;sentinel://b:26379", "sentinel://b/0;sentinel://a/0"),
    (None, "amqp://"),
    ("amqp://", "amqp://guest:secret@localhost:5672//"),
    ("amqp://rabbit", "amqp://me:secret@rabbit:5672//"),
    ("amqp://rabbit/", "pyamqp://rabbit:5672/%2f"),
    ("amqp://rabbit/one", "amqps://me:secret@rabbit:5671/one"),
    ("amqp://[::1]", "amqp://localhost"),
    ("amqp://a//;amqp://b//", "amqp://b//;amqp://a//"),
    (["amqp://a/v", "amqp://b:5673/v"], "amqp://b:5673/v;amqp://a:5672/v"),
    ("rabbit", "amqp://rabbit"),
]
OTHER: list[tuple[Any, Any]] = [
    ("redis://localhost/0", "redis://localhost/1"),
    ("redis://one", "redis://two"),
    ("redis://localhost:6379", "redis://localhost:6380"),
    ("redis+socket:///run/one.sock", "redis+socket:///run/two.sock"),
    ("redis+socket:///run/r.sock?virtual_host=1", "redis+socket:///run/r.sock?virtual_host=2"),
    ("amqp://rabbit/one", "amqp://rabbit/two"),
    ("amqp://rabbit/", "amqp://rabbit/one"),
    ("amqp://rabbit/one", "amqp://rabbit//one"),
    ("amqp://a;amqp://b", "amqp://a"),
    ("amqp://rabbit:5672", "amqp://rabbit:5673"),
    ("amqp://localhost", "redis://localhost"),
    ("sqla+sqlite:////run/one.db", "sqla+sqlite:////run/two.db"),
    ("sqs://", "amqp://"),
]


@pytest.mark.promise(
    "Brokers are distinguished by kind, hosts, virtual host",
    broke="amqps is another broker; vhost stripped; first URL only",
)
@pytest.mark.parametrize(
    ("url", "other", "is_same"), [(*pair, True) for pair in SAME] + [(*pair, False) for pair in OTHER]
)
def test_a_broker_is_recognised_by_kind_hosts_and_virtual_host(
    url: Any, other: Any, *, is_same: bool
) -> None:
    one, two = (broker_id(app_of(broker).conf) for broker in (url, other))
    assert (one == two) is is_same
    assert "secret" not in one + two


@pytest.mark.parametrize("url", [url for _, url in SAME])
def test_a_connection_of_an_app_leads_to_its_own_broker(url: Any) -> None:
    app = app_of(url)
    with app.connection_for_write() as own, app.connection_for_write("redis://elsewhere/7") as other:
        assert is_broker_of(app, own)
        assert not is_broker_of(app, other)


@pytest.mark.promise(
    "Two apps with other regions, masters, prefixes or tables behind one URL have two brokers: the workers "
    "of one do not publish the tasks of the other",
    broke="these options left out of the id",
)
@pytest.mark.parametrize(
    ("url", "option"),
    [
        ("redis://mq", "global_keyprefix"),
        ("sentinel://a", "master_name"),
        ("sqs://", "region"),
        ("sqs://", "queue_name_prefix"),
        ("sqla+postgresql://db/mq", "queue_tablename"),
    ],
)
def test_two_apps_with_different_queues_behind_one_url_have_two_brokers(url: str, option: str) -> None:
    one, same, two = (broker_id(app_of(url, {option: value, "x": 1}).conf) for value in ("one", "one", "two"))
    assert one == same != two
    assert broker_id(app_of(url).conf) not in (one, two)


@pytest.mark.proves("unproven brokers")
@pytest.mark.parametrize(
    "url",
    [
        "redis://",
        "sentinel://a;sentinel://b",
        "pyamqp://",
        pytest.param("sqs://", marks=SINCE_5_7),
        pytest.param("pgmq://localhost/mq", marks=SINCE_5_7),
        "sqla+mysql+pymysql://mq",
        "sqla+mariadb+pymysql://mq",
        "sqlalchemy+sqlite:///mq.db",
        "sqla+postgresql+psycopg://mq",
        "filesystem://",
        "memory://",
    ],
)
def test_a_broker_that_is_proven_is_not_refused(url: str) -> None:
    refuse_unproven(app_of(url).conf)


@pytest.mark.proves("unproven brokers")
@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("sqla+oracle://mq;sqla+oracle://other", "sqla+oracle"),
        ("sqla://mq", "sqla"),
        ("redis://one;kafka://two", "kafka"),
        *(
            (f"{name}://mq", name)
            for name in ("gcpubsub", "confluentkafka", "azureservicebus", "azurestoragequeues", "mongodb")
        ),
        *(
            (f"{name}://mq", name)
            for name in ("zookeeper", "consul", "etcd", "qpid", "pyro", "slmq", "our", "librabbitmq")
        ),
    ],
)
def test_a_broker_with_which_nothing_was_proven_is_refused_with_the_way_out(url: str, kind: str) -> None:
    with pytest.raises(OptionError) as refused:
        refuse_unproven(app_of(url).conf)
    assert str(refused.value).startswith(f"broker_url: {kind}:// is not proven with this library")
    assert "set exclusive_unproven_broker = True" in str(refused.value)


@pytest.mark.proves("Pub/Sub")
def test_a_broker_that_was_tested_and_not_proven_is_refused_with_what_the_tests_have_shown() -> None:
    with pytest.raises(
        OptionError, match="may be skipped, a message that was rejected comes back"
    ) as refused:
        refuse_unproven(app_of("gcpubsub://projects/mq").conf)
    assert "no test has shown" not in str(refused.value)


@pytest.mark.proves("unproven brokers")
@pytest.mark.parametrize("setting", ["broker_read_url", "broker_write_url"])
def test_a_broker_for_one_direction_is_refused_by_its_own_setting(
    monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    app = app_of("redis://mq")
    app.conf[setting] = "kafka://mq"
    with pytest.raises(OptionError, match=f"^{setting}: kafka:// is not proven"):
        refuse_unproven(app.conf)
    app.conf[setting] = None
    refuse_unproven(app.conf)
    monkeypatch.setenv(f"CELERY_{setting.upper()}", "pyro://mq")
    with pytest.raises(OptionError, match=f"^{setting}: pyro:// is not proven"):
        refuse_unproven(app.conf)


@pytest.mark.proves("unproven brokers")
def test_a_transport_that_is_named_beside_the_url_is_refused_by_its_name() -> None:
    app = app_of("mq")
    app.conf.broker_transport = "our.module:Transport"
    with pytest.raises(OptionError, match=r"^broker_url: our\.module:Transport:// is not proven"):
        refuse_unproven(app.conf)
    app.conf.broker_transport = "redis"
    refuse_unproven(app.conf)


@pytest.mark.proves("unproven brokers")
@pytest.mark.parametrize(
    ("url", "version"), [("sqs://", (5, 6, 9)), ("pgmq://mq", (5, 6)), ("amqp://", (5, 3))]
)
def test_a_broker_is_refused_with_a_celery_with_which_nothing_was_proven(
    monkeypatch: pytest.MonkeyPatch, url: str, version: tuple[int, ...]
) -> None:
    monkeypatch.setattr("celery.VERSION", version)
    with pytest.raises(OptionError, match="is not proven with this library and Celery 5"):
        refuse_unproven(app_of(url).conf)


@pytest.mark.proves("unproven brokers")
@pytest.mark.parametrize("setting", ["broker_url", "broker_read_url", "broker_write_url"])
@pytest.mark.parametrize(
    "name", ["rediss+cluster", "redis+sentinel", "amqp+tls", "sentinel+tls", "sqs+https"]
)
def test_a_broker_that_celery_would_not_reach_is_refused_with_the_way_out(setting: str, name: str) -> None:
    app = app_of("redis+socket:///run/r.sock")
    refuse_without_transport(app.conf)
    app.conf[setting] = f"{name}://mq"
    refused = rf"^{setting}: .*no transport for {re.escape(name)}://.*sentinel://"
    with pytest.raises(OptionError, match=refused):
        refuse_without_transport(app.conf)


def test_a_broker_of_files_is_recognised_by_its_folder() -> None:
    app = app_of("filesystem://", {"data_folder_in": "/b", "data_folder_out": "/a"})
    other_end = app_of("filesystem://", {"data_folder_in": "/a", "data_folder_out": "/b"})
    assert broker_id(app.conf) == broker_id(other_end.conf) == "filesystem:///a"
    assert broker_id(app_of("filesystem://").conf) == "filesystem://data_in"


@pytest.mark.parametrize(
    ("url", "is_here"),
    [
        (None, True),
        ("amqp://", True),
        ("amqp://127.0.0.1/v", True),
        (f"amqp://{socket.gethostname()}", True),
        ("amqp://rabbit", False),
        ("amqp://localhost;amqp://rabbit", False),
        ("redis://", True),
        ("redis://cache", False),
        ("redis+socket:///run/r.sock", True),
        ("memory://", True),
        ("filesystem://", True),
        ("sqla+sqlite:////run/mq.db", True),
        ("sqla+postgresql://db/mq", False),
        ("sqs://", False),
    ],
)
def test_a_broker_that_other_machines_can_reach_is_known_by_its_urls(url: str | None, is_here: bool) -> None:
    assert is_on_this_machine(app_of(url).conf) is is_here


def test_reading_and_writing_may_be_two_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    app = app_of(None)
    app.conf.update(broker_read_url="redis://one", broker_write_url=["amqp://two", "amqp://three"])
    assert broker_urls(app.conf, reading=True) == ["redis://one"]
    assert broker_urls(app.conf) == ["amqp://two", "amqp://three"]
    monkeypatch.setenv("CELERY_BROKER_WRITE_URL", "redis://four;redis://five")
    assert broker_urls(app.conf) == ["redis://four", "redis://five"]


def app_of(url: Any, options: dict[str, Any] | None = None) -> Celery:
    app = Celery(broker=url, set_as_current=False)
    app.conf.broker_transport_options = options or {}
    return app


@pytest.mark.proves("advice to set a secret")
@pytest.mark.parametrize(
    ("url", "broker", "is_own"),
    [
        ("redis://mq/1", "redis://mq/0", True),
        ("redis://user:**@mq:6379/1", "redis://other:secret@mq", True),
        ("valkey://localhost/1", "redis://127.0.0.1:6379//", True),
        ("redis://mq:6380/0", "redis://mq/0", False),
        ("redis://locks/0", "redis://mq/0", False),
        ("redis://locks/0", "redis://mq/0;redis://locks/0", True),
        ("redis://mq/0", "amqp://mq", False),
        ("redis+socket:///run/a.sock?virtual_host=1", "redis+socket:///run/a.sock", True),
        ("redis+socket:///run/a.sock", "redis+socket:///run/b.sock", False),
        ("redis+socket:///run/a.sock", "redis://localhost", False),
    ],
)
def test_a_store_is_the_brokers_own_server_whatever_its_database(url: str, broker: str, is_own: bool):
    assert is_server_of_broker(url, {"broker_url": broker}) == is_own
