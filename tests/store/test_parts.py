"""Parts of a key with terms of their own: in memory and in each database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from json import dumps
from pathlib import Path
from typing import Any

import pytest

from celery_exclusive.core.operations import (
    Acquire,
    Applied,
    Drop,
    Granted,
    Hold,
    Parked,
    Remove,
    Renew,
    Restore,
    SetLimit,
    Waiting,
)
from celery_exclusive.core.records import NAMED, SECOND, Part
from celery_exclusive.core.room import KEPT, NO_LIMIT
from celery_exclusive.errors import UnreadableKey
from celery_exclusive.stores.base import Place, open_store, whole_line
from celery_exclusive.stores.document_store import shut_in
from celery_exclusive.stores.redis.store import RedisStore
from tests.store.operations import LIFE, give, take

pytestmark = pytest.mark.promise(
    "A store keeps a limit, rates and an operator's pause of each part of a key, and the tasks that wait for "
    "room of their part: 4 of a part run at once, and 25 in total",
    broke="shut tasks not counted, paged or found by id; a quick way past a part; parts left of an idle key",
)
START = 1_800_000_000 * SECOND
HOUR = 3600 * SECOND
TENANTS = ("acme", "b c", "ünï/1")


class Clock:
    now = START


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "redis", "sqlite", "postgres", "maria"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Any]:
    urls = {"memory": f"memory://{tmp_path}", "sqlite": f"sqlite:///{tmp_path}/locks.db"}
    url = urls.get(request.param) or request.getfixturevalue(f"{request.param}_url")
    opened: Any = open_store(url)
    opened.clock = lambda: clock.now
    with closing(opened):
        yield opened


def of(part: str, number: object, most: int = 1, *, limit: int = 25, **options: Any) -> Acquire:
    return replace(take(f"{part} {number}", limit=limit), part=part, part_limit=most, **options)


def run(store: Any, *tasks: Acquire) -> list[str]:
    """Let tasks come, and return the ids of those that begin at once."""
    return [task.id for task in tasks if isinstance(store.apply("key", task).answer, Granted)]


def waiting(store: Any) -> list[Waiting]:
    return [place.waiting for place in whole_line(store, "key")]


def shut(store: Any) -> list[str]:
    return [task.id for task in waiting(store) if task.is_shut]


def part(store: Any, name: str) -> Part:
    """Return what a store knows of a part. One that it does not know has no tasks and no terms."""
    return next((part for part in store.parts("key") if part.name == name), Part(name))


def finish(store: Any, *ids: str, most: int = 1) -> list[str]:
    """End runs, let what is woken begin, and return the ids of these."""
    began = list[str]()
    for id in ids:
        for wake in store.apply("key", give(id)).wake:
            name = next(task.part for task in waiting(store) if task.id == wake.id)
            copy = replace(of(name, "", most), id=wake.id, token=f"token of {wake.id}", promoted=wake.epoch)
            began += run(store, copy)
    return began


def test_four_of_each_part_and_25_in_total_run_at_once_and_all_in_the_end(store: Any) -> None:
    tenants = [f"tenant {number}" for number in range(8)]
    tasks = [of(tenant, number, 4) for number in range(10) for tenant in tenants]
    running = run(store, *tasks)
    assert len(running) == 25
    assert {sum(id.startswith(tenant) for id in running) for tenant in tenants} <= {3, 4}
    assert store.inspect("key").waiting == 80 - 25
    ended = 0
    while running:
        running = [*running[1:], *finish(store, running[0], most=4)]
        ended += 1
        assert len(running) == min(25, 80 - ended)
        assert all(sum(id.startswith(tenant) for id in running) <= 4 for tenant in tenants)
    assert ended == 80
    assert not store.parts("key")
    assert not waiting(store)


def lock(number: int, part: str = "acme") -> Acquire:
    """What a `lock()` with a part asks for: it brings no terms of that."""
    return Acquire(f"lock {number}", f"token of lock {number}", LIFE, 25, part=part, weight=0)


@pytest.mark.promise(
    "A `lock()` counts in the limit and the rates of its part, and changes nothing of what tasks say of it",
    broke="a `lock()` with terms of its own, in core, in Lua; restored beyond the part's limit",
)
def test_a_lock_takes_room_of_its_part_and_leaves_its_terms(store: Any, clock: Clock) -> None:
    rates = ((3, SECOND),)
    assert run(store, of("acme", 0, 2, weight=3, part_rates=rates), lock(1)) == ["acme 0", "lock 1"]
    assert store.apply("key", lock(2)).answer.by[0].phase == "part"
    assert store.apply("key", Restore("lock 2", "t", LIFE, 25, part="acme", weight=0)).answer == Applied(
        False
    )
    found = part(store, "acme")
    assert (found.held, found.weight, found.limit, found.terms.rates[0].free) == (2, 3, 2, 1)
    assert finish(store, "acme 0", "lock 1") == []
    assert run(store, lock(3)) == ["lock 3"]
    assert store.apply("key", lock(4)).answer.by[0].phase == "rate"
    clock.now += SECOND
    assert run(store, lock(5), lock(6, "zeta")) == ["lock 5", "lock 6"]
    assert part(store, "zeta").limit == NO_LIMIT


@pytest.mark.promise(
    "An urgent call, of a part of weight 100, goes before all that wait of a part of weight 1",
)
def test_an_urgent_call_goes_before_the_line(store: Any) -> None:
    tasks = [of("bulk", number, NO_LIMIT, limit=1) for number in range(30)]
    run(store, *tasks, *(of("urgent", number, NO_LIMIT, limit=1, weight=100) for number in range(3)))
    assert [it.id for it in waiting(store)][:4] == ["urgent 0", "urgent 1", "urgent 2", "bulk 1"]
    assert [wake.id for wake in store.apply("key", give("bulk 0")).wake] == ["urgent 0"]


def test_tasks_of_a_full_part_wait_in_the_order_in_which_they_came(store: Any) -> None:
    assert run(store, *(of("acme", number) for number in range(6))) == ["acme 0"]
    assert run(store, of("b c", 0)) == ["b c 0"], "it makes no other part wait"
    for number in range(5):
        assert finish(store, f"acme {number}") == [f"acme {number + 1}"]


@pytest.mark.parametrize("count", [1, 2, 5, 100])
def test_pages_show_the_line_then_tasks_aside_then_those_that_wait_for_their_parts(
    store: Any, count: int
) -> None:
    fill(store)
    places, page = list[Place](), store.line("key", count=count)
    while page.next:
        assert len(page.places) <= count
        places, page = [*places, *page.places], store.line("key", page.next, count)
    places += page.places
    found = [place.waiting.id for place in places]
    assert found[:3] == ["b c 0", "ünï/1 0", " aside"]
    by_mark = sorted(TENANTS, key=shut_in)
    assert found[3:] == [f"{tenant} {number}" for tenant in by_mark for number in (1, 2, 3)]
    assert [place.waiting.is_shut for place in places] == [False] * 3 + [True] * 9
    assert all(place.message == b"message" for place in places)


def test_tasks_that_wait_for_their_parts_are_counted_listed_and_found_by_id(store: Any) -> None:
    fill(store)
    assert store.inspect("key").waiting == 2 + 9
    assert [line[:4] for line in store.lines()] == [("key", 11, 1, False)]
    assert ("key", "acme 2") in list(store.places())
    assert len(list(store.places())) == 12
    assert store.messages_of([("key", "acme 2")]) == [b"message"]
    assert {it.name: (it.waiting, it.held, it.shut, it.limit) for it in store.parts("key")} == {
        "acme": (0, 1, 3, 1),
        "b c": (1, 0, 3, 1),
        "ünï/1": (1, 0, 3, 1),
    }
    run(store, replace(of("acme", 4), id="a task/1"))
    assert list(store.keys_of("a task")) == ["key"]
    assert len(store.parts("key", 2)) == 2
    assert store.parts("other") == []


def test_a_task_that_waits_for_its_part_can_be_dropped(store: Any) -> None:
    run(store, *(of("acme", number) for number in range(4)))
    assert store.apply("key", Drop("acme 2", "token")).answer == Applied(True)
    assert shut(store) == ["acme 1", "acme 3"]
    assert part(store, "acme").shut == 2
    assert finish(store, "acme 0") == ["acme 1"]
    assert finish(store, "acme 1") == ["acme 3"]


def test_a_message_that_expires_while_it_waits_for_its_part_is_woken(store: Any, clock: Clock) -> None:
    run(store, of("acme", 0), of("acme", 1, expires_in=SECOND), of("acme", 2, gives_up_in=2 * SECOND))
    clock.now += SECOND
    assert [wake.id for wake in store.reap().wake] == ["acme 1"]
    clock.now += SECOND
    assert [wake.id for wake in store.reap().wake] == ["acme 2"]
    assert [(it.id, it.over) for it in waiting(store)] == [("acme 2", ""), ("acme 1", None)]
    assert part(store, "acme").shut == store.inspect("key").waiting == 1


def test_a_limit_of_a_part_that_is_raised_lets_its_tasks_start(store: Any) -> None:
    run(store, *(of("acme", number) for number in range(5)))
    wakes = store.apply("key", SetLimit(3, part="acme")).wake
    assert [wake.id for wake in wakes] == ["acme 1", "acme 2"]
    assert [it.id for it in waiting(store) if it.is_offered] == ["acme 1", "acme 2"]
    assert shut(store) == ["acme 3", "acme 4"]


@pytest.mark.parametrize("operation", [SetLimit(0, SECOND, part="acme"), Hold("", "", SECOND, "acme")])
def test_a_part_that_is_closed_for_a_time_opens_with_a_sweep(
    store: Any, clock: Clock, operation: Any
) -> None:
    assert store.apply("key", operation).answer == Applied(True)
    assert list(store.scan()) == ["key"]
    assert not list(store.lines())
    assert run(store, of("acme", 0), of("b c", 0)) == ["b c 0"]
    finish(store, "b c 0")
    assert store.reap().due_in is None
    clock.now += SECOND // 2
    assert store.reap().due_in == SECOND // 2
    clock.now += SECOND // 2
    assert [wake.id for wake in store.reap().wake] == ["acme 0"]
    assert run(store, of("acme", 1)) == []


def test_more_parts_than_a_sweep_reads_open_in_the_order_of_their_times(store: Any, clock: Clock) -> None:
    for number in range(NAMED + 5):
        store.apply("key", Hold("", "", (number + 1) * SECOND, f"{number}"))
        run(store, of(f"{number}", "waits"))
    for number in range(2):
        clock.now += SECOND
        assert [wake.id for wake in store.reap().wake] == [f"{number} waits"]
    clock.now += LIFE
    offered = {wake.id for wake in store.reap().wake}
    assert offered >= {f"{number} waits" for number in range(2, NAMED + 2)}
    assert f"{NAMED + 4} waits" not in offered
    assert {wake.id for wake in store.reap().wake} == {
        f"{number} waits" for number in range(NAMED + 2, NAMED + 5)
    }


def test_a_pause_of_a_part_outlives_sweeps_until_it_is_reset(store: Any, clock: Clock) -> None:
    store.apply("key", SetLimit(0, by="ann", part="acme"))
    for _ in range(3):
        clock.now += 24 * HOUR
        store.reap()
        assert list(store.scan()) == ["key"]
        override = part(store, "acme").terms.override
        assert override
        assert override[::3] == (0, "ann")
    assert store.apply("key", SetLimit(part="acme")).answer == Applied(True)
    store.reap()
    assert (list(store.scan()), store.parts("key")) == ([], [])


@pytest.mark.promise(
    "An operator's limit of a part without an end is forgotten when the part has been idle for a year",
    broke="red before, in each store: kept for ever; an early time that stays, in core, in Lua: gone early",
)
def test_a_pause_of_a_part_without_an_end_is_kept_until_the_part_was_idle_for_a_year(
    store: Any, clock: Clock
) -> None:
    run(store, of("acme", 0, part_rates=((1, SECOND),)))
    store.apply("key", SetLimit(2, part="acme"))
    finish(store, "acme 0")
    for _ in range(2):
        clock.now += KEPT - HOUR
        store.reap()
        assert part(store, "acme").terms.override
        assert run(store, of("acme", 1)) == ["acme 1"]
        finish(store, "acme 1")
    clock.now += KEPT
    store.reap()
    assert (list(store.scan()), store.parts("key")) == ([], [])


@pytest.mark.promise(
    "The reason of an operator's limit of a part may have any character", broke="red before, in databases"
)
def test_a_reason_of_a_limit_of_a_part_may_have_any_character(store: Any) -> None:
    reason = 'NUL \0, half a pair \ud800, "quoted" \\ ü'
    store.apply("key", SetLimit(0, by=reason, reason=reason, part="acme"))
    override = part(store, "acme").terms.override
    assert override
    assert override[3:] == (reason, reason)


def test_starts_of_a_part_count_after_their_runs_have_ended(store: Any, clock: Clock) -> None:
    rates = ((2, SECOND),)
    assert len(run(store, *(of("acme", number, 9, part_rates=rates) for number in range(2)))) == 2
    finish(store, "acme 0", "acme 1")
    store.reap()
    assert run(store, of("acme", 2, 9, part_rates=rates)) == []
    clock.now += SECOND
    assert [wake.id for wake in store.reap().wake] == ["acme 2"]


def test_leases_of_parts_count_beside_more_than_ten_holders(store: Any, clock: Clock) -> None:
    few = [of("acme", number, 3) for number in range(4)]
    many = [replace(take(f"{number}", limit=25)) for number in range(NAMED)]
    assert run(store, *few, *many) == [task.id for task in (*few[:3], *many)]
    assert shut(store) == ["acme 3"]
    assert store.renew([("key", Renew("acme 0", "token of acme 0", 2 * LIFE))]) == [True]
    assert part(store, "acme").held == 3
    clock.now += LIFE
    assert [wake.id for wake in store.reap().wake] == ["acme 3"]
    assert (part(store, "acme").held, part(store, "acme").waiting) == (1, 1)


@pytest.mark.parametrize("count", [1, NAMED + 2])
def test_the_parts_of_leases_that_have_expired_count_no_more(store: Any, clock: Clock, count: int) -> None:
    run(store, *(of("acme", number, count) for number in range(count)))
    clock.now += LIFE
    assert run(store, take("other", limit=count)) == ["other"]
    assert part(store, "acme") == Part("acme")
    store.apply("key", give("other"))
    run(store, *(of("acme", number, count) for number in range(count)))
    clock.now += LIFE
    store.reap()
    if not isinstance(store, RedisStore):  # what ends there by itself does so in real time
        assert (list(store.scan()), store.parts("key")) == ([], [])


def test_redis_keeps_the_parts_of_a_key_that_gets_a_line(store: Any) -> None:
    if not isinstance(store, RedisStore):
        return
    assert run(store, of("acme", 0, limit=1)) == ["acme 0"]
    assert store._client.ask("PTTL", "cx2:{0}:p:key") > 0
    assert isinstance(store.apply("key", take("of no part")).answer, Parked)
    lease = of("acme", 0)
    assert store.renew([("key", Renew(lease.id, lease.token, LIFE))]) == [True]
    assert store._client.ask("PTTL", "cx2:{0}:p:key") == -1


def test_a_key_that_is_forgotten_has_no_parts(store: Any) -> None:
    fill(store)
    store.forget("key")
    assert (waiting(store), store.parts("key")) == ([], [])
    assert run(store, of("acme", 0)) == ["acme 0"]


def test_a_position_of_a_task_that_waits_for_its_part_is_behind_all_of_the_line(store: Any) -> None:
    fill(store)
    answer = store.apply("key", of("acme", 9, limit=1)).answer
    assert isinstance(answer, Parked)
    assert (answer.position, answer.by[0].phase) == (2 + 4, "part")


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Any]:
    with closing(open_store(f"sqlite:///{tmp_path}/locks.db")) as store:
        yield store


def write(file: Any, statement: str, *values: object) -> None:
    file.transact(lambda transaction: transaction.cursor.execute(statement, values))


def test_tasks_that_others_have_deleted_are_counted_no_more(file: Any, clock: Clock) -> None:
    file.clock = lambda: clock.now
    fill(file)
    write(file, "DELETE FROM exclusive2_line WHERE state LIKE 'shut%'")
    file.apply("key", give("acme 0"))
    assert part(file, "acme") == Part("acme")
    assert file.inspect("key").waiting == 2
    for id in ("b c 0", "ünï/1 0", " aside"):
        file.apply("key", Drop(id, "token"))
    assert (list(file.scan()), file.parts("key")) == ([], [])


def test_a_sweep_counts_the_tasks_that_others_have_deleted_no_more(file: Any, clock: Clock) -> None:
    file.clock = lambda: clock.now
    fill(file)
    write(file, "DELETE FROM exclusive2_line")
    clock.now += LIFE
    file.reap()
    file.reap()
    assert (list(file.scan()), file.parts("key"), list(file.lines())) == ([], [], [])


@pytest.mark.parametrize(
    "record",
    [
        *("x", 7, "0 0 1 0 1 4 9007199254740991", "3"),
        *map(dumps, ["1 2", "0 0 1 0 0 4 5", "-1 0 0 0 1 4 5", "odd 1\n0 0 1 0 1 4 9007199254740991"]),
    ],
)
def test_a_part_of_another_program_damages_its_key_alone(file: Any, record: object) -> None:
    run(file, of("acme", 0))
    write(file, "UPDATE exclusive2_part SET record = ?", record)
    with pytest.raises(UnreadableKey):
        file.apply("key", of("acme", 1))
    with pytest.raises(UnreadableKey):
        file.parts("key")
    assert isinstance(file.apply("other", of("acme", 0)).answer, Granted)


def test_a_task_with_the_mark_of_another_part_damages_its_key_alone(file: Any) -> None:
    fill(file)
    write(file, "UPDATE exclusive2_line SET part = ? WHERE id = ?", b"b c", b"acme 2")
    with pytest.raises(UnreadableKey):
        file.line("key")


def test_a_key_without_parts_is_asked_for_none(file: Any) -> None:
    for id in "abc":
        file.apply("key", take(id))
    opened = file._idle[-1]
    sent = list[str]()
    opened.connection.set_trace_callback(sent.append)
    file.apply("key", give("a"))
    file.apply("key", take("d"))
    file.inspect("key")
    file.reap()
    assert sent
    assert not [statement for statement in sent if "FROM exclusive2_part WHERE" in statement]


def fill(store: Any) -> None:
    """Let a key have one holder, two in line, one aside, and three of each part that wait for their parts."""
    tasks = [of(tenant, number, limit=1) for number in range(4) for tenant in TENANTS]
    assert run(store, *tasks, of("", "aside", limit=1)) == ["acme 0"]
    assert store.apply("key", Remove(" aside", "aside")).answer == Applied(True)
