"""A Redis behind TLS: who gets in, what is said to who does not, and a publisher whose broker it is, too."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis
from celery import Celery

from celery_exclusive import Unique, install
from celery_exclusive.core.operations import Applied, Granted, Held
from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.stores.base import open_store
from celery_exclusive.stores.redis.store import RedisStore
from tests.cluster import RedisCluster, slot_of
from tests.conftest import or_leave_out
from tests.redis_tls import Certificates, RedisWithTls, SentinelWithTls
from tests.sentinel import SentinelServer
from tests.servers import RedisServer, wait_until
from tests.store.forks import in_a_fork
from tests.store.operations import give, take
from tests.worker.lab import disconnect

Start = Callable[..., RedisWithTls]
CLIENT = "name a certificate that it accepts, and its key, as ssl_certfile and ssl_keyfile in its URL"
LIMIT = 60
pytestmark = [
    pytest.mark.xdist_group("redis-tls"),  # one set of certificates for all of them
    pytest.mark.promise(
        "`rediss://` reaches a Redis with TLS: a known authority, and client certificates; dropped "
        "connections, forks; key and message in one call. Another host name, an expired certificate, an "
        "unknown authority, a client certificate that is missing, unknown or expired, files that are "
        "missing or do not fit, TLS to a port without it and the other way round: each says what to do, "
        "and none hangs",
        name="TLS",
        broke=(
            'before: all but the login was told as "does not answer; check that it runs"; a key without '
            "its certificate was a TypeError. No name compared; no timeout in the handshake"
        ),
    ),
]


@pytest.fixture(scope="module")
def start(certificates: Certificates) -> Iterator[Start]:
    """Starts a server of each kind once."""
    started: dict[str, RedisWithTls] = {}
    with ExitStack() as servers:

        def start(**kind: Any) -> RedisWithTls:
            if str(kind) not in started:
                server = or_leave_out(lambda: RedisWithTls(certificates, **kind))
                started[str(kind)] = servers.enter_context(server)
            started[str(kind)].refresh()
            return started[str(kind)]

        yield start


def refusal(url: str) -> str:
    with closing(open_store(url)) as store, pytest.raises(StoreUnavailable) as refused:
        store.check()
    text = str(refused.value)
    assert text.isprintable()
    assert text.startswith(f"store {store.url}")
    return text


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
@pytest.mark.parametrize("asks", [False, True])
def test_a_client_that_knows_the_authority_and_is_known_to_it_gets_in(
    start: Start, certificates: Certificates, asks: bool, host: str
) -> None:
    server = start(asks=asks)
    url = server.url_with(certificates.options(client="client" if asks else None), host)
    with closing(open_store(url)) as store:
        store.check()
        assert isinstance(store.apply("key", take("a")).answer, Granted)
        assert store.apply("key", give("a")).answer == Applied(True)
    assert "/authority.crt" not in store.url


@pytest.mark.parametrize(
    ("kind", "authority", "host", "said"),
    [
        ({}, "stranger", "localhost", "ssl_ca_certs in its URL"),
        ({"shows": "elsewhere"}, "authority", "localhost", "write the host of its URL as its certificate"),
        ({"shows": "elsewhere"}, "authority", "127.0.0.1", "write the host of its URL as its certificate"),
        ({"shows": "expired"}, "authority", "localhost", "expired .*; renew its certificate"),
    ],
)
def test_a_server_that_cannot_prove_its_identity_is_refused(
    start: Start, certificates: Certificates, kind: dict[str, str], authority: str, host: str, said: str
) -> None:
    server = start(**kind)
    text = refusal(server.url_with(certificates.options(authority), host))
    assert re.search(said, text)
    assert "does not answer" not in text
    unchecked = certificates.options("stranger").replace("required", "none")
    with closing(open_store(server.url_with(unchecked, host))) as store:
        store.check()


@pytest.mark.promise(
    "The oldest version of TLS, ciphers and an authority given as text count; an `ssl_` option that is not "
    "known is refused with the one that was meant",
    name="TLS options",
    broke="red before: all four were ignored",
)
def test_a_client_that_insists_on_a_newer_version_of_tls_does_not_get_in(
    start: Start, certificates: Certificates
) -> None:
    url = start(speaks="TLSv1.2").url_with(certificates.options())
    with closing(open_store(url)) as store:
        store.check()
    assert "TLSV1_ALERT_PROTOCOL_VERSION" in refusal(f"{url}&ssl_min_version=TLSv1_3")


@pytest.mark.proves("TLS options")
def test_a_client_that_has_no_cipher_in_common_with_the_server_does_not_get_in(
    start: Start, certificates: Certificates
) -> None:
    url = start(speaks="TLSv1.2").url_with(certificates.options())
    with closing(open_store(f"{url}&ssl_ciphers=ECDHE-ECDSA-AES128-GCM-SHA256")) as store:
        store.check()
    assert "HANDSHAKE_FAILURE" in refusal(f"{url}&ssl_ciphers=ECDHE-RSA-AES128-GCM-SHA256")


@pytest.mark.proves("TLS options")
def test_the_authority_may_be_given_as_text(start: Start, certificates: Certificates) -> None:
    authority = Path(certificates.path("authority.crt")).read_text()
    with closing(open_store(start().url_with(f"ssl_ca_data={quote(authority)}"))) as store:
        store.check()


@pytest.mark.parametrize("client", [None, "unknown", "expired"])
def test_a_client_without_a_certificate_that_the_server_accepts_is_told_to_name_one(
    start: Start, certificates: Certificates, client: str | None
) -> None:
    url = start(asks=True).url_with(certificates.options(client=client))
    assert refusal(url).endswith(CLIENT)
    assert refusal(url.replace("//", "//:hunter2@")).endswith(CLIENT)


@pytest.mark.parametrize(
    "files",
    [
        "ssl_ca_certs=/not/here",
        "ssl_ca_certs={folder}/configuration",
        "ssl_certfile={folder}/client.crt&ssl_keyfile={folder}/server.key",
        "ssl_certfile={folder}/client.crt",
    ],
)
def test_files_that_are_missing_or_do_not_fit_are_named_by_their_options(
    start: Start, certificates: Certificates, files: str
) -> None:
    named = files.format(folder=certificates.folder)
    text = refusal(start().url_with(named))
    assert text.endswith(
        "correct the files that ssl_ca_certs, ssl_certfile and ssl_keyfile of its URL name, and ssl_password "
        "if its key has one"
    )


def test_a_client_without_tls_is_told_to_use_it(start: Start) -> None:
    port = start().port
    for login in ("", ":hunter2@"):
        text = refusal(f"redis://{login}localhost:{port}/0")
        assert text.endswith("if it speaks TLS, begin its URL with rediss://")


def test_a_client_with_tls_does_not_hang_at_a_server_without(redis_server: RedisServer) -> None:
    text = refusal(f"rediss://localhost:{redis_server.port}/0?socket_timeout=0.3")
    assert "imeout" in text
    assert "that this port speaks TLS" in text


def test_a_dropped_connection_is_made_anew_and_a_child_has_one_of_its_own(
    start: Start, certificates: Certificates
) -> None:
    server = start()
    with closing(open_store(server.url_with(certificates.options()))) as store:
        granted = store.apply("key", take("a")).answer
        with server.client() as redis:
            redis.client_kill_filter(_type="normal", skipme=True)
        assert store.apply("key", take("a")).answer == granted
        assert in_a_fork(lambda: store.apply("key", take("a")).answer == granted)
        assert store.apply("key", give("a")).answer == Applied(True)
        server.restart(keep_data=False)
        assert isinstance(store.apply("key", take("b")).answer, Granted)


@pytest.fixture
def make_app() -> Iterator[Callable[..., Celery]]:
    with ExitStack() as apps:

        def make(url: str, **conf: Any) -> Celery:
            app = install(Celery("behind tls", broker=url, set_as_current=False))
            app.conf.update(conf)

            @app.task(name="load", shared=False, unique=Unique("url"))
            def load(url: str) -> None: ...

            app.finalize()
            apps.callback(app.close)
            apps.callback(disconnect, app)
            return app

        yield make


@pytest.mark.proves("TLS of Celery's settings")
@pytest.mark.parametrize("said_by", ["url", "settings"])
def test_a_publisher_finds_its_store_behind_the_tls_of_its_broker_and_pushes_in_one_call(
    start: Start,
    certificates: Certificates,
    make_app: Callable[..., Celery],
    monkeypatch: pytest.MonkeyPatch,
    said_by: str,
) -> None:
    server, path = start(asks=True), certificates.path
    files = {"ca_certs": "authority.crt", "certfile": "client.crt", "keyfile": "client.key"}
    said: dict[str, Any] = {f"ssl_{name}": path(file) for name, file in files.items()}
    if said_by == "url":
        app = make_app(server.url_with(certificates.options(client="client")))
    else:
        said["ssl_cert_reqs"] = ssl.CERT_REQUIRED
        app = make_app(f"redis://localhost:{server.port}/0", broker_use_ssl=said)
    pushes: list[Any] = []
    push = RedisStore.acquire_and_push
    monkeypatch.setattr(
        RedisStore, "acquire_and_push", lambda *args: pushes.append(push(*args)) or pushes[-1]
    )
    results = [app.tasks["load"].delay("a") for _ in range(2)]
    assert [result.outcome for result in results] == ["published", "skipped"]
    assert [type(reply.answer) for reply in pushes] == [Granted, Held]
    with server.client() as redis:
        assert redis.llen("celery") == 1


def test_a_path_with_special_characters_is_found(
    start: Start, certificates: Certificates, tmp_path: Path
) -> None:
    odd = tmp_path / "ä &=?#.crt"
    odd.write_bytes(Path(certificates.path("authority.crt")).read_bytes())
    with closing(open_store(start().url_with(f"ssl_ca_certs={quote(str(odd))}"))) as store:
        store.check()


@pytest.mark.promise(
    "Servers behind Sentinel, and the sentinels, all with TLS: a failover is followed; `broker_use_ssl` "
    "counts for the servers; each refusal says what to correct there",
    name="sentinel with TLS",
    broke="red before: refused. The servers without TLS although options are given; settings left out",
)
def test_servers_behind_a_sentinel_are_followed_from_one_to_the_next_all_with_tls(
    certificates: Certificates,
) -> None:
    with ExitStack() as servers:
        first, second = (servers.enter_context(RedisWithTls(certificates)) for _ in range(2))
        with second.client() as client:
            client.replicaof("127.0.0.1", str(first.port))
        quick = {"down-after-milliseconds": "500", "failover-timeout": "1500"}
        sentinel = servers.enter_context(SentinelWithTls(certificates, first.port, **quick))
        to_sentinel = quote(json.dumps({"ssl": True, "ssl_ca_certs": certificates.path("authority.crt")}))
        url = f"{sentinel.url}?master_name={sentinel.name}&sentinel_kwargs={to_sentinel}"
        with sentinel.client() as client:
            wait_until(lambda: is_followed(client), "the replica", LIMIT)
            with closing(open_store(f"{url}&replicas=1&{certificates.options()}")) as store:
                store.check()
                assert isinstance(store.apply("key", take("a")).answer, Granted)
                first.kill()
                wait_until(lambda: primary(client) == second.port, "the failover", LIMIT)
                assert store.apply("key", give("a")).answer == Applied(True)
        assert "ssl_ca_certs in its URL" in refusal(f"{url}&{certificates.options('stranger')}")
        assert "if it speaks TLS, name the authority that issued its certificate" in refusal(url)


def is_followed(sentinel: redis.Redis) -> bool:
    replicas = sentinel.sentinel_slaves(SentinelWithTls.name)
    return [replica["master-link-status"] for replica in replicas] == ["ok"]


def primary(sentinel: redis.Redis) -> int:
    """The port of a primary that says itself that it is one."""
    state = sentinel.sentinel_master(SentinelWithTls.name)
    return int(state["port"]) if state["flags"] == "master" and state["role-reported"] == "master" else 0


@pytest.mark.promise(
    "`rediss+cluster://`: all nodes are reached with the certificates of the URL, a failover is followed, "
    "and each refusal says what to correct",
    broke="other nodes asked without the options",
)
@pytest.mark.large
def test_the_nodes_of_a_cluster_are_found_and_followed_with_tls(certificates: Certificates) -> None:
    options = certificates.options(client="client")
    made = partial(RedisWithTls, certificates, asks=True, **{"tls-cluster": "yes"})
    with or_leave_out(lambda: RedisCluster(made)) as cluster:
        url = f"rediss+cluster://localhost:{cluster.port}?{options}"
        slot = slot_of("key")
        with closing(open_store(f"{url}&socket_timeout={LIMIT}")) as store:
            store.check()
            epoch = store.epoch()
            assert isinstance(store.apply("key", take("a")).answer, Granted)
            cluster.promote_replica_of(cluster.owner(slot))
            assert store.apply("key", give("a")).answer == Applied(True)
            assert store.epoch() == epoch
        assert "ssl_ca_certs in its URL" in refusal(url.replace("authority.crt", "stranger.crt"))
        assert CLIENT in refusal(f"{url.partition('?')[0]}?{certificates.options()}")
        assert "begin its URL with rediss+cluster://" in refusal(f"redis+cluster://localhost:{cluster.port}")


@pytest.mark.proves("sentinel with TLS")
def test_a_refusal_behind_a_sentinel_says_what_to_correct_there(certificates: Certificates) -> None:
    with RedisWithTls(certificates, shows="elsewhere") as server, SentinelServer(server.port) as sentinel:
        url = f"{sentinel.url}?master_name={sentinel.name}&{certificates.options()}"
        assert "the address that the sentinels announce, or let them announce its name" in refusal(url)
