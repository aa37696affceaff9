"""Each broker with each store: docs/how-to/brokers.md.

`make test` tries each broker with one store and each store with one broker, `make test-all` all pairs.
"""

from __future__ import annotations

import json
import sqlite3
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
import redis
from celery.utils import uuid
from pgmq.install import install_pgmq_from_sql

from celery_exclusive import Exclusive
from tests.conftest import PROCESS, or_leave_out
from tests.django.databases import configured, sqlite
from tests.failover import NAME, Watched
from tests.maria import MariaDatabase
from tests.postgres import PostgresDatabase
from tests.rabbit import RabbitServer
from tests.redis_tls import Certificates, RedisWithTls
from tests.servers import RedisServer
from tests.sqs import SqsServer
from tests.worker.embedded import embedded, memory_app
from tests.worker.lab import Lab, Worker, disconnect, eventually
from tests.worker.stage import RABBITS
from tests.worker.versions import needs_celery, of_fast_part

Server = TypeVar("Server", RedisWithTls, RabbitServer)
DEADLINE = 90
LATE = {"task_acks_late": True, "task_reject_on_worker_lost": True}
TTL = 3
TIMEOUTS = {"visibility_timeout": 8, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}
POLLS = {"visibility_timeout": 8, "wait_time_seconds": 1, "polling_interval": 0.1}


@dataclass(frozen=True)
class Broker:
    """A broker: its settings, and how to count the messages that it has of the queue `lab`."""

    settings: dict[str, Any]
    count: Callable[[], int]


def _redis(request: pytest.FixtureRequest) -> Broker:
    url = request.getfixturevalue("redis_url")
    return Broker({"broker_transport_options": TIMEOUTS}, lambda: _in_redis(redis.Redis.from_url(url)))


def _sentinel(request: pytest.FixtureRequest) -> Broker:
    primary: RedisServer = request.getfixturevalue("start_redis")()
    sentinel = request.getfixturevalue("start_sentinel")(primary)
    options = {**TIMEOUTS, "master_name": sentinel.name}
    return Broker(
        {"broker_url": sentinel.url, "broker_transport_options": options},
        lambda: _in_redis(primary.client()),
    )


def _rabbitmq(request: pytest.FixtureRequest) -> Broker:
    server: RabbitServer = request.getfixturevalue("rabbit_server")
    url = request.getfixturevalue("rabbit_url")
    return Broker({"broker_url": url, "broker_transport_options": {}}, lambda: server.messages(url, "lab"))


def _sqs(request: pytest.FixtureRequest) -> Broker:
    server: SqsServer = request.getfixturevalue("sqs_server")
    url = request.getfixturevalue("sqs_url")
    settings = {"broker_url": url, "broker_transport_options": POLLS, "worker_enable_remote_control": False}
    return Broker(settings, lambda: server.messages("lab"))


def _pgmq(request: pytest.FixtureRequest) -> Broker:
    server: PostgresDatabase = request.getfixturevalue("postgres_database")
    database = server.beside(f"pgmq_{PROCESS}")
    database.ask("DROP SCHEMA IF EXISTS pgmq CASCADE")
    install_pgmq_from_sql(dsn=database.url)
    options = {**POLLS, "init_extension": False}
    settings = {
        "broker_url": database.url.replace("postgresql", "pgmq"),
        "broker_transport_options": options,
        "worker_enable_remote_control": False,
    }
    return Broker(settings, lambda: int(database.ask("SELECT count(*) FROM pgmq.q_lab")[0][0]))


def _sqla(server: str, database: str, scheme: str, request: pytest.FixtureRequest) -> Broker:
    """A database of this name, of the server of this fixture."""
    made: PostgresDatabase | MariaDatabase = request.getfixturevalue(server).beside(f"{database}_{PROCESS}")
    made.empty()
    url = f"sqla+{scheme}:{made.url.partition(':')[2]}"
    visible = "SELECT count(*) FROM kombu_message WHERE visible"
    return Broker(
        {"broker_url": url, "broker_transport_options": {}, "worker_enable_remote_control": False},
        lambda: int(made.ask(visible)[0][0]),
    )


def _sqla_sqlite(request: pytest.FixtureRequest) -> Broker:
    file = request.getfixturevalue("tmp_path") / "mq.db"

    def count() -> int:
        with closing(sqlite3.connect(file)) as database:
            return int(database.execute("SELECT count(*) FROM kombu_message WHERE visible").fetchone()[0])

    settings = {"broker_transport_options": {}, "worker_enable_remote_control": False}
    return Broker({"broker_url": f"sqla+sqlite:///{file}", **settings}, count)


def _filesystem(request: pytest.FixtureRequest) -> Broker:
    folder: Path = request.getfixturevalue("tmp_path") / "messages"
    folder.mkdir()
    options = {"data_folder_in": str(folder), "data_folder_out": str(folder)}
    settings = {
        "broker_url": "filesystem://",
        "broker_transport_options": {**options, "control_folder": f"{folder}-control"},
        "worker_enable_remote_control": False,
    }
    return Broker(settings, lambda: len(list(folder.glob("*.lab.msg"))))


def _redis_with_tls(request: pytest.FixtureRequest) -> Broker:
    certificates: Certificates = request.getfixturevalue("certificates")
    server = _started(request, lambda: RedisWithTls(certificates, asks=True))
    url = server.url_with(certificates.options(client="client"))
    return Broker(
        {"broker_url": url, "broker_transport_options": TIMEOUTS}, lambda: _in_redis(server.client())
    )


def _redis_by_file(request: pytest.FixtureRequest) -> Broker:
    file: str = request.getfixturevalue("socket_file")
    server: RedisServer = request.getfixturevalue("start_redis")(unixsocket=file)
    settings = {"broker_url": f"redis+socket://{file}", "broker_transport_options": TIMEOUTS}
    return Broker(settings, lambda: _in_redis(server.client()))


def _rabbitmq_with_tls(request: pytest.FixtureRequest) -> Broker:
    certificates: Certificates = request.getfixturevalue("certificates")
    server = _started(request, lambda: RabbitServer(certificates))
    url = server.new_url()
    tls = {
        "ca_certs": certificates.path("authority.crt"),
        "certfile": certificates.path("client.crt"),
        "keyfile": certificates.path("client.key"),
        "cert_reqs": ssl.CERT_REQUIRED,
    }
    over_tls = url.replace("amqp:", "amqps:").replace(f":{server.port}/", f":{server.tls_port}/")
    settings = {"broker_url": over_tls, "broker_use_ssl": tls, "broker_transport_options": {}}
    return Broker(settings, lambda: server.messages(url, "lab"))


def _started(request: pytest.FixtureRequest, start: Callable[[], Server]) -> Server:
    """Start a server for this test alone."""
    server = or_leave_out(start).__enter__()
    request.addfinalizer(server.close)
    return server


def _in_redis(client: redis.Redis) -> int:
    with client:
        return int(client.llen("lab")) + int(client.hlen("unacked"))


MAKE = {
    "redis": _redis,
    "sentinel": _sentinel,
    "rabbitmq": _rabbitmq,
    "sqs": _sqs,
    "pgmq": _pgmq,
    "sqla+postgres": partial(_sqla, "postgres_database", "sqla", "postgresql+psycopg"),
    "sqla+maria": partial(_sqla, "maria_database", "locks_sqla", "mysql+pymysql"),
    "sqla+sqlite": _sqla_sqlite,
    "filesystem": _filesystem,
}
OTHER_WAYS = {"rediss": _redis_with_tls, "redis+socket": _redis_by_file, "amqps": _rabbitmq_with_tls}
"""To brokers of which each store was tested: these are tested with one."""
MARKS = {
    "rabbitmq": [RABBITS[0]],
    "amqps": [RABBITS[0]],
    "sqs": [pytest.mark.xdist_group("sqs"), needs_celery("5.7", "the SQS transport of kombu 5.7")],
    "pgmq": [needs_celery("5.7", "kombu's transport for PGMQ")],
    **{
        f"sqla+{kind}": [pytest.mark.filterwarnings("ignore:The ``noload``")]
        for kind in ("postgres", "maria", "sqlite")
    },
}
STORES = ("redis", "sqlite", "postgres", "maria", "memcached", "django", "sentinel", "cluster")
QUICK = {
    ("redis", "redis"),
    ("redis", "cluster"),
    ("redis", "memcached"),
    ("redis", "django"),
    ("sentinel", "sentinel"),
    ("rabbitmq", "redis"),
    ("rabbitmq", "postgres"),
    ("sqs", "redis"),
    ("pgmq", "sqlite"),
    ("sqla+postgres", "redis"),
    ("sqla+maria", "maria"),
    ("sqla+sqlite", "sqlite"),
    ("filesystem", "redis"),
}
PAIRS = [
    pytest.param(
        broker,
        store,
        marks=[*MARKS.get(broker, []), *[pytest.mark.large] * ((broker, store) not in QUICK)],
        id=f"{broker}-{store}",
    )
    for broker in MAKE
    for store in STORES
] + [
    pytest.param(broker, "redis", marks=MARKS.get(broker, []), id=f"{broker}-redis") for broker in OTHER_WAYS
]
REDELIVER_NOTHING = ("sqla+postgres", "sqla+maria", "sqla+sqlite", "filesystem")
"""The messages that a killed worker has fetched are lost there, unless the store has kept them."""
REFUSED = {
    "redis+cluster://mq.invalid:7000": "Celery has no transport for redis+cluster://",
    "sqla+oracle://mq.invalid/mq": "sqla+oracle:// is not proven with this library",
}
SHOPS = {"memcached": "tests.worker.shop_lineless", "django": "tests.worker.shop_django"}


def large_but(*quick: str) -> list[Any]:
    """All stores, of which `make test` tries these."""
    return [pytest.param(store, marks=[pytest.mark.large] * (store not in quick)) for store in STORES]


@pytest.fixture
def django_database(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A Django project, here and in workers, whose default database is a file."""
    databases = {"default": sqlite(str(tmp_path / "site.db"))}
    monkeypatch.setenv("DJANGO_DATABASES", json.dumps(databases))
    with configured(databases):
        yield


@pytest.mark.promise(
    "On Redis, Sentinel, RabbitMQ, SQS, PGMQ, PostgreSQL, MariaDB, SQLite and files as brokers two tasks "
    "wait in line, the worker of its holder is killed, all run to their ends, none beside another, and "
    "broker and key are empty: each broker with each of the eight stores (in `make test` each broker with "
    "one store, and each store with one broker); Redis and RabbitMQ over TLS and Redis by a socket file "
    "with one. With memcached no worker is killed where the broker redelivers nothing: its messages would "
    "be lost",
    broke="no `recover` on brokers that redeliver nothing",
    command="pytest tests/worker/test_brokers.py",
)
@pytest.mark.parametrize(("broker", "store"), PAIRS)
def test_tasks_wait_in_line_and_the_task_of_a_killed_worker_runs_again(
    request: pytest.FixtureRequest, broker: str, store: str
) -> None:
    made, has_line = (MAKE | OTHER_WAYS)[broker](request), store != "memcached"
    make_lab: Callable[..., Lab] = request.getfixturevalue("make_lab")  # its workers end before their broker
    lab = make_lab(
        module=SHOPS.get(store, "tests.worker.shop"),
        **LATE,
        worker_prefetch_multiplier=1,
        exclusive_ttl=TTL,
        exclusive_prefix=uuid(),  # one Redis Cluster serves all tests
        exclusive_store=_url(request, store),
        **made.settings,
    )
    wait = lab.app.tasks["tests.worker.shop.wait" if has_line else "tests.worker.shop_lineless.later"]
    doomed = lab.start_worker("doomed", 2)
    results = {"a": wait.delay("k", tag="a", hold=True)}
    lab.journal.wait_for("start", tag="a")
    for number, tag in enumerate(("b", "c"), 1):
        results[tag] = wait.delay("k", tag=tag, hold=True)
        if has_line:
            eventually(lambda: wait.lock_state("k").waiting == number, "one more in line")  # noqa: B023
        else:
            doomed.wait_for_log(f"[{results[tag].id}] rescheduled")
    lab.start_worker("other", 2)
    is_kept = has_line or broker not in REDELIVER_NOTHING
    if is_kept:
        doomed.kill()
        (cut_off,) = lab.journal.events("start", tag="a")
        lab.journal.write("end", **{name: cut_off[name] for name in ("pid", "id", "tag")})
    lab.open("a", "b", "c")
    assert {tag: result.get(timeout=DEADLINE) for tag, result in results.items()} == {
        tag: tag for tag in "abc"
    }
    tags = lab.journal.tags("start")
    assert tags[0] == "a"
    assert sorted(tags) == ["a"] * is_kept + ["a", "b", "c"]
    assert lab.journal.most_open() == 1
    eventually(lambda: made.count() == 0, "an empty broker")
    eventually(lambda: wait.lock_state("k").holders == () and not wait.lock_state("k").waiting, "a free key")


@pytest.mark.promise(
    "With `memory://` as the broker two tasks wait in line in one process and run, in order and none "
    "beside another, with each store, and the queue is empty afterwards",
    broke="messages in line not published",
)
@pytest.mark.parametrize("store", large_but("redis", "sqlite", "memcached"))
def test_tasks_wait_in_line_in_a_worker_whose_broker_is_its_memory(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture, store: str
) -> None:
    caplog.set_level("INFO")
    app = memory_app("memory", exclusive_store=_url(request, store), exclusive_prefix=uuid())
    has_line, started, inside = store != "memcached", list[str](), list[str]()
    doors = {tag: threading.Event() for tag in "abc"}

    @app.task(shared=False, exclusive=Exclusive("key", on_conflict="wait" if has_line else "reschedule"))
    def hold(key: str, tag: str = "") -> str:
        started.append(tag)
        inside.append(tag)
        assert inside == [tag]
        assert doors[tag].wait(DEADLINE)
        inside.remove(tag)
        return tag

    with embedded(app, "threads", slots=2):
        results = [hold.delay("k", "a")]
        eventually(lambda: started == ["a"], "the holder")
        results += [hold.delay("k", tag) for tag in "bc"]
        says = "parked: " if has_line else "rescheduled"
        eventually(lambda: caplog.text.count(says) == len("bc"), "both, and that they have to wait")
        for tag in "abc":
            if has_line:  # one after the other, in order
                eventually(lambda tag=tag: started[-1] == tag, f"the start of {tag}")
            doors[tag].set()
        assert [result.get(timeout=DEADLINE) for result in results] == list("abc")
        eventually(lambda: not hold.lock_state("k").holders, "a free key")
    assert sorted(started) == list("abc")
    assert app.connection().default_channel._size(app.conf.task_default_queue) == 0
    disconnect(app)
    app.close()


@pytest.mark.promise(
    "A real worker with `redis+cluster://` or `sqla+oracle://` as its broker does not start, whichever of "
    "the eight stores it has, and says why",
    broke="the scheme not known: it waits for a Redis on localhost",
)
@pytest.mark.parametrize("store", large_but("redis", "sqlite"))
def test_a_worker_does_not_start_with_a_broker_that_is_not_proven_or_that_celery_would_not_reach(
    request: pytest.FixtureRequest, store: str
) -> None:
    url = _url(request, store)
    make_lab: Callable[..., Lab] = request.getfixturevalue("make_lab")
    lab = make_lab(module=SHOPS.get(store, "tests.worker.shop"), exclusive_prefix=uuid(), exclusive_store=url)
    for broker, why in REFUSED.items():
        refused = lab.start_worker("refused", 1, ready=False, broker_url=broker)
        assert refused.process.wait(60) == 1
        assert f"broker_url: {why}" in refused.log
        assert "Connected to" not in refused.log


@pytest.mark.proves("unproven brokers")
def test_a_worker_starts_with_a_broker_that_is_accepted_and_says_what_is_not_proven(
    make_lab: Callable[..., Lab], redis_url: str
) -> None:
    lab = make_lab(broker_transport_options={"visibility_timeout": 600})
    accepted = {"exclusive_unproven_broker": True, "imports": ["tests.worker.our_transport"]}
    worker = lab.start_worker("w1", 1, broker_url=redis_url.replace("redis:", "our:"), **accepted)
    says = (
        "broker_url: our:// is not proven with this library: no test has shown that waiting tasks come back"
    )
    assert says in worker.wait_for_log("exclusive_unproven_broker accepts it")
    assert lab.send("wait", "k", tag="a").get(timeout=DEADLINE) == "a"
    eventually(lambda: not lab.task("wait").lock_state("k").is_running, "a free key")


def _has_connected_again(worker: Worker) -> bool:
    return worker.log.count("Connected to ") > 1


def _url(request: pytest.FixtureRequest, store: str) -> str:
    if store == "sqlite":
        return f"sqlite:///{request.getfixturevalue('tmp_path')}/locks.db"
    if store == "django":
        request.getfixturevalue("django_database")
        return "django://default"
    if store == "sentinel":
        sentinel = request.getfixturevalue("start_sentinel")(request.getfixturevalue("start_redis")())
        return f"{sentinel.url}?master_name={sentinel.name}"
    if store == "cluster":
        return str(request.getfixturevalue("redis_cluster_url"))
    return str(request.getfixturevalue(f"{store}_url"))


@pytest.mark.promise(
    "A message that SQS or PGMQ redelivers is not skipped, though they only count deliveries (prefork, "
    "threads)",
    broke="red before: it was skipped, and lost",
)
@pytest.mark.parametrize(
    ("broker", "pool"),
    [
        pytest.param(broker, pool, marks=MARKS[broker], id=f"{broker}-{pool}")
        for broker, pool in (("sqs", "prefork"), ("sqs", "threads"), ("pgmq", "prefork"))
    ],
)
def test_a_task_that_is_redelivered_is_not_skipped_where_the_broker_only_counts_deliveries(
    request: pytest.FixtureRequest, make_lab: Callable[..., Lab], broker: str, pool: str
) -> None:
    settings = {**MAKE[broker](request).settings, **LATE, "exclusive_ttl": 2, "exclusive_recover": False}
    lab = make_lab(**settings)
    doomed = lab.start_worker("doomed", 1, worker_prefetch_multiplier=1)
    again = lab.send("skip", "k", tag="again", hold=True)
    lab.journal.wait_for("start", tag="again")
    doomed.kill()
    other = lab.start_worker("other", 2, pool=pool)
    eventually(lambda: not lab.task("skip").lock_state("k").is_running, "the end of the lease")
    lab.send("skip", "k", tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    other.wait_for_log("parked: ")
    lab.open("holder", "again")
    assert again.get(timeout=DEADLINE) == "again"
    assert lab.journal.tags("start") == ["again", "holder", "again"]


@pytest.mark.promise(
    "Through a failover of the Sentinel broker a running task keeps its key, those in line run in their "
    "order, and the new primary is empty afterwards",
    broke="waiting messages not republished",
)
def test_after_a_failover_of_the_broker_tasks_that_wait_run_and_a_running_one_keeps_its_key(
    make_lab: Callable[..., Lab], store: RedisServer
) -> None:
    with or_leave_out(lambda: Watched(down_after=3)) as watched:
        options = {**TIMEOUTS, "master_name": NAME, "socket_timeout": 5}
        url, _, _ = watched.url.partition("/0?")
        settings = {"broker_url": url, "broker_transport_options": options}
        lab = make_lab(**settings, exclusive_store=store.url, exclusive_ttl=TTL, exclusive_offer=90)
        workers = [lab.start_worker(queue, 1, options=("-Q", queue)) for queue in ("side", "lab")]
        results = [lab.send("wait", "k", tag="a", hold=True, options={"queue": "side"})]
        lab.journal.wait_for("start", tag="a")
        for tag in "bc":
            results.append(lab.send("wait", "k", tag=tag))
            lab.wait_for_line(len(results) - 1, "wait", "k")
        watched.catch_up()
        primary = watched.fail_over()
        for worker in workers:
            eventually(partial(_has_connected_again, worker), "the new primary")
        lab.assert_kept("wait", "k", renewals=2)
        lab.open("a")
        results.append(lab.send("wait", "k", tag="d"))
        assert [result.get(timeout=DEADLINE) for result in results] == list("abcd")
        assert lab.journal.tags("start") == list("abcd")
        eventually(lambda: _in_redis(primary.server.client()) == 0, "an empty broker")


@pytest.mark.promise(
    "Behind Sentinel a promoted message goes to the head of its queue",
    broke="it goes to the end",
)
@of_fast_part
def test_a_promoted_task_goes_to_the_head_of_a_queue_behind_sentinel(
    request: pytest.FixtureRequest, make_lab: Callable[..., Lab]
) -> None:
    made = _sentinel(request)
    lab = make_lab(worker_prefetch_multiplier=1, exclusive_offer=60, **made.settings)
    lab.start_worker("w1", 1, options=("-Q", "side"))
    lab.start_worker("w2", 1, options=("-Q", "lab"))
    lab.send("wait", "k", tag="holder", hold=True, options={"queue": "side"})
    lab.journal.wait_for("start", tag="holder")
    waiting = lab.send("wait", "k", tag="a")
    lab.wait_for_line(1, "wait", "k")
    lab.send("plain", tag="busy", hold=True)
    lab.journal.wait_for("start", tag="busy")
    for number in range(20):
        lab.send("plain", tag=f"{number}")
    lab.open("holder")
    lab.journal.wait_for("end", tag="holder")
    eventually(lambda: made.count() >= 20 + 1, "the promoted message")
    lab.open("busy")
    assert waiting.get(timeout=DEADLINE) == "a"
    lab.journal.wait_for("end", 20 + 3)
    tags = lab.journal.tags("start")
    assert tags.index("a") < tags.index("3")  # some are fetched already
