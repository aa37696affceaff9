"""Plays a round: its clients, the trouble of their server, and the searches in its history."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from celery_exclusive.core.operations import Reap
from tests.concurrent.calls import Call, read
from tests.concurrent.client import Client, Process, Progress
from tests.concurrent.faults import planted
from tests.concurrent.round import LIMITS, Round
from tests.concurrent.search import Search
from tests.concurrent.specification import Specification
from tests.concurrent.stages import Stage, Trouble


def play(
    plan: Round, stage: Stage, processes: Sequence[Process], troubles: Sequence[Trouble] = ()
) -> dict[str, Search]:
    """Let the clients run, in processes or, without any, in threads. Return the search of each key.

    The troubles come one after the other, each when a further part of the calls is made.
    """
    stage.losses.clear()
    epochs = {}
    for key, store in plan.open_stores().items():
        epochs[key] = store.epoch()
        store.close()
    progress = Progress(plan)
    with planted("" if processes else plan.fault), ThreadPoolExecutor(plan.clients) as pool:
        run = [it.run for it in processes] or [_in_thread] * plan.clients
        work = [pool.submit(run[number], plan, number) for number in range(plan.clients)]
        for number, trouble in enumerate(troubles, 1):
            due = plan.clients * plan.calls * number // (len(troubles) + 1)
            while progress.calls < due and not any(each.done() for each in work):
                time.sleep(0.002)
            trouble()
        for each in work:
            each.result()
    stage.repair()
    calls = [*_parts(plan, read(plan.folder)), *stage.history([*LIMITS])]
    specification = Specification(
        offer=plan.offer,
        tombstone_ttl=plan.tombstone_ttl,
        has_line=stage.has_line,
        start=None if plan.knows_instants else min(call.since for call in calls),
        repeats_alone=stage.repeats_alone,
    )
    return {
        key: Search(
            (call for call in calls if call.key == key),
            specification,
            specification.first(epochs[key]),
            skips_locked=stage.skips_locked,
            has_early_tombstones=not stage.has_line,
        )
        for key in LIMITS
    }


def _in_thread(plan: Round, number: int) -> None:
    Client(plan, number).run()


def _parts(plan: Round, calls: list[Call]) -> list[Call]:
    """A sweep concerns each key of its namespace."""
    if plan.is_timed:
        return calls
    swept = [call.of(key) for call in calls if isinstance(call.operation, Reap) for key in LIMITS]
    return [*(call for call in calls if not isinstance(call.operation, Reap)), *swept]
