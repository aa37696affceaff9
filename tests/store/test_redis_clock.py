"""The clock of a Redis is set an hour back, and an hour forward, while keys are held."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from celery_exclusive.core.operations import Acquire, Applied, ForceRelease, Granted, Held, Parked, Renew
from celery_exclusive.core.records import SECOND
from celery_exclusive.stores.base import open_store
from celery_exclusive.stores.redis.store import RedisStore
from tests.clocks import Clock
from tests.conftest import or_leave_out
from tests.servers import RedisServer, wait_until
from tests.store.operations import LIFE, give, take

HOUR = 3600
pytestmark = [
    pytest.mark.xdist_group("redis-clock"),  # one server for all of them
    pytest.mark.promise(
        "The clock of a Redis is set an hour back or forward (libfaketime): no overlap but what the table "
        "of [endings.md](reference/endings.md#failures-of-a-redis-one-by-one) says, fences grow, "
        "a line goes on at once",
        broke=(
            "red before: a sweep ended the run of a living worker whose message is kept, once its lease "
            "was ten minutes over by the new clock"
        ),
    ),
]


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Clock:
    return or_leave_out(lambda: Clock(tmp_path_factory.mktemp("clock")))


@pytest.fixture(scope="module")
def server(clock: Clock) -> Iterator[RedisServer]:
    with RedisServer(env=clock.env) as server:
        yield server


@pytest.fixture
def step(server: RedisServer, clock: Clock) -> Iterator[Callable[[int], None]]:
    """Sets the server's clock to so much more than ours, and waits until it goes by that."""
    with server.client() as redis:

        def step(seconds: int) -> None:
            clock.step(seconds)
            is_there = lambda: abs(redis.time()[0] - time.time() - seconds) < HOUR / 2  # noqa: E731
            wait_until(is_there, "the new time", 15)

        yield step
        step(0)


@pytest.fixture
def store(server: RedisServer, step: Callable[[int], None]) -> Iterator[RedisStore]:
    server.refresh()
    opened = open_store(server.url)
    assert isinstance(opened, RedisStore)
    yield opened
    opened.close()


def granted(store: RedisStore, id: str, key: str = "key") -> int:
    answer = store.apply(key, take(id)).answer
    assert isinstance(answer, Granted)
    return answer.fence


def test_set_back_the_holder_keeps_its_key_and_fences_grow(
    store: RedisStore, step: Callable[[int], None]
) -> None:
    fences = [granted(store, "a")]
    step(-HOUR)
    assert isinstance(store.apply("key", take("b", message=None)).answer, Held)
    assert store.renew([("key", Renew("a", "token of a", LIFE))]) == [True]
    for id, other in (("a", "b"), ("b", "c"), ("c", "d")):
        assert store.apply("key", give(id)).answer == Applied(True)
        fences.append(granted(store, other))
    assert fences == sorted(set(fences))


def test_set_back_a_line_goes_on_at_once_and_only_the_key_of_a_dead_holder_is_held_for_longer(
    store: RedisStore, step: Callable[[int], None]
) -> None:
    for key in ("key", "dead"):
        granted(store, "a", key)
        assert isinstance(store.apply(key, take("b")).answer, Parked)
    step(-HOUR)
    (wake,) = store.apply("key", give("a")).wake
    promoted = Acquire("b", "token of b", LIFE, promoted=wake.epoch)
    assert isinstance(store.apply("key", promoted).answer, Granted)
    assert store.reap().answer == Applied(True)
    (holder,) = store.inspect("dead").holders
    assert HOUR * SECOND < holder.remaining <= HOUR * SECOND + LIFE
    assert [wake.id for wake in store.apply("dead", ForceRelease("a")).wake] == ["b"]


def test_set_forward_a_lease_has_expired_and_its_holder_is_told_by_each_verb_and_by_the_next_fence(
    store: RedisStore, step: Callable[[int], None]
) -> None:
    first = granted(store, "a")
    step(HOUR)
    assert granted(store, "b") > first
    assert store.renew([("key", Renew("a", "token of a", LIFE))]) == [False]
    assert store.apply("key", give("a")).answer == Applied(False)
    assert [owner.id for owner in store.inspect("key").holders] == ["b"]


def test_set_forward_a_run_whose_message_is_kept_is_renewed_before_a_sweep_ends_it(
    store: RedisStore, step: Callable[[int], None]
) -> None:
    store.apply("key", Acquire("a", "token of a", LIFE, message=b"message", recovers=True, acks_late=True))
    assert isinstance(store.apply("key", take("b")).answer, Parked)
    calm_until = store.reap(limit=0).time + LIFE
    step(HOUR)
    assert not store.reap(recovers_until=calm_until).wake
    assert store.renew([("key", Renew("a", "token of a", LIFE))]) == [True]
    (holder,) = store.inspect("key").holders
    assert (holder.id, holder.remaining > 0) == ("a", True)
    assert [wake.id for wake in store.apply("key", give("a")).wake] == ["b"]
