"""A Redis that is cut off, slow, stopped, or drops connections: what each verb says, and what is so then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import TypeVar

import pytest

from celery_exclusive.core.operations import Acquire, Applied, Granted, KeyOperation, Parked, Release, Renew
from celery_exclusive.core.records import SECOND
from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.stores.base import Reply, open_store
from celery_exclusive.stores.redis.store import RedisStore
from tests.proxy import Proxy
from tests.servers import RedisServer, wait_until
from tests.store.operations import LIFE, give, take
from tests.store.verbs import KNOWN, NEW

pytestmark = pytest.mark.promise(
    "A Redis that is cut off in one direction or both, slow, held back or stopped, and connections that "
    "are killed before and after each verb is done, or in the middle of renewals and of a sweep: the table "
    "of [endings.md](reference/endings.md#failures-of-a-redis-one-by-one)",
    name="Redis drills",
    broke=(
        'red before: a forced release whose reply was lost was "nothing released". A call that is not '
        "repeated; the answer to its repetition dropped"
    ),
)

T = TypeVar("T")
VERBS = {**KNOWN, **NEW}
LATER = 2_000_000_000 * SECOND


@pytest.fixture
def near(redis_url: str) -> Iterator[RedisStore]:
    """The store as somebody sees it whose network is sound."""
    opened = open_store(redis_url, offer=1)
    assert isinstance(opened, RedisStore)
    opened.epoch()
    yield opened
    opened.close()


@pytest.fixture
def proxy(redis_server: RedisServer, near: RedisStore) -> Iterator[Proxy]:
    with Proxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture
def far(proxy: Proxy) -> Iterator[RedisStore]:
    """The store behind that network, for a client that soon gives up."""
    opened = open_store(f"redis://127.0.0.1:{proxy.port}/0?socket_timeout=1", offer=1)
    assert isinstance(opened, RedisStore)
    yield opened
    opened.close()


def prepare(near: RedisStore, before: list[KeyOperation], *keys: str) -> None:
    for key in keys:
        for operation in before:
            near.apply(key, operation)


def state(store: RedisStore, key: str) -> object:
    seen = store.inspect(key)
    return [(owner.id, owner.phase) for owner in seen.holders], seen.waiting, seen.aside


def assert_all_the_same(store: RedisStore, done: Reply, twin: Reply) -> None:
    assert type(done.answer) is type(twin.answer)
    assert getattr(done.answer, "is_applied", None) == getattr(twin.answer, "is_applied", None)
    assert state(store, "key") == state(store, "twin")


def ask_while_killed(store: RedisStore, server: RedisServer, verb: Callable[[], T]) -> T:
    """Ask, and kill the connection when the server has the request but may not do it yet."""
    me = store._client.ask("CLIENT", "ID")
    with server.client() as redis, ThreadPoolExecutor(1) as pool:
        redis.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
        try:
            asked = pool.submit(verb)
            for _ in range(2):
                wait_until(lambda: redis.info("clients")["blocked_clients"] == 1, "the request", 15)
                redis.client_kill_filter(_id=str(me))
        finally:
            redis.execute_command("CLIENT", "UNPAUSE")
        answer = asked.result()
    assert store._client.ask("CLIENT", "ID") != me
    return answer


@pytest.mark.parametrize("name", VERBS)
def test_a_connection_that_is_killed_before_a_verb_is_done_changes_nothing(
    near: RedisStore, redis_server: RedisServer, name: str
) -> None:
    before, operation = VERBS[name]
    prepare(near, before, "key", "twin")
    done = ask_while_killed(near, redis_server, lambda: near.apply("key", operation))
    twin = near.apply("twin", operation)
    assert_all_the_same(near, done, twin)
    assert [wake.id for wake in done.wake] == [wake.id for wake in twin.wake]


def test_renewals_whose_connection_is_killed_renew_each_lease_that_is_held(
    near: RedisStore, redis_server: RedisServer
) -> None:
    prepare(near, [take("a")], "held", "taken")
    near.apply("taken", give("a"))
    near.apply("taken", take("b"))
    near.renew([("held", Renew("a", "token of a", LIFE))])  # the server knows the script now
    leases = [(key, Renew("a", "token of a", 5 * LIFE)) for key in ("held", "taken", "free")]
    assert ask_while_killed(near, redis_server, lambda: near.renew(leases)) == [True, False, False]
    (mine,), (others,) = near.inspect("held").holders, near.inspect("taken").holders
    assert mine.remaining > 2 * LIFE > others.remaining
    assert near.inspect("free").holders == ()


def test_a_sweep_whose_connection_is_killed_wakes_each_next_one_in_line_once(
    near: RedisStore, redis_server: RedisServer
) -> None:
    keys = ["one", "three", "two"]
    prepare(near, [take("a"), take("b"), take("c")], *keys)
    later = near.reap(limit=0).time + 2 * LIFE
    near.clock = lambda: later
    reply = ask_while_killed(near, redis_server, near.reap)
    assert sorted((wake.key, wake.id) for wake in reply.wake) == [(key, "b") for key in keys]
    assert near.reap().wake == ()
    for wake in reply.wake:
        promoted = Acquire("b", "token of b", LIFE, promoted=wake.epoch)
        assert isinstance(near.apply(wake.key, promoted).answer, Granted)


@pytest.mark.proves("repeated operations")
@pytest.mark.parametrize("meets", ["the same server", "one that does not know the script"])
@pytest.mark.parametrize("name", VERBS)
def test_a_connection_that_is_lost_after_a_verb_was_done_changes_nothing_but_a_wake_up_comes_later(
    near: RedisStore, far: RedisStore, proxy: Proxy, name: str, meets: str
) -> None:
    before, operation = VERBS[name]
    prepare(near, before, "key", "twin")
    far.epoch()
    if meets != "the same server":  # as after a failover
        proxy.when_lost = partial(near._client.ask, "SCRIPT", "FLUSH")
    proxy.lose(b"EVALSHA")
    done, twin = far.apply("key", operation), near.apply("twin", operation)
    assert proxy.met == [b"EVALSHA"]
    if name == "remove":  # says what it found, and nobody asks
        assert done.answer == Applied(False)
        done = twin
    assert_all_the_same(near, done, twin)
    if twin.wake:
        near.clock = lambda: LATER
        assert [wake.id for wake in near.reap().wake if wake.key == "key"] == [wake.id for wake in twin.wake]


def keys_are(near: RedisStore) -> tuple[object, ...]:
    """What the verbs below change."""
    (held,) = near.inspect("held").holders
    return state(near, "new"), state(near, "line"), held.remaining > 2 * LIFE


@pytest.mark.parametrize("lost", ["requests", "replies", "both"])
@pytest.mark.parametrize("verb", ["acquire", "release", "renew", "reap"])
def test_in_a_partition_a_verb_gives_up_in_time_is_done_or_not_and_can_be_repeated(
    near: RedisStore, far: RedisStore, proxy: Proxy, verb: str, lost: str
) -> None:
    verbs: dict[str, Callable[[], object]] = {
        "acquire": lambda: far.apply("new", take("a")).answer,
        "release": lambda: far.apply("line", give("a")).answer,
        "renew": lambda: far.renew([("held", Renew("a", "token of a", 5 * LIFE))]),
        "reap": lambda: [wake.id for wake in far.reap().wake],
    }
    near.renew([("held", Renew("a", "token", LIFE))])  # the server knows the script now
    prepare(near, [take("a")], "held", "line")
    near.apply("line", take("b", message=b"its message"))
    later = near.reap(limit=0).time + 2 * LIFE
    if verb == "reap":
        far.clock = lambda: later
    before = keys_are(near)
    far.epoch()
    proxy.drop(requests=lost != "replies", replies=lost != "requests")
    with pytest.raises(StoreUnavailable, match=r"ime(out|d out)"):
        verbs[verb]()
    proxy.restore()
    was_done = lost == "replies"
    assert (keys_are(near) != before) == was_done
    granted = near.inspect("new").holders
    answer = verbs[verb]()
    if verb == "acquire":
        assert isinstance(answer, Granted)
        assert not granted or answer.fence == granted[0].fence
    else:
        done, again = {
            "release": (Applied(True), Applied(False)),
            "renew": ([True], [True]),
            "reap": (["b"], []),
        }[verb]
        assert answer == (again if was_done else done)
    if verb in ("release", "reap"):
        near.clock = lambda: LATER  # an offer that nobody has heard of is over, and made again
        assert [wake.id for wake in near.reap().wake] == ["b"]


def test_two_hundred_milliseconds_each_way_make_everything_slower_and_nothing_else(
    near: RedisStore, proxy: Proxy
) -> None:
    proxy.delay(0.2)
    with closing(open_store(f"redis://127.0.0.1:{proxy.port}/0")) as slow:
        assert isinstance(slow.apply("key", take("a")).answer, Granted)
        assert isinstance(slow.apply("key", take("b")).answer, Parked)
        assert slow.renew([("key", Renew("a", "token of a", 2 * LIFE))]) == [True]
        slow.check()
        (wake,) = slow.apply("key", give("a")).wake
        promoted = Acquire("b", "token of b", LIFE, promoted=wake.epoch)
        assert isinstance(slow.apply("key", promoted).answer, Granted)
        assert slow.apply("key", Release("b", "token of b")).answer == Applied(True)
        assert slow.reap().answer == Applied(True)
    assert not near.inspect("key").holders


def test_a_server_that_holds_its_clients_back_is_waited_for_within_the_timeout(
    near: RedisStore, far: RedisStore, redis_server: RedisServer
) -> None:
    far.apply("another", take("a"))
    with redis_server.client() as redis:
        redis.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
        with pytest.raises(StoreUnavailable, match=r"ime(out|d out)"):
            far.apply("key", take("a"))
        redis.execute_command("CLIENT", "UNPAUSE")
        redis.execute_command("CLIENT", "PAUSE", 200, "ALL")
    assert isinstance(near.apply("key", take("a")).answer, Granted)  # whether or not it was done already


def test_a_paused_server_executes_the_requests_it_got_when_it_resumes(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis()
    with closing(open_store(f"{server.url}?socket_timeout=1")) as store:
        store.apply("held", take("a"))
        server.pause()
        asked = time.monotonic()
        for verb in (lambda: store.apply("held", give("a")), lambda: store.apply("key", take("a"))):
            with pytest.raises(StoreUnavailable, match=r"ime(out|d out)"):
                verb()
        assert time.monotonic() - asked < 15
        server.resume()
        assert isinstance(store.apply("key", take("a")).answer, Granted)
        assert store.apply("key", give("a")).answer == Applied(True)
        assert isinstance(store.apply("held", take("b", message=None)).answer, Granted)
