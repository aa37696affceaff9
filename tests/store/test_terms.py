"""The terms of a key outlive its leases, and no quick way passes them: in memory and in each database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from celery_exclusive.core.operations import Acquire, Applied, Granted, Held, Hold, Parked, Renew, SetLimit
from celery_exclusive.core.records import NAMED, SECOND
from celery_exclusive.errors import UnreadableKey
from celery_exclusive.stores.base import open_store
from tests.store.operations import LIFE, give, take

pytestmark = pytest.mark.promise(
    "A database keeps the starts of a rate, the limit of an operator and a hold until they are over, also of "
    "a key that no task holds, and then forgets the key",
    broke="a renewal that drops them; a key that ends with its last lease; a grant in one statement; a cost "
    "that is not stored; no end of many dead holders; no next due",
)
START = 1_800_000_000 * SECOND
HOUR = 3600 * SECOND
PER_SECOND = ((2, SECOND),)


class Clock:
    now = START


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "sqlite", "postgres", "maria"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Any]:
    urls = {"memory": f"memory://{tmp_path}", "sqlite": f"sqlite:///{tmp_path}/locks.db"}
    url = urls.get(request.param) or request.getfixturevalue(f"{request.param}_url")
    opened: Any = open_store(url)
    opened.clock = lambda: clock.now
    with closing(opened):
        yield opened


def start(id: str, cost: int = 1, rates: tuple[tuple[int, int], ...] = PER_SECOND) -> Acquire:
    return Acquire(id, f"token of {id}", LIFE, 9, cost=cost, rates=rates)


@pytest.mark.parametrize("dies", [False, True])
def test_a_pause_outlives_the_last_lease_sweeps_and_renewals_until_it_is_reset(
    store: Any, clock: Clock, *, dies: bool
) -> None:
    store.apply("key", take("a"))
    assert store.apply("key", SetLimit(0, by="ann", reason='"broken"')).answer == Applied(True)
    assert store.renew([("key", Renew("a", "token of a", 2 * LIFE))]) == [True]
    if not dies:
        store.apply("key", give("a"))
    for _ in range(3):
        clock.now += 24 * HOUR
        store.reap()
        assert list(store.scan()) == ["key"]
        assert store.inspect("key").terms.override[::3] == (0, "ann")
        refused = store.apply("key", take("b", message=None)).answer
        assert isinstance(refused, Held)
        assert refused.by[0].phase == "paused"
    assert store.apply("key", SetLimit()).answer == Applied(True)
    assert isinstance(store.apply("key", take("b")).answer, Granted)
    store.apply("key", give("b"))
    store.reap()
    assert list(store.scan()) == []


def test_starts_count_after_their_runs_have_ended(store: Any, clock: Clock) -> None:
    for id in "ab":
        assert isinstance(store.apply("key", start(id)).answer, Granted)
        store.apply("key", give(id))
    store.reap()
    refused = store.apply("key", start("c")).answer
    assert isinstance(refused, Held)
    assert (refused.by[0].phase, refused.by[0].remaining) == ("rate", SECOND)
    clock.now += SECOND
    store.reap()
    assert isinstance(store.apply("key", start("c", cost=2)).answer, Granted)
    assert isinstance(store.apply("key", start("d")).answer, Held)


def test_the_cost_of_a_lease_counts_until_its_end(store: Any) -> None:
    assert isinstance(store.apply("key", start("a", 8, ())).answer, Granted)
    assert isinstance(store.apply("key", start("b", 2, ())).answer, Held)
    assert isinstance(store.apply("key", start("c", 1, ())).answer, Granted)
    assert store.apply("key", give("a")).answer == Applied(True)
    assert isinstance(store.apply("key", start("b", 8, ())).answer, Granted)


def test_a_sweep_says_when_a_rate_lets_the_next_task_start(store: Any, clock: Clock) -> None:
    for id in "ab":
        store.apply("key", start(id))
    waits = Acquire("c", "token of c", LIFE, 9, message=b"c", rates=PER_SECOND)
    assert isinstance(store.apply("key", waits).answer, Parked)
    clock.now += SECOND // 4
    assert store.reap().due_in == 3 * SECOND // 4
    assert store.reap(every=HOUR).due_in is None
    clock.now += 3 * SECOND // 4
    reply = store.reap()
    assert [wake.id for wake in reply.wake] == ["c"]
    assert reply.due_in is None


def test_a_hold_ends_by_itself_and_a_raise_offers_at_once(store: Any, clock: Clock) -> None:
    store.apply("key", take("a", limit=5))
    assert store.apply("key", Hold("a", "token of a", SECOND)).answer == Applied(True)
    assert store.apply("key", Hold("a", "another", 0)).answer == Applied(False)
    for id in "bcdefgh":
        store.apply("key", take(id, limit=5))
    clock.now += SECOND
    assert len(store.reap().wake) == 4
    assert [wake.id for wake in store.apply("key", SetLimit(8)).wake] == ["f", "g", "h"]


def test_a_key_with_many_dead_holders_is_forgotten_when_its_limit_is_reset(store: Any, clock: Clock) -> None:
    for number in range(NAMED + 2):
        store.apply("key", take(f"{number}", limit=20))
    store.apply("key", SetLimit(30))
    store.apply("key", take("last", limit=20))
    store.apply("key", SetLimit())
    clock.now += LIFE
    store.reap()
    assert list(store.scan()) == []


@pytest.mark.parametrize(
    "text", ["rate 2", "limit x 0 0 a", "opens -1", "extra 1e9", "odd 1", "opens " + "9" * 30]
)
def test_terms_of_another_program_damage_their_key_alone(text: str, tmp_path: Path) -> None:
    with closing(open_store(f"sqlite:///{tmp_path}/locks.db")) as store:
        any_store: Any = store
        store.apply("key", SetLimit(3))
        change = "UPDATE exclusive2_lock SET document = replace(document, 'limit 3', ?)"
        any_store.transact(lambda it: it.cursor.execute(change, (f"{text}\\nlimit 3",)))
        with pytest.raises(UnreadableKey):
            store.apply("key", take("a"))
        assert isinstance(store.apply("other", take("a")).answer, Granted)
