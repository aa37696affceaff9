"""The smallest Redis user of security.md can do all that a store has to do, and needs all its rights."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner

from celery_exclusive import Exclusive, install
from celery_exclusive.cli.locks import locks
from celery_exclusive.core.operations import (
    Acquire,
    AcquireAlone,
    Applied,
    ForceRelease,
    Granted,
    Held,
    Parked,
    Release,
    Remove,
    Renew,
    Restore,
)
from celery_exclusive.core.records import SECOND
from celery_exclusive.errors import StoreUnavailable, docs_page
from celery_exclusive.stores.base import Reply, Store, open_store
from celery_exclusive.stores.redis import server_facts
from celery_exclusive.stores.workers import WorkerRecord
from tests.conftest import or_leave_out
from tests.redis_tls import DebianRedis
from tests.sentinel import SentinelServer
from tests.servers import RedisServer, wait_until
from tests.worker.journal import eventually

(LINE,) = re.findall(
    r"^ACL SETUSER .*", (Path(__file__).parents[2] / "docs/how-to/security.md").read_text(), re.MULTILINE
)
PAGE = re.escape(docs_page("how-to/security"))
COMMANDS = re.findall(r"\+(\S+)", LINE)
LONG, SHORT = 60 * SECOND, SECOND // 10
WORKER = WorkerRecord(1, "celery@web1", 4711, "web1", "0.1.0", 1_800_000_000)
pytestmark = pytest.mark.xdist_group("redis-user")  # one server for all of them


@pytest.fixture(scope="module", params=[RedisServer, DebianRedis], ids=["usual", "debian"])
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with or_leave_out(request.param) as server:
        yield server


def store_of_user(server: RedisServer, line: str, url: str = "", **options: Any) -> Store:
    """The store as this user sees it, on an empty server."""
    with server.client() as client:
        client.flushall()
        client.script_flush()
        client.execute_command(line)
    return open_store(url or url_of_user(server), offer=0.002, **options)


def url_of_user(server: RedisServer) -> str:
    return server.url.replace("redis://", "redis://locks:PASSWORD@")


def acquire(store: Store, id: str, ttl: int = LONG, **more: Any) -> Reply:
    return store.apply("x:k", Acquire(id, "t", ttl, message=f"message of {id}".encode(), **more))


def live(store: Store) -> None:
    """All that a store is asked for, from the start of a worker on."""
    assert store.keep_namespace("broker", LONG, WORKER) == "broker"
    assert store.workers() == {1: [WORKER]}
    assert store.messages_of([("x:k", "a/1")]) == [b""]
    store.check()
    assert store.epoch()
    assert isinstance(store.apply("x:quick", Acquire("a/1", "t", LONG)).answer, Granted)
    assert store.renew([("x:quick", Renew("a/1", "t", 2 * LONG))]) == [True]
    assert store.apply("x:quick", Release("a/1", "t", ending="open")).answer == Applied(True)
    assert isinstance(store.apply("x:three", Acquire("a/1", "t", LONG, limit=3)).answer, Granted)
    assert isinstance(store.apply("x:three", Acquire("b/1", "t", LONG, limit=3)).answer, Granted)
    assert store.apply("x:three", Release("b/1", "t")).answer == Applied(True)
    assert isinstance(store.apply("u:k", AcquireAlone("a/1", "t", LONG, phase="queued")).answer, Granted)
    assert isinstance(store.apply("u:k", AcquireAlone("b/1", "t", LONG)).answer, Held)
    assert store.apply("u:k", ForceRelease("a/1")).answer == Applied(True)
    assert store.apply("x:restored", Restore("a/1", "t", LONG)).answer == Applied(True)
    for id in ("a/1", "b/1"):
        of_part = Acquire(id, "t", LONG, limit=2, message=b"message", part="acme", part_limit=1)
        store.apply("x:parts", of_part)
    assert [part.shut for part in store.parts("x:parts")] == [1]
    assert [place.waiting.is_shut for place in store.line("x:parts").places] == [True]
    wait_in_line(store)
    step_aside(store)
    assert sorted(store.scan()) == ["x:k", "x:parts", "x:restored", "x:three"]
    assert store.inspect("x:k").aside + store.inspect("x:k").waiting >= 1
    assert store.line("x:k").places


def wait_in_line(store: Store) -> None:
    acquire(store, "holder/1")
    for number in range(1, 7):
        assert (
            acquire(store, f"{number}/1").answer == Parked(number, by=store.inspect("x:k").holders) or number
        )
    assert isinstance(
        acquire(store, "6/1", redelivered=True).answer, Parked
    )  # further down than a step looks
    assert isinstance(acquire(store, "holder/1", redelivered=True, ttl=LONG).answer, Granted)
    other = Acquire("holder/1", "other delivery", LONG, redelivered=True, message=b"its copy")
    assert isinstance(store.apply("x:k", other).answer, Parked)
    for number in range(2, 7):
        assert store.apply("x:k", Remove(f"{number}/1")).answer == Applied(True)
    reply = store.apply("x:k", Release("holder/1", "t"))
    assert [wake.id for wake in reply.wake] == ["1/1"]
    assert isinstance(acquire(store, "1/1", redelivered=True, ttl=SHORT, acks_late=True).answer, Granted)


def step_aside(store: Store) -> None:
    """The lease of a dead holder ends, and nobody takes the offers of the next in line."""
    acquire(store, "last/1")
    eventually(lambda: store.reap().aside, "one who stepped aside")


@pytest.mark.promise(
    "The Redis user of security.md is enough, and the smallest that is, on Valkey and on Redis 7.0. "
    "An error about a missing right names the command or the keys, and what to grant",
    name="smallest Redis user",
    broke=(
        "a command more than needed (HGET); red before on Redis 7.0: a right or a password that is missing "
        'was "refused; read its log"'
    ),
)
def test_the_smallest_user_can_do_all_that_a_store_has_to_do(server: RedisServer) -> None:
    store = store_of_user(server, LINE)
    live(store)
    store.close()


@pytest.mark.proves("smallest Redis user")
@pytest.mark.parametrize("command", COMMANDS)
def test_without_any_one_of_its_commands_something_fails(server: RedisServer, command: str) -> None:
    store = store_of_user(server, re.sub(rf"\+{command}(?= |$)", "", LINE))
    with pytest.raises(StoreUnavailable, match=PAGE) as refused:
        live(store)
    text = str(refused.value)
    assert text.endswith((f": ACL SETUSER locks +{command}", "ACL LOG shows which one is missing"))
    assert "does not answer" not in text
    store.close()


@pytest.fixture
def behind_sentinel(
    server: RedisServer, start_sentinel: Callable[[RedisServer], SentinelServer]
) -> tuple[str, str]:
    sentinel = start_sentinel(server)
    return "role", f"sentinel://locks:PASSWORD@127.0.0.1:{sentinel.port}/0?master_name={sentinel.name}"


@pytest.fixture
def in_another_database(server: RedisServer) -> tuple[str, str]:
    return "select", url_of_user(server).replace("/0", "/1")


@pytest.fixture
def with_a_replica(server: RedisServer, start_redis: Callable[..., RedisServer]) -> tuple[str, str]:
    with server.client() as client:
        client.config_set("repl-diskless-sync-delay", 0)
        start_redis(program=server._program, env=server._env, replicaof=f"127.0.0.1 {server.port}")
        wait_until(lambda: client.wait(1, 100) == 1, "the replica", 60)
    return "wait", f"{url_of_user(server)}?replicas=1"


@pytest.mark.promise(
    "The smallest Redis user needs `+role` behind Sentinel, `+select` for another database than 0, and "
    "`+wait` for `?replicas=`, and nothing else there, on both servers; without it no worker starts, and the "
    "error names it",
    broke=(
        "red before: a worker without `+wait` started, and none of its tasks could begin; without `+select` "
        "the server did not answer. An error that names no command"
    ),
)
@pytest.mark.parametrize("shape", ["behind_sentinel", "in_another_database", "with_a_replica"])
def test_the_smallest_user_needs_one_right_more_behind_sentinel_elsewhere_and_for_replicas(
    server: RedisServer, request: pytest.FixtureRequest, shape: str
) -> None:
    right, url = request.getfixturevalue(shape)
    store = store_of_user(server, LINE, url=url)
    for use in (store.check, lambda: acquire(store, "a/1")):
        with pytest.raises(StoreUnavailable, match=rf"{PAGE} .*: ACL SETUSER locks \+{right}$"):
            use()
    store.close()
    store = store_of_user(server, f"{LINE} +{right}", url=url)
    live(store)
    store.close()


@pytest.mark.proves("smallest Redis user")
def test_a_missing_password_is_told_as_that(server: RedisServer) -> None:
    with server.client() as client:
        client.config_set("requirepass", "secret")
        store = open_store(server.url)
        with pytest.raises(StoreUnavailable, match=r"correct user and password in its URL$"):
            acquire(store, "a/1")
        store.close()
        client.config_set("requirepass", "")


@pytest.mark.proves("smallest Redis user")
def test_the_smallest_user_can_neither_read_nor_write_other_keys(server: RedisServer) -> None:
    store = store_of_user(server, LINE, prefix="other")
    with pytest.raises(
        StoreUnavailable, match=r"NOPERM.*the keys of exclusive_prefix.*SETUSER locks ~cx2:\*"
    ):
        store.apply("x:k", Acquire("a/1", "t", LONG))
    with pytest.raises(StoreUnavailable, match="NOPERM"):
        store.epoch()
    store.close()


@pytest.mark.promise(
    "A server that denies CONFIG and INFO, or tells less of itself, is checked, and only what is seen is "
    "warned of",
    name="silent server facts",
    broke="red before: without INFO no worker started",
)
@pytest.mark.parametrize("rights", ["", " +info"])
def test_a_server_that_does_not_tell_of_itself_is_warned_of_nothing_that_is_not_seen(
    server: RedisServer, rights: str
) -> None:
    store = store_of_user(server, LINE + rights)
    with server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.config_set("maxmemory", 100_000_000)
        warnings = store.check()
        client.config_set("maxmemory", 0)
    store.close()
    assert ["maxmemory-policy" in warning for warning in warnings] == ([True] if rights else [])


@pytest.mark.proves("silent server facts")
def test_a_server_with_fewer_facts_about_itself_is_none_the_worse(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of_user(server, LINE)
    monkeypatch.setattr(server_facts, "_ask_if_allowed", lambda *_: b"# Server\r\nredis_version:7.0\r\n")
    assert store.check() == []
    store.close()


@pytest.mark.proves("smallest Redis user")
def test_the_command_locks_lists_and_releases_as_the_smallest_user(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    store_of_user(server, LINE).close()
    app = install(Celery("small", broker="memory://", set_as_current=False))
    app.conf.update(exclusive_store=url_of_user(server))
    app.task(name="load", shared=False, exclusive=Exclusive())(len)
    store = app._celery_exclusive.store  # type: ignore[attr-defined]
    store.apply("x:load", Acquire("a/1", "t", LONG))

    def run(*words: str) -> Any:
        return CliRunner().invoke(locks, words, obj=CLIContext(app=app, no_color=True, workdir=None))

    assert "x:load" in run("ls").stdout
    assert run("release", "x:load", "--force", "--reason", "a test").exit_code == 0
    assert run("ls").stdout == ""
    store.close()
    app.close()
