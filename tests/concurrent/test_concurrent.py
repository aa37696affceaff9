"""Concurrent calls on real servers answer as some order of steps would, whatever happens to the servers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from celery_exclusive.core.operations import Acquire, Granted, Held, Owner
from celery_exclusive.stores.base import Reply
from tests.concurrent.calls import Asked, Call, read, write
from tests.concurrent.client import Process
from tests.concurrent.play import play
from tests.concurrent.round import Fault, Round
from tests.concurrent.search import Search
from tests.concurrent.specification import Specification
from tests.concurrent.stages import STAGES, Standby
from tests.concurrent.verdict import judge
from tests.conftest import or_leave_out

pytestmark = [pytest.mark.xdist_group("concurrent"), pytest.mark.timeout(600)]
CLIENTS = 6
ROUNDS = 20
"""The most rounds in which a planted fault may stay unseen."""


@pytest.fixture(scope="module")
def processes() -> Iterator[list[Process]]:
    with ExitStack() as stack:
        yield [stack.enter_context(closing(Process())) for _ in range(CLIENTS)]


@pytest.mark.promise(
    "Concurrent calls answer as some order of steps would that agrees with real time: six clients, all "
    "operations, on each store, while its server is killed, stands still, fails over, and loses connections, "
    "requests, answers or data",
    broke="the code before what the table below lists was mended",
    figure=(
        "three runs in a row on all stores, seeds 11000, 12000 and 13000: 82 rounds, 107,084 calls, 423 "
        "without an answer, no key without an order; later one more fault on Redis Cluster, see below. "
        "`make test`: 480 calls for each store without a standby; `make test-all`: 30 minutes"
    ),
    command="make histories SECONDS=60",
)
@pytest.mark.parametrize(
    ("store", "troubles", "is_timed"),
    [
        ("memory", [], True),
        ("memory", [], False),
        ("sqlite", ["locked"], True),
        ("redis", ["kill", "lost answers", "late requests", "emptied"], True),
        ("redis", ["cut", "pause"], False),
        pytest.param("sentinel", ["killed"], True, marks=pytest.mark.large),
        ("cluster", ["kill", "move"], True),
        ("postgres", ["kill", "lost answers", "late requests"], True),
        ("postgres", ["cut", "pause"], False),
        pytest.param("standby", ["failover"], True, marks=pytest.mark.large),
        pytest.param("synchronous", ["failover"], False, marks=pytest.mark.large),
        ("maria", ["kill", "lost answers"], True),
        ("memcached", ["kill", "lost answers", "late requests"], True),
    ],
)
def test_concurrent_calls_answer_as_some_order_of_steps(
    processes: list[Process], tmp_path: Path, store: str, troubles: list[str], is_timed: bool
) -> None:
    with or_leave_out(STAGES[store]) as stage:
        plan = Round(
            url=stage.url,
            directory=str(tmp_path),
            prefix="c",
            seed=os.getpid(),
            calls=80,
            is_timed=is_timed,
            has_line=stage.has_line,
            pushes=stage.pushes,
            patience=stage.patience,
        )
        may_happen = stage.troubles()
        own = [] if store == "memory" else processes
        verdict = judge(play(plan, stage, own, [may_happen[name] for name in troubles]))
    assert not verdict.faults, "\n\n".join([f"seed {plan.seed}", *verdict.faults])
    assert verdict.undecided <= 1, f"seed {plan.seed}"
    assert verdict.calls >= CLIENTS * plan.calls


@pytest.mark.promise(
    "The search in concurrent histories finds each fault that is planted: on each kind of store, a step that "
    "is not isolated, a repetition that is none, data that are lost, an old read",
    name="controls of concurrent histories",
)
@pytest.mark.parametrize(
    ("store", "fault"),
    [
        ("memory", "blind write"),
        ("memcached", "blind write"),
        ("postgres", "no row lock"),
        ("maria", "dirty reads"),
        ("redis", "a repetition with a new token"),
    ],
)
def test_a_planted_fault_is_found(processes: list[Process], tmp_path: Path, store: str, fault: Fault) -> None:
    """It is found in the first round mostly: no two calls of a round have to meet."""
    own, faults = [] if store == "memory" else processes, list[str]()
    with or_leave_out(STAGES[store]) as stage:
        troubles = [lambda: stage.network.lose(b"acquire")] * 15 if store == "redis" else []
        for number in range(ROUNDS):
            plan = Round(
                url=stage.url,
                directory=str(tmp_path),
                prefix=f"c{number}",
                seed=os.getpid() + number,
                calls=60,
                has_line=stage.has_line,
                pushes=stage.pushes,
                fault=fault,
            )
            if faults := judge(play(plan, stage, own, troubles)).faults:
                break
    assert "No call that may come next has the answer of step" in "".join(faults)


@pytest.mark.proves("controls of concurrent histories")
def test_data_that_a_server_has_lost_are_missed(processes: list[Process], tmp_path: Path) -> None:
    with or_leave_out(STAGES["redis"]) as stage:
        plan = Round(url=stage.url, directory=str(tmp_path), prefix="c", seed=os.getpid(), calls=60)
        verdict = judge(play(plan, stage, processes, [lambda: stage.server.restart(keep_data=False)]))
    assert verdict.faults


@pytest.mark.proves("controls of concurrent histories")
def test_a_read_from_a_standby_that_is_behind_is_found(processes: list[Process], tmp_path: Path) -> None:
    with or_leave_out(Standby) as stage:
        plan = Round(url=stage.url, directory=str(tmp_path), prefix="c", seed=os.getpid(), calls=60)
        for store in plan.open_stores().values():
            store.epoch()
            store.close()
        stage.standby.catch_up()
        stage.standby.fall_behind()
        plan = replace(plan, stale_url=stage.standby.url)
        verdict = judge(play(plan, stage, processes))
    assert verdict.faults
    assert "Look()" in "".join(verdict.faults)


def answered(operation: Asked, begin: int, end: int, reply: Reply) -> Call:
    return Call(
        client=0, key="key", operation=operation, begin=begin, since=begin, end=end, until=end, nows=(begin,),
        reply=reply,
    )  # fmt: skip


def search(*calls: Call) -> Search:
    specification = Specification(offer=5, tombstone_ttl=100)
    return Search(calls, specification, specification.first("epoch"))


A, B = Acquire("a", "t1", 1_000), Acquire("b", "t2", 1_000)
GRANTED, HELD = Reply(Granted(10)), Reply(Held((Owner("a", 2, 998, 10, token="t1"),)))


@pytest.mark.proves("controls of concurrent histories")
@pytest.mark.parametrize(
    ("calls", "is_whole"),
    [
        pytest.param([answered(A, 10, 30, GRANTED), answered(B, 12, 14, HELD)], True, id="during another"),
        pytest.param(
            [answered(A, 16, 30, Reply(Granted(16))), answered(B, 12, 14, HELD)], False, id="before"
        ),
        pytest.param(
            [replace(answered(A, 10, 30, GRANTED), end=None), answered(B, 12, 14, HELD)], True, id="no answer"
        ),
        pytest.param(
            [replace(answered(A, 13, 30, GRANTED), end=None), answered(B, 10, 12, HELD)],
            False,
            id="too early",
        ),
        pytest.param(
            [answered(A, 10, 11, GRANTED), answered(B, 12, 14, Reply(Granted(12)))], False, id="both"
        ),
    ],
)
def test_an_order_agrees_with_real_time(calls: list[Call], is_whole: bool) -> None:
    assert search(*calls).run(10).is_whole is is_whole


@pytest.mark.proves("controls of concurrent histories")
def test_a_fault_is_explained_by_the_calls_of_its_key() -> None:
    late = answered(B, 12, 14, Reply(Granted(12)))
    (fault,) = judge({"key": search(answered(A, 10, 11, GRANTED), late)}).faults
    assert "'key': no order of its 2 calls gives the answers that they have." in fault
    assert (
        "0.000      0.001 ms   0  Acquire(id='a', token='t1', ttl=1000) -> Reply(answer=Granted(fence=10))"
        in fault
    )
    assert "step answers Reply(answer=Held(by=(Owner(id='a', age=2, remaining=998, fence=10" in fault


def test_a_history_is_read_as_it_was_written(tmp_path: Path) -> None:
    calls = [answered(A, 10, 11, GRANTED), replace(answered(B, 12, 14, HELD), end=None, reply="no answer")]
    write(tmp_path / "0.calls", calls)
    assert read(tmp_path) == calls
