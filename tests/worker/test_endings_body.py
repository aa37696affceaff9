"""However a body ends, its key goes on and never sooner, what should run again does, and nothing is left."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import celery
import pytest

from celery_exclusive import Exclusive
from tests.worker.lab import Lab, eventually
from tests.worker.stage import Stage, on_stages
from tests.worker.versions import needs_celery

CALM: dict[str, Any] = {"exclusive_ttl": 600, "exclusive_reap_period": 20}
"""No lease runs out, and who sees the end lets the next one in, long before a reaper would.

But a child that is killed while it does so leaves it to the reaper: Celery gives it 0.1 s after SIGTERM.
"""
LINE = ("first", "second", "last")
ARRIVED = {"exclusive": Exclusive("key", order="arrived")}
"""With late acknowledgement a task that dies runs again behind those that wait."""


@dataclass(frozen=True)
class Ending:
    """A way to end; how often such a task runs with late, and with early acknowledgement.

    The first in line holds the key from the beginning, the second has waited for it: `who` ends like this.
    """

    how: str
    runs: tuple[int, int] = (1, 1)
    who: tuple[str, ...] = LINE[:2]
    limits: dict[str, float] = field(default_factory=dict)
    note: str = ""

    @property
    def row(self) -> str:
        return self.note or self.how

    def count(self, *, late: bool) -> dict[str, int]:
        """How often each one of the line runs."""
        return {tag: self.runs[not late] if tag in self.who else 1 for tag in LINE}

    def is_right(self, lab: Lab, *, late: bool) -> bool:
        return Counter(lab.journal.tags("start", key=self.how)) == self.count(late=late)


TOLD = [
    *(Ending(how) for how in ("return", "exception", "ignore", "reject")),
    *(Ending(how, (2, 2)) for how in ("retry", "retry-later", "retries-exhausted", "autoretry", "replace")),
    Ending("reject-requeue", (2, 1)),
]
# Celery before 5.7 acknowledges these, and says nothing.
AS_LOST = (2, 1) if celery.VERSION >= (5, 7) else (1, 1)
EXITS = [
    Ending("system-exit", AS_LOST),
    Ending("keyboard-interrupt", AS_LOST, note="system-exit"),
    Ending("base-exception", note="system-exit"),
]
# Celery may need 5 s to see that a child is gone: one death per line, since those are awaited in turn.
DEATHS = [Ending("child-exit", (2, 1), LINE[:1]), Ending("child-killed", (2, 1), LINE[1:2])]
# They run from the start of a body, and so would begin before there is a line, if it were the first.
LIMITS = [
    Ending("soft-limit", who=LINE[1:2], limits={"soft_time_limit": 5}),
    Ending("hard-limit", who=LINE[1:2], limits={"time_limit": 5}),
    Ending("hard-limit-stubborn", who=LINE[1:2], limits={"time_limit": 5}, note="hard-limit"),
    Ending("hard-limit-c", who=LINE[1:2], limits={"time_limit": 5}),
]


def line_up(lab: Lab, endings: list[Ending], **queues: str) -> None:
    """For each ending a body that is held open at its door, and two in line behind it."""
    for place, tag in enumerate(LINE):
        for ending in endings:
            how = ending.how if tag in ending.who else "return"
            limits = ending.limits if tag in ending.who else {}
            options = {**limits, **ARRIVED, "queue": queues.get(tag, "lab")}
            lab.send("end", ending.how, tag, how, hold=place == 0, options=options)
        for ending in endings:
            if place:
                lab.wait_for_line(place, "end", ending.how)
            else:
                lab.journal.wait_for("start", key=ending.how)


def let_end(lab: Lab, endings: list[Ending]) -> None:
    """Let all end, one after the other, and then together those that take a while."""
    slow = [ending for ending in endings if ending in (*DEATHS, *LIMITS)]
    for ending in endings:
        if ending not in slow:
            lab.open(ending.how)
            lab.journal.wait_for("end", key=ending.how, tag="last")
    lab.open(*(ending.how for ending in slow))
    for ending in slow:
        lab.journal.wait_for("end", key=ending.how, tag="last")


def assert_all_went_right(stage: Stage, lab: Lab, endings: list[Ending]) -> None:
    for ending in endings:
        eventually(
            lambda ending=ending: ending.is_right(lab, late=stage.late),
            f"{ending.how}: {ending.count(late=stage.late)}",
        )
    assert lab.journal.events("beside") == []
    stage.assert_nothing_is_left(lab)
    eventually(lambda: stage.messages_at_the_broker(lab, "side") == 0, "an empty queue of the others")
    for ending in endings:
        assert ending.is_right(lab, late=stage.late)  # and not once more
        assert tuple(lab.journal.tags("start", key=ending.how)[:3]) == LINE
        for one, other in pairwise(LINE):
            if one in ending.who:
                note(stage, lab, ending, one, other)


def note(stage: Stage, lab: Lab, ending: Ending, one: str, other: str) -> None:
    """A limit runs from when Celery accepts a task, maybe before its body begins, but not before its turn."""
    what, who = ("end", LINE[LINE.index(one) - 1]) if ending.limits else ("ends", one)
    since = lab.journal.events(what, key=ending.how, tag=who)[0]["at"]
    (until,) = [event["at"] for event in lab.journal.events("start", key=ending.how, tag=other)[:1]]
    stage.note(ending.row, since + round(1e9 * sum(ending.limits.values())), until)


@pytest.mark.promise(
    "The next task starts as soon as the worker sees the end of a run (`ttl` and the reaper's period are "
    "60 s)",
    name="prompt release",
    broke="a parent that does not release; the pid is not waited for; terminated frees at once",
    figure=(
        "[endings-figures.md](evidence/endings-figures.md) has the times; a slow machine must not turn a "
        "test red, so none sets a limit of 1 s"
    ),
)
@pytest.mark.promise(
    "The key is free, or stays with the task, after each ending of a body: return, exception, retry, "
    "autoretry, Ignore, Reject with and without requeue, replace, SystemExit and other BaseExceptions, "
    "`os._exit`, SIGKILL of the child, soft and hard limits, C code that ignores signals",
    name="endings of a body",
    broke=(
        "release only if done; the parent does not release; the pid is not waited for; requeued is done; a "
        "lost child is done"
    ),
)
@pytest.mark.each_part
@on_stages("prefork")
def test_the_key_goes_on_after_each_ending_of_a_body_in_a_child(stage: Stage) -> None:
    lab = stage.make_lab(**CALM)
    endings = [*TOLD, *EXITS, *DEATHS, *LIMITS]
    stage.start_worker(lab, "w1", slots=len(endings) + 3, options=("-Q", "lab"), ready=False)
    stage.start_worker(lab, "w2", options=("-Q", "side"))  # goes on while the other one awaits a child's end
    line_up(lab, endings, last="side")
    let_end(lab, endings)
    assert_all_went_right(stage, lab, endings)
    last_sign = lab.journal.events("alive")[-1]["at"]
    (start,) = lab.journal.events("start", key="hard-limit-stubborn", tag="last")
    assert last_sign < start["at"]


@pytest.mark.proves("endings of a body")
@pytest.mark.each_part
@on_stages("threads", "gevent", late_only=("rabbitmq",))
def test_the_key_goes_on_after_each_ending_of_a_body_in_a_pool_of_one_process(stage: Stage) -> None:
    lab = stage.make_lab(**CALM)
    endings = [*TOLD, *[ending for ending in LIMITS if (stage.pool, ending.how) == ("gevent", "hard-limit")]]
    stage.start_worker(lab, slots=len(endings) + 3)
    line_up(lab, endings)
    let_end(lab, endings)
    assert_all_went_right(stage, lab, endings)


@pytest.mark.proves("endings of a body")
@pytest.mark.each_part
@on_stages("solo", late_only=("rabbitmq",))
def test_the_key_goes_on_after_each_ending_of_a_body_in_a_worker_that_does_one_thing_at_a_time(
    stage: Stage,
) -> None:
    lab = stage.make_lab(**CALM)
    stage.start_worker(lab, "w1", options=("-Q", "lab"), ready=False)
    stage.start_worker(lab, "w2", options=("-Q", "side"))
    for ending in TOLD:
        line_up(lab, [ending], first="side")
        let_end(lab, [ending])
    assert_all_went_right(stage, lab, TOLD)


PLACES = (
    *("before-acquire", "after-park", "before-promoted", "after-grant", "before-release", "after-release"),
    *("before-publish", "after-publish"),
)
FRESH = ("before-acquire", "after-grant", "before-release", "after-release")
INSTEAD_OF_BODY = {
    "before-acquire:fresh",
    "after-grant:fresh",
    "before-promoted:waited",
    "after-grant:waited",
}


@pytest.mark.promise(
    "A soft limit inside acquire, park, release or publish harms neither lease nor line nor result, with "
    "and without another thread in the child (Redis)",
    broke="the limit is not kept out of the release; `finish` does not repeat",
)
@pytest.mark.proves("soft limit reaches the body")
@on_stages("prefork", brokers=("redis",))
def test_a_soft_limit_inside_our_own_calls_harms_neither_lease_nor_line_nor_result(stage: Stage) -> None:
    lab = stage.make_lab("tests.worker.shop_unlucky", **CALM)
    stage.start_worker(lab, slots=len(PLACES) + 2)
    for place in PLACES:
        lab.send("wait", place, tag="holder", hold=True, options=ARRIVED)
    lab.journal.wait_for("start", len(PLACES), tag="holder")
    results = [send_unlucky(lab, place, "waited", place) for place in PLACES]
    for place in PLACES:
        lab.wait_for_line(1, "wait", place)
        lab.send("wait", place, tag="next", options=ARRIVED)
        lab.wait_for_line(2, "wait", place)
    lab.open(*["holder"] * len(PLACES))
    results += [send_unlucky(lab, place, "fresh", f"{place}:fresh") for place in FRESH]
    for result in results:
        eventually(result.ready, result.id)
    for place in FRESH:
        lab.send("wait", f"{place}:fresh", tag="next", options=ARRIVED)
    lab.journal.wait_for("end", len(results), tag="next")
    stage.assert_nothing_is_left(lab)
    assert {event["id"] for event in lab.journal.events("limit")} == {result.id for result in results}
    for result in results:
        is_cut = result.id in INSTEAD_OF_BODY
        assert result.state == ("FAILURE" if is_cut else "SUCCESS"), result.id
        assert len(lab.journal.events("end", tag=result.id)) == (not is_cut)
    for key in {event["key"] for event in lab.journal.events("start")}:
        assert lab.journal.most_open(key=key) == 1


def send_unlucky(lab: Lab, place: str, kind: str, key: str) -> Any:
    id = f"{place}:{kind}"
    return lab.send("wait", key, tag=id, options={"task_id": id, **ARRIVED})


@pytest.mark.promise(
    "MemoryError ends the worker: its key is free first, with late acknowledgement the task runs again, "
    "and a body beside it keeps its lease (Redis)",
    name="out of memory",
    broke="MemoryError is done; locks stopped before the pool",
)
@pytest.mark.each_part
@on_stages("prefork", "threads", "gevent", "solo", brokers=("redis",))
def test_a_body_that_takes_its_worker_along_frees_its_key_first(stage: Stage) -> None:
    """A worker may end of it, or, where it is a thread's, only forget the message until it ends."""
    lab = stage.make_lab(**CALM)
    ways = ways_out(stage)
    doomed = stage.start_worker(lab, "w1", slots=len(ways) + 1, options=("-Q", "side"), ready=False)
    other = stage.start_worker(lab, "w2", slots=len(ways) + 1, options=("-Q", "lab"))
    doomed.wait_ready()
    for how in ways:
        lab.send("end", how, "before", hold=True, options=ARRIVED)
        lab.journal.wait_for("start", key=how)
        lab.send("end", how, "doomed", how, hold=True, options={"queue": "side", **ARRIVED})
        lab.wait_for_line(1, "end", how)
        lab.open(how)
        lab.journal.wait_for("start", key=how, tag="doomed")
        lab.send("end", how, "next", options=ARRIVED)
        lab.wait_for_line(1, "end", how)
    for how in ways:
        lab.open(how)
        (start,) = lab.journal.wait_for("start", key=how, tag="next")
        (ends,) = lab.journal.events("ends", key=how, tag="doomed")
        stage.note("memory-error" if how == "memory-error" else "system-exit", ends["at"], start["at"])
    if len(ways) > 1:
        assert doomed.stop() == 0
    else:
        assert doomed.process.wait(60) == 1
    lab.app.control.add_consumer("side", destination=[other.name])
    runs = 1 + stage.late
    lab.journal.wait_for("end", runs * len(ways), tag="doomed")
    stage.assert_nothing_is_left(lab)
    assert lab.journal.events("beside") == []
    assert sorted(lab.journal.tags("start")) == sorted(["before", "next", *["doomed"] * runs] * len(ways))


def ways_out(stage: Stage) -> list[str]:
    if stage.pool in ("threads", "gevent"):
        return ["system-exit", "keyboard-interrupt", "base-exception", "memory-error"]
    return ["system-exit"] if (stage.pool, stage.late) == ("solo", False) else ["memory-error"]


@pytest.mark.proves("out of memory")
@on_stages("prefork", brokers=("redis",), lates=(True,))
def test_a_body_beside_one_that_runs_out_of_memory_keeps_its_lease_to_its_end(stage: Stage) -> None:
    lab = stage.make_lab(**CALM)
    doomed = stage.start_worker(lab, "w1", options=("-Q", "side"))
    brief = {"exclusive": Exclusive("key", ttl=12, order="arrived")}
    lab.send("brief", "k", "beside", hold=True, options={"queue": "side", **brief})
    lab.journal.wait_for("start", tag="beside")
    lab.send("end", "k", "doomed", "memory-error", options={"queue": "side", **ARRIVED})
    doomed.wait_for_log("Unrecoverable error")
    stage.start_worker(lab, "w2", options=("-Q", "lab"), exclusive_reap_period=0.1)
    lab.send("brief", "k", "next", options=brief)
    lab.wait_for_line(1, "brief", "k")
    lab.assert_kept("brief", "k")
    lab.open("beside")
    lab.journal.wait_for("end", tag="next")
    assert lab.journal.most_open(task="tests.worker.shop_endings.brief") == 1
    assert doomed.process.wait(60) == 1
    assert lab.journal.tags("start") == ["beside", "doomed", "next"]


@pytest.mark.promise(
    "A line goes on while a child is replaced after each task, and as a `rate_limit` allows",
    name="replaced children and rate limits",
    broke="no task is woken; copies treated as fresh",
)
@on_stages("prefork", late_only=("rabbitmq",))
def test_a_line_goes_on_from_child_to_child_while_each_is_replaced(stage: Stage) -> None:
    lab = stage.make_lab(**CALM)
    ways = {"lab": "--max-tasks-per-child", "side": "--max-memory-per-child"}
    workers = [
        stage.start_worker(lab, queue, options=("-Q", queue, option, "1"), ready=False)
        for queue, option in ways.items()
    ]
    tags = ["0", "1", "2"]
    for worker in workers:
        worker.wait_ready()
    for queue in ways:
        lab.send("end", queue, tags[0], hold=True, options={"queue": queue})
        lab.journal.wait_for("start", key=queue)
    for place, tag in enumerate(tags[1:], 1):
        for queue in ways:
            lab.send("end", queue, tag, options={"queue": queue})
        for queue in ways:
            lab.wait_for_line(place, "end", queue)
    lab.open(*ways)
    for queue in ways:
        lab.journal.wait_for("end", len(tags), key=queue)
        starts = lab.journal.events("start", key=queue)
        assert [start["tag"] for start in starts] == tags
        assert len({start["pid"] for start in starts}) == len(tags)
        for end, start in zip(lab.journal.events("end", key=queue), starts[1:], strict=False):
            stage.note("recycled", end["at"], start["at"])
    stage.assert_nothing_is_left(lab)
    assert lab.journal.most_open(key="lab") == lab.journal.most_open(key="side") == 1


@pytest.mark.promise(
    "A child over its hard limit keeps its key until it is dead, however long the hooks of users take "
    "(Celery 5.7, Redis, late)",
    broke="its lease is no longer renewed",
)
@needs_celery("5.7", "hooks that are called before the child is killed")
@on_stages("prefork", brokers=("redis",), lates=(True,))
def test_a_child_over_its_hard_limit_keeps_its_key_until_it_is_dead_however_long_hooks_take(
    stage: Stage,
) -> None:
    lab = stage.make_lab()
    stage.start_worker(lab, "doomed", options=("-Q", "side"))
    stage.start_worker(lab, "other", options=("-Q", "lab"))
    options = {"time_limit": 5, "queue": "side"}
    lab.send("slow", "k", "doomed", "hard-limit-stubborn", options=options)
    lab.journal.wait_for("start", tag="doomed")
    lab.send("slow", "k", "next")
    lab.wait_for_line(1, "slow", "k")
    lab.journal.wait_for("hook")
    lab.assert_kept("slow", "k", renewals=4)
    assert lab.journal.tags("start") == ["doomed"]
    lab.open("hook")
    lab.journal.wait_for("end", tag="next")
    assert lab.journal.events("beside") == []
    stage.assert_nothing_is_left(lab)


@pytest.mark.proves("replaced children and rate limits")
@on_stages("prefork", lates=(True,))
def test_a_line_of_tasks_with_a_rate_limit_moves_as_the_limit_allows(stage: Stage) -> None:
    """Its worker keeps a promoted message back for longer than its offer lasts, and so gets it again."""
    lab = stage.make_lab(exclusive_ttl=600, exclusive_offer=0.1, exclusive_reap_period=0.05)
    worker = stage.start_worker(lab)
    tags = ["0", "1", "2", "3"]
    for place, tag in enumerate(tags):
        lab.send("limited", "k", tag, hold=place == 0)
        if place:
            lab.wait_for_line(place, "limited", "k")
        else:
            lab.journal.wait_for("start")
    lab.open("k")
    lab.journal.wait_for("end", len(tags))
    worker.wait_for_log("dropped: another copy")
    stage.assert_nothing_is_left(lab)
    assert lab.journal.tags("start") == tags
    assert lab.journal.most_open() == 1
