"""A store behind real sentinels: its verbs in the middle of a failover, and what that loses and keeps."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from threading import Event
from typing import Any, TypeVar
from urllib.parse import quote

import pytest
from celery import Celery

from celery_exclusive import install
from celery_exclusive import lock as lock_
from celery_exclusive.core.operations import (
    AcquireAlone,
    Applied,
    Enqueue,
    ForceRelease,
    GiveUp,
    Granted,
    Held,
    Parked,
    Remove,
    Renew,
    Requeue,
    Restore,
)
from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.stores.base import Store, open_store
from celery_exclusive.stores.redis.sentinel import Sentinels
from tests.conftest import or_leave_out
from tests.failover import NAME, Watched
from tests.leases import is_lost
from tests.servers import RedisServer, wait_until
from tests.store.operations import LIFE, give, take

T = TypeVar("T")
LIMIT = 60
pytestmark = [pytest.mark.xdist_group("sentinel")]  # one set of servers for all


@pytest.fixture(scope="module")
def servers() -> Iterator[Watched]:
    with or_leave_out(Watched) as watched:
        yield watched


@pytest.fixture
def watched(servers: Watched) -> Watched:
    """Servers that are up, in sync and empty."""
    servers.repair()
    with servers.primary.server.client() as client:
        client.flushall()
        client.config_set("min-replicas-to-write", 0)
    return servers


@pytest.fixture
def store(watched: Watched) -> Iterator[Store]:
    with closing(open_store(watched.url)) as opened:
        yield opened


@pytest.fixture
def app_on() -> Iterator[Callable[[str], Any]]:
    """Makes an app with its locks in this store."""
    apps: list[Any] = []

    def make(url: str) -> Any:
        apps.append(install(Celery("locks", broker="memory://", set_as_current=False)))
        apps[-1].conf.update(exclusive_store=url)
        return apps[-1]

    yield make
    for app in apps:
        app._celery_exclusive.store.close()
        app.close()


def insist(ask: Callable[[], T]) -> T:
    """Ask until the store answers, as a worker does."""
    deadline = time.monotonic() + LIMIT
    while True:
        try:
            return ask()
        except StoreUnavailable:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def fence_of(store: Store, key: str, id: str = "a") -> int:
    answer = insist(lambda: store.apply(key, take(id, message=None))).answer
    assert isinstance(answer, Granted)
    return answer.fence


@pytest.mark.promise(
    "A Redis behind three sentinels: each verb whose request is under way when the primary dies, is "
    "silent, or steps down in order is done by the next primary; no call stays at a dead or silent address",
    name="sentinel failover",
    broke="an address that is kept; the first sentinel alone asked; a replica that is used",
)
@pytest.mark.parametrize("how", ["killed", "silent", "in order"])
def test_each_verb_in_the_middle_of_a_failover_is_done_by_the_new_primary(
    watched: Watched, store: Store, how: str
) -> None:
    def answer(key: str, operation: Any) -> Callable[[], Any]:
        return lambda: store.apply(key, operation).answer

    verbs: dict[str, tuple[Callable[[], Any], Any]] = {
        "k-acquire": (answer("k-acquire", take("a")), Granted),
        "k-park": (answer("k-park", take("b")), Parked),
        "k-alone": (answer("k-alone", AcquireAlone("a", "t", LIFE, phase="queued")), Granted),
        "k-enqueue": (answer("k-enqueue", Enqueue("b", b"message")), Parked),
        "k-release": (answer("k-release", give("a")), Applied(True)),
        "k-requeue": (answer("k-requeue", Requeue("a", "token of a", LIFE)), Applied(True)),
        "k-remove": (answer("k-remove", Remove("b")), Applied(True)),
        "k-give-up": (answer("k-give-up", GiveUp("b")), Applied(True)),
        "k-force": (answer("k-force", ForceRelease("a")), Applied(True)),
        "k-restore": (answer("k-restore", Restore("a", "t", LIFE)), Applied(True)),
        "k-renew": (lambda: store.renew([("k-renew", Renew("a", "token of a", LIFE))]), [True]),
        "k-inspect": (lambda: len(store.inspect("k-inspect").holders), 1),
        "\nreap": (lambda: store.reap().answer, Applied(True)),
        "\nSCAN": (lambda: "k-renew" in list(store.scan()), True),
        "\nGET": (store.epoch, store.epoch()),
        "k-broker": (lambda: store.keep_namespace("k-broker", LIFE), "k-broker"),
    }
    for name in ("park", "enqueue", "release", "requeue", "remove", "force", "renew", "inspect"):
        fence_of(store, f"k-{name}")
    store.apply("k-remove", take("b"))
    watched.catch_up()
    network = watched.primary.network
    with ThreadPoolExecutor(len(verbs)) as pool:
        asked = {}
        for number, (word, (ask, _)) in enumerate(verbs.items(), 1):
            network.withhold(word.encode())
            asked[word] = pool.submit(insist, ask)
            wait_until(lambda number=number: len(network.met) == number, f"the request {word}", LIMIT)  # type: ignore[misc]
        network.withhold(b"EVAL", 1000)  # what the old primary grants from now on is lost with it
        watched.fail_over(how)
        answers = {word: future.result() for word, future in asked.items()}
    network.met.clear()
    for word, (_, expected) in verbs.items():
        found = answers[word]
        assert isinstance(found, expected) if isinstance(expected, type) else found == expected, (
            word,
            answers,
        )
    assert isinstance(store.apply("k-acquire", take("b", message=None)).answer, Held)
    assert [wake.id for wake in store.apply("k-park", give("a")).wake] == ["b"]


@pytest.mark.proves("sentinel failover")
def test_no_call_stays_at_a_dead_or_silent_address(watched: Watched, store: Store) -> None:
    fence_of(store, "key")
    watched.catch_up()
    before = watched.primary
    before.server.pause()  # it holds its connections open, as behind a network that is gone
    watched.wait_for_another_primary(before)
    began = time.monotonic()
    with suppress(StoreUnavailable):
        store.inspect("key")  # its timeout is 5 s
    assert isinstance(store.apply("key", take("b", message=None)).answer, Held)
    assert time.monotonic() - began < LIMIT
    with watched.primary.server.client() as client:  # on a busy machine there may have been a third one
        client.set("here", 1)
    before.server.resume()
    wait_until(lambda: before in watched.replicas and before.offset() > 0, "the old primary to follow", LIMIT)
    assert isinstance(store.apply("key", take("b", message=None)).answer, Held)


@pytest.mark.promise(
    "Data that a replica behind lacks after a failover are noticed, leases are restored, fences grow; a "
    "failover without a loss changes nothing",
    name="lagging replica",
    broke="fences that are not told",
)
def test_locks_that_a_lagging_replica_does_not_have_are_noticed_and_restored(
    watched: Watched, store: Store, app_on: Callable[[str], Any]
) -> None:
    app = app_on(watched.url)
    kept, free, taken = (lock_(name, app=app, ttl=60, wait=0) for name in ("kept", "free", "taken"))
    assert kept.acquire()
    epoch = store.epoch()
    watched.catch_up()
    watched.primary.server.stop_replication()
    assert free.acquire()
    assert taken.acquire()
    assert isinstance(store.apply(kept.lease.key, take("lost")).answer, Parked)
    watched.fail_over()
    with closing(open_store(watched.url)) as newcomer:
        assert fence_of(newcomer, taken.lease.key, "newcomer") > taken.lease.fence
        assert newcomer.epoch() == epoch
        insist(kept.lease.check)
        assert newcomer.epoch() != epoch
        assert newcomer.inspect(kept.lease.key).waiting == 0
    free.lease.check()
    assert free.locked()
    assert is_lost(taken.lease)
    assert fence_of(store, "another") > max(lock.lease.fence for lock in (kept, free, taken))
    for each in (kept, free, taken):
        each.release()


@pytest.mark.proves("lagging replica")
def test_a_failover_that_loses_nothing_is_no_loss(watched: Watched, store: Store) -> None:
    fence, epoch = fence_of(store, "key"), store.epoch()
    watched.catch_up()
    watched.fail_over()
    assert insist(lambda: store.apply("key", take("a"))).answer == Granted(fence)
    assert store.epoch() == epoch
    assert fence_of(store, "another") > fence


@pytest.mark.promise(
    "A primary behind a partition refuses its clients with `min-replicas-to-write` and with `replicas=1`, "
    "and its holder is told",
    broke="a client that follows the failover too late is not told",
)
@pytest.mark.parametrize(
    ("least", "query", "refused"),
    [
        (1, "", r"NOREPLICAS.*; fewer replicas follow it"),
        (0, "?replicas=1&socket_timeout=1", r"0 of 1 replicas confirmed it"),
    ],
    ids=["min-replicas-to-write", "replicas"],
)
def test_the_former_primary_behind_a_partition_loses(
    watched: Watched, store: Store, app_on: Callable[[str], Any], least: int, query: str, refused: str
) -> None:
    """Its clients reach it still. They are refused when its replicas are gone."""
    old = watched.primary
    with old.server.client() as client:
        client.config_set("min-replicas-to-write", least)
        client.config_set("min-replicas-max-lag", 1)
    app = app_on(f"{old.server.url}{query}")  # on its side
    near = app._celery_exclusive.store
    mine = lock_("key", app=app, ttl=3, wait=0)
    assert mine.acquire()
    watched.catch_up()
    old.network.cut()
    watched.wait_for_another_primary(old)
    wait_until(lambda: is_lost(mine.lease), "the holder to be told", LIMIT)
    with pytest.raises(StoreUnavailable, match=refused):
        near.apply("another", take("a"))
    wait_until(
        lambda: isinstance(insist(lambda: store.apply(mine.lease.key, take("b"))).answer, Granted),
        "the expiry of its lease at the new primary",
        LIMIT,
    )
    old.network.restore()
    wait_until(lambda: old.offset() > 0 and old is not watched.primary, "the old primary to follow", LIMIT)
    wait_until(lambda: _is_replica(near), "the old primary to be a replica", LIMIT)
    assert [owner.id for owner in store.inspect(mine.lease.key).holders] == ["b"]
    mine.release()


def _is_replica(store: Store) -> bool:
    with pytest.raises(StoreUnavailable) as refused:
        store.apply("key", take("a"))
    return "READONLY" in str(refused.value)


@pytest.mark.promise(
    "With `replicas=` of all replicas no lease that was granted is lost by a failover; one that too few "
    "confirm is refused, and a `lock()` holds nothing",
    name="replicas confirm",
    broke=(
        "the number of replicas not compared; what is refused is not released; renewals that are not "
        "confirmed"
    ),
)
def test_with_all_replicas_in_the_url_no_lease_that_was_granted_is_lost(watched: Watched) -> None:
    """A sentinel passes over a replica that has been silent, whatever that has confirmed."""
    granted: list[str] = []
    refused: list[StoreUnavailable] = []
    before, is_over = watched.primary, Event()
    with (
        closing(open_store(f"{watched.url}&replicas=2&socket_timeout=1")) as store,
        ThreadPoolExecutor(1) as pool,
    ):

        def work() -> None:
            for number in range(100_000):
                try:
                    store.apply(f"key {number}", take("a"))
                except StoreUnavailable as error:
                    refused.append(error)
                else:
                    granted.append(f"key {number}")
                if is_over.is_set():
                    return

        working = pool.submit(work)
        wait_until(lambda: len(granted) > 50, "some leases", LIMIT)
        before.server.stop_replication()
        wait_until(lambda: bool(refused) or len(granted) > 1000, "a refusal", LIMIT)
        before.server.kill()
        watched.wait_for_another_primary(before)
        is_over.set()
        working.result(LIMIT)
    with closing(open_store(watched.url)) as store:
        lost = set(granted) - set(insist(lambda: list(store.scan("key "))))
        assert len(lost) == 0


@pytest.mark.promise(
    "A request that replicas do not confirm leaves the leases that were there; what `lock()` had just "
    "acquired is released",
    broke="red before: a repeated request released the lease",
)
@pytest.mark.proves("replicas confirm")
def test_a_lease_that_too_few_replicas_confirm_is_refused_and_not_held(
    watched: Watched, app_on: Callable[[str], Any]
) -> None:
    app = app_on(f"{watched.url}&replicas=2&socket_timeout=1")
    store = app._celery_exclusive.store
    fence_of(store, "held")
    assert not [text for text in store.check() if "replicas=" in text]
    watched.replicas[0].server.pause()
    refused = (
        r"store sentinel://.* 1 of 2 replicas confirmed it within 500 ms; look for the replicas, or lower"
    )
    with pytest.raises(StoreUnavailable, match=refused):
        lock_("free", app=app, wait=0).acquire()
    with pytest.raises(StoreUnavailable, match=refused):
        store.apply("held", take("b"))
    with pytest.raises(StoreUnavailable, match=refused):
        store.apply("held", take("a"))  # a repetition, which leaves the lease as it is
    with pytest.raises(StoreUnavailable, match=refused):
        store.renew([("held", Renew("a", "token of a", LIFE))])
    assert store.inspect("x=free").holders == ()
    assert store.apply("held", give("a")).answer == Applied(True)


@pytest.mark.promise(
    "A worker warns at its start of a server with fewer replicas than have to confirm; a misspelt "
    "`replicas` or timeout of a URL is refused",
    name="replicas in the URL",
    broke="`?replica=1` accepted without a word",
)
def test_a_starting_worker_warns_of_a_server_with_fewer_replicas_than_have_to_confirm(
    watched: Watched,
) -> None:
    with closing(open_store(f"{watched.url}&replicas=3")) as store:
        (warning,) = (text for text in store.check() if "replicas=" in text)
    assert "replicas=3 of its URL have to confirm each lease, and 2 follow it: no lease is granted" in warning


@pytest.mark.promise(
    "With `replicas=` a renewal that prolongs nothing, since a clock was set back, is confirmed by "
    "replicas, too",
    broke=(
        "red before: it wrote nothing, and `WAIT` on a connection that has written nothing counts replicas "
        "that stand still"
    ),
)
def test_a_renewal_that_prolongs_nothing_is_confirmed_by_replicas_too(watched: Watched) -> None:
    url = f"{watched.url}&replicas=1&socket_timeout=1"
    with closing(open_store(url)) as store, closing(open_store(url)) as other:
        store.clock = other.clock = lambda: LIFE
        store.apply("key", take("a"))
        other.clock = lambda: LIFE - 1  # set back
        renewal = Renew("a", "token of a", LIFE)
        assert other.renew([("key", renewal)]) == [True]
        assert store.inspect("key").holders[0].remaining == LIFE
        other.close()  # a connection that has written nothing
        for replica in watched.replicas:
            replica.server.pause()
        with pytest.raises(StoreUnavailable, match="0 of 1 replicas confirmed it"):
            other.renew([("key", renewal)])


@pytest.mark.promise(
    "URLs, `master_name`, `min_other_sentinels` and `sentinel_kwargs` of Sentinel are read as in Celery; "
    "what is wrong, or unknown, is said with the fix, and without passwords",
    name="sentinel settings",
    broke="an unknown option of `sentinel_kwargs` let through; `min_other_sentinels` not heeded",
)
def test_a_login_at_servers_and_sentinels_is_used(watched: Watched) -> None:
    for node in watched.nodes:
        with node.server.client() as client:
            client.execute_command("ACL", "SETUSER", "locks", "on", ">se/cret", "~*", "+@all")
    for sentinel in watched.sentinels:
        with sentinel.client() as client:
            client.execute_command("ACL", "SETUSER", "asker", "on", ">other", "+@all")
    url = watched.url.replace("sentinel://", "sentinel://locks:se%2Fcret@", 1)
    right, wrong = (
        f"{url}&sentinel_kwargs={quote(json.dumps({'username': 'asker', 'password': password}))}"
        for password in ("other", "hunter2")
    )
    with closing(open_store(right)) as store:
        fence_of(store, "key")
        assert "cret" not in store.url
    with closing(open_store(wrong)) as store, pytest.raises(StoreUnavailable) as refused:
        store.epoch()
    assert "correct hosts and ports, master_name and sentinel_kwargs" in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.proves("sentinel settings")
def test_an_unknown_or_silent_sentinel_is_reported_with_the_fix(watched: Watched) -> None:
    server = watched.nodes[0].server
    problems = {
        watched.url.replace(f"={NAME}", "=other"): "knows no 'other', .* knows no 'other'",
        f"sentinel://127.0.0.1:1/0?master_name={NAME}": r"127\.0\.0\.1:1 says .*refused",
        f"sentinel://127.0.0.1:{server.port}/0?master_name={NAME}": "says unknown command",
        f"{watched.url}&min_other_sentinels=7": "sees 2 other sentinels",
    }
    for url, problem in problems.items():
        with closing(open_store(url)) as store, pytest.raises(StoreUnavailable, match=problem) as refused:
            store.check()
        assert ".. Wait" not in str(refused.value)
        assert str(refused.value).endswith(
            "Wait until a failover is over, or correct hosts and ports, master_name and sentinel_kwargs"
        )
        assert str(refused.value).startswith(f"store {store.url}: no sentinel names its primary: 127.0.0.1:")


@pytest.mark.proves("repeated commands")
def test_a_sentinel_without_the_command_for_passwords_does_not_make_us_tell_ours(
    start_redis: Callable[..., RedisServer],
) -> None:
    port = start_redis(**{"rename-command AUTH": "LOGIN"}).port
    options = quote(json.dumps({"password": "hunter2"}))
    url = f"sentinel://127.0.0.1:{port}/0?master_name={NAME}&sentinel_kwargs={options}"
    with closing(open_store(url)) as store, pytest.raises(StoreUnavailable) as refused:
        store.epoch()
    assert "says unknown command 'AUTH'. Wait until" in str(refused.value)
    assert "hunter2" not in "".join(traceback.format_exception(refused.value))


@pytest.mark.proves("sentinel failover")
def test_a_server_that_is_no_primary_any_more_is_not_used(
    watched: Watched, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = watched.replicas[0].server.port
    with monkeypatch.context() as stale:
        stale.setattr(Sentinels, "find_primary", lambda _: ("127.0.0.1", replica))
        with pytest.raises(StoreUnavailable, match=r"READONLY.* is a replica; a failover is under way"):
            store.inspect("key")
    assert store.inspect("key").holders == ()


@pytest.mark.proves("sentinel failover")
def test_one_sentinel_that_answers_is_enough(watched: Watched, store: Store) -> None:
    dead, *_ = watched.sentinels
    dead.kill()
    try:
        fence_of(store, "key")
        store.close()
        fence_of(store, "another")
    finally:
        dead.start()
