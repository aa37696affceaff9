"""Plays a round: its clients, the trouble of their server, and the searches in its history."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from celery_exclusive.core.operations import Acquire, Reap
from celery_exclusive.stores.base import Reply
from celery_exclusive.stores.redis.cluster import bucket_of
from tests.concurrent.calls import NOT_DONE, Call, Look, read
from tests.concurrent.client import Client, Process, Progress
from tests.concurrent.faults import planted
from tests.concurrent.round import KEYS, Round
from tests.concurrent.search import NEVER, Search
from tests.concurrent.specification import Specification
from tests.concurrent.stage import Stage, Trouble


def play(
    plan: Round, stage: Stage, processes: Sequence[Process], troubles: Sequence[Trouble] = ()
) -> dict[str, Search]:
    """Let the clients run, in processes or, without any, in threads. Return the search of each key.

    The troubles come one after the other, each when a further part of the calls is made.
    """
    stage.clear()
    epochs, marks = {}, {}
    for key, store in plan.open_stores().items():
        store.reap()  # a cluster makes the epochs of its parts when it sweeps
        epochs[key] = store.epoch()
        marks |= {part.epoch(): epochs[key] for part in getattr(store, "buckets", ())}
        store.close()
    progress = Progress(plan)
    with planted("" if processes else plan.fault), ThreadPoolExecutor(plan.clients) as pool:
        run = [it.run for it in processes] or [_in_thread] * plan.clients
        work = [pool.submit(run[number], plan, number) for number in range(plan.clients)]
        try:
            for number, trouble in enumerate(troubles, 1):
                due = plan.clients * plan.calls * number // (len(troubles) + 1)
                while progress.calls < due and not any(each.done() for each in work):
                    time.sleep(0.002)
                stage.make(trouble)
        finally:
            progress.end()
        for each in work:
            each.result()
    stage.note_met(read(plan.folder))
    stage.repair()
    with planted(plan.fault):
        Client(plan.patient, plan.clients).sweep()
    calls = [_settled(stage, call) for call in _parts(plan, read(plan.folder))]
    calls = [of_store(call, marks) for call in calls]
    if stage.skips_locked:
        calls = [*with_skips(calls, locks_next=stage.locks_next)]
    if (sent := stage.sent(plan.list)) is not None:
        count = Counter(sent)
        calls = [replace(call, sent=count[f"{call.client} {call.since}"]) for call in calls]
    calls = [call for call in calls if call.reply != NOT_DONE]
    calls += stage.history(KEYS)
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
            has_early_tombstones=not stage.has_line,
            settles=stage.settles,
        )
        for key in KEYS
    }


def _settled(stage: Stage, call: Call) -> Call:
    """A call without an answer, with the instant by which the server had done it, or never does it."""
    if call.last is None:
        return call
    return replace(call, last=min((it for it in stage.settled if it >= call.last), default=None))


def of_store(call: Call, marks: Mapping[str, str]) -> Call:
    """A call with the epoch of the store in place of the mark of a part.

    While a node of a cluster is silent, a client may know the marks of the others alone, which are as good in
    a promoted message. A sweep has no answer for the keys of that node then: it tells an old time of them.
    """
    operation, reply = call.operation, call.reply
    if isinstance(operation, Acquire) and operation.promoted in marks:
        call = replace(call, operation=replace(operation, promoted=marks[operation.promoted]))
    if isinstance(reply, Reply):
        wake = tuple(replace(it, epoch=marks.get(it.epoch, it.epoch)) for it in reply.wake)
        call = replace(call, reply=replace(reply, wake=wake, epoch=marks.get(reply.epoch, reply.epoch)))
        if isinstance(operation, Reap) and reply.times and reply.times[bucket_of(call.key)] < call.since:
            call = replace(call, end=None, until=0, reply="")
    return call


def with_skips(calls: list[Call], *, locks_next: bool) -> Iterator[Call]:
    """Yield the calls, with the sweeps that may have passed over a key since another call had locked it.

    `locks_next`: a sweep locks a key next to its own, too.
    """
    for call in calls:
        if isinstance(call.operation, Reap):
            end = call.end or NEVER
            others = (
                it
                for it in calls
                if (it.client, it.begin) != (call.client, call.begin) and not isinstance(it.operation, Look)
                if it.key == call.key or (locks_next and isinstance(it.operation, Reap))
            )
            met = any(it.begin <= end and (it.end or it.last or NEVER) >= call.begin for it in others)
            yield replace(call, may_skip=met)
        else:
            yield call


def _in_thread(plan: Round, number: int) -> None:
    Client(plan, number).run()


def _parts(plan: Round, calls: list[Call]) -> list[Call]:
    """A sweep concerns each key of its namespace."""
    if plan.is_timed:
        return calls
    swept = [call.of(key) for call in calls if isinstance(call.operation, Reap) for key in KEYS]
    return [*(call for call in calls if not isinstance(call.operation, Reap)), *swept]
