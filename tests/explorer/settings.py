"""The worlds that are explored, and the faults planted to see that they would be found.

Of `SETTINGS`, which `make test` explores, none has more than 20,000 states; `LARGE` is for `make test-all`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from celery_exclusive.core.operations import Acquire, Operation, Stale
from celery_exclusive.core.records import BEGUN, NEVER, OVER, Document, Line
from celery_exclusive.core.step import Transition, step
from celery_exclusive.stores.base import Snapshot
from tests.explorer.model import MOST_DEATHS, Protocol, Setting

SUPERSEDES: dict[str, Any] = {"supersedes": True, "ordered": True}
QUICK = (
    Setting("a crash and a slow queue", crashes=1, slow=2),
    Setting("no flags: a crash, an unfinished ending", flags=False, crashes=1, unfinished=1),
    Setting("no flags: a lost connection, a crash", flags=False, lost_acks=1, crashes=1),
    Setting("no flags, early ack", flags=False, early=True, crashes=1, lost_acks=1, slow=1),
    Setting("a rejected message returns, a crash", rejections=1, crashes=1),
    Setting("early ack: a crash, a lost connection", early=True, crashes=1, lost_acks=1),
    Setting("recover: a crash, a slow queue", recovers=True, crashes=1, slow=1),
    Setting("order: a crash, a slow queue", ordered=True, recovers=True, crashes=1, slow=1),
    Setting("recover: a body that kills its workers", recovers=True, kills=MOST_DEATHS, slow=1),
    Setting("messages expire behind a body that hangs", hangs=True, tasks=3, workers=3, slow=2),
    Setting("give up: a crash, a slow queue", gives_up=True, crashes=1, slow=1),
    Setting("latest: a slow queue", replaces=True, tasks=3, slow=1),
    Setting("order: a queue without a worker", ordered=True, queues=2, asleep=True, tasks=3, crashes=1),
)
SETTINGS = (
    *QUICK,
    Setting("a live lease lapses", pauses=1, lost_acks=1),
    Setting("a lost reply, a live lease lapses", lost_replies=1, pauses=1, slow=1),
    Setting("a retry, a crash", retries=1, crashes=1),
    Setting("a retry, a live lease lapses", retries=1, pauses=1),
    Setting("recover: a retry, a live lease lapses", recovers=True, retries=1, pauses=1),
    Setting("early ack: a lost reply, a live lease lapses", early=True, lost_replies=1, pauses=1),
    Setting("limit 2: three tasks, a crash", tasks=3, workers=3, limit=2, crashes=1),
    Setting("recover: the store is away, a crash", recovers=True, outages=1, crashes=1),
    Setting("recover: a lost connection", recovers=True, workers=3, lost_acks=1, slow=1),
    Setting("recover: an unfinished ending, a crash", recovers=True, unfinished=1, crashes=1),
    Setting("recover: a lost reply, a crash", recovers=True, lost_replies=1, crashes=1),
    Setting("recover: a live lease lapses, a crash", recovers=True, workers=3, pauses=1, crashes=1),
    Setting("order: three tasks, a crash", ordered=True, tasks=3, workers=3, crashes=1),
    Setting("order: a lost connection, a lost reply", ordered=True, workers=3, lost_acks=1, lost_replies=1),
    Setting("order: an unfinished ending, a crash", ordered=True, unfinished=1, crashes=1),
    Setting("order: a body that kills its workers", ordered=True, recovers=True, kills=MOST_DEATHS, slow=1),
    Setting("order: messages expire", ordered=True, hangs=True, tasks=3, workers=3, slow=1, lost_replies=1),
    Setting("early ack: messages expire", early=True, hangs=True, tasks=3, workers=3, slow=2),
    Setting("crowded: three tasks, a crash", crowded=True, tasks=3, workers=3, limit=2, crashes=1),
    Setting("crowded: recover, a crash", crowded=True, recovers=True, limit=2, crashes=2),
    Setting("crowded: a live lease lapses", crowded=True, limit=2, pauses=1, lost_acks=1),
    Setting("give up behind a body that hangs", gives_up=True, hangs=True, tasks=3, workers=3, slow=2),
    Setting("give up: recover, a crash", gives_up=True, recovers=True, crashes=1, slow=1),
    Setting("give up: a lost reply, early ack", gives_up=True, early=True, tasks=3, lost_replies=1),
    Setting("give up: a retry", gives_up=True, retries=1, slow=1),
    Setting("give up: order, an outage", gives_up=True, ordered=True, recovers=True, outages=1, crashes=1),
    Setting("latest: recover, a crash", replaces=True, tasks=3, recovers=True, crashes=1),
    Setting("latest: a lost connection", replaces=True, tasks=3, lost_acks=1),
    Setting("latest: limit 2, early ack", replaces=True, tasks=4, workers=3, limit=2, early=True, slow=1),
    Setting("latest, give up", replaces=True, gives_up=True, tasks=3, hangs=True, slow=1),
    Setting("order: early ack, a crash", ordered=True, early=True, tasks=3, crashes=1, slow=1),
    Setting("two queues: a crash, a slow queue", queues=2, crashes=1, slow=2),
    Setting("two queues: order, recover, a crash", queues=2, ordered=True, recovers=True, crashes=1, slow=1),
    Setting("two queues: give up, early ack", queues=2, gives_up=True, early=True, tasks=3, slow=1),
    Setting("dear: three tasks, a crash", dear=True, limit=2, tasks=3, workers=3, crashes=1),
    Setting("dear: order, recover, a crash", dear=True, limit=2, tasks=3, workers=3, ordered=True, crashes=1),
    Setting("supersede: a crash, a slow queue", **SUPERSEDES, crashes=1, slow=1),
    Setting("supersede: early ack, a crash", **SUPERSEDES, early=True, tasks=3, crashes=1),
    Setting("supersede: give up, a slow queue", **SUPERSEDES, gives_up=True, tasks=3, slow=1),
    Setting("supersede: one is revoked, a slow queue", **SUPERSEDES, tasks=3, revocations=1, slow=1),
    Setting("supersede: recover, a retry, a crash", **SUPERSEDES, recovers=True, retries=1, crashes=1),
    Setting("supersede: two queues", **SUPERSEDES, queues=2, tasks=3, slow=1),
    Setting(
        "every head steps aside: a crash, a slow queue", offers_in_line=1, offers_aside=5, crashes=1, slow=1
    ),
)

LARGE = (
    Setting("latest: order, a lost reply", replaces=True, ordered=True, tasks=3, lost_replies=1, crashes=1),
    Setting("give up: a lost connection, a retry", gives_up=True, lost_acks=1, retries=1),
    Setting("latest: a crash, a slow queue", replaces=True, tasks=3, crashes=1, slow=1),
    Setting("large: no flags: a crash, an unfinished ending", flags=False, crashes=1, unfinished=1, slow=1),
    Setting("large: no flags: a lost connection, a crash", flags=False, workers=3, lost_acks=1, crashes=1),
    Setting("large: a rejected message returns, a crash", rejections=1, crashes=1, slow=1),
    Setting("large: early ack: a crash, a lost connection", early=True, crashes=1, lost_acks=1, slow=1),
    Setting("large: recover: a body that kills its workers", recovers=True, kills=MOST_DEATHS, crashes=1),
    Setting("large: a live lease lapses", workers=3, pauses=1, lost_acks=1, slow=1),
    Setting("large: a lost reply, a live lease lapses", lost_replies=1, pauses=1, lost_acks=1),
    Setting("large: a retry, a crash", retries=1, crashes=1, slow=1),
    Setting("large: limit 2: three tasks, a crash", tasks=3, workers=3, limit=2, crashes=1, slow=1),
    Setting("large: recover: a crash, a lost connection", recovers=True, workers=3, crashes=1, lost_acks=1),
    Setting(
        "large: order: messages expire", ordered=True, hangs=True, tasks=3, workers=3, slow=2, lost_replies=1
    ),
    Setting("order: all", ordered=True, recovers=True, tasks=3, workers=3, crashes=1, lost_acks=1, slow=1),
    Setting("order: limit 2", ordered=True, tasks=3, workers=3, limit=2, lost_acks=1, slow=1),
    Setting("recover: all", recovers=True, crashes=1, lost_acks=1, unfinished=1, slow=1, pauses=1),
    Setting("recover: three workers", recovers=True, workers=3, crashes=2, slow=1, outages=1),
    Setting("recover: three tasks", recovers=True, tasks=3, workers=3, crashes=1, outages=1),
    Setting("recover: limit 2", recovers=True, tasks=3, workers=3, limit=2, crashes=1, outages=1),
    Setting("recover: retry, replies", recovers=True, retries=1, crashes=1, lost_replies=1),
    Setting("crowded", crowded=True, recovers=True, tasks=3, workers=3, limit=2, crashes=1, outages=1),
    Setting("all: late", crashes=1, lost_acks=1, unfinished=1, slow=1, pauses=1),
    Setting("all: three workers", workers=3, crashes=1, lost_acks=1, unfinished=1, slow=1),
    Setting("two crashes, two lost connections", crashes=2, lost_acks=2),
    Setting("replies", lost_replies=2, pauses=1, lost_acks=1, crashes=1),
    Setting("retry", retries=1, crashes=1, lost_acks=1, slow=1),
    Setting("no flags", flags=False, crashes=1, lost_acks=1, unfinished=1, slow=1),
    Setting("rejected", rejections=1, crashes=1, lost_acks=1, slow=1),
    Setting("early ack", early=True, workers=3, crashes=2, lost_acks=1, slow=1, pauses=1),
    Setting("three tasks", tasks=3, workers=3, crashes=1, slow=1, pauses=1),
    Setting("limit 2", tasks=3, workers=3, limit=2, crashes=1, lost_acks=1),
    Setting("aside", offers_in_line=1, offers_aside=6, crashes=1, lost_acks=1, unfinished=1, slow=1),
    Setting("three tasks in two queues", queues=2, tasks=3, crashes=1, slow=1),
    Setting("supersede: all end", **SUPERSEDES, tasks=3, gives_up=True, revocations=1, crashes=1),
    Setting("supersede: give up, a retry", **SUPERSEDES, gives_up=True, retries=1, crashes=1),
    Setting("supersede: two queues, recover", **SUPERSEDES, queues=2, recovers=True, crashes=1, slow=1),
    Setting("supersede: replies, pauses", **SUPERSEDES, tasks=3, lost_replies=1, lost_acks=1, pauses=1),
    Setting("three aside", tasks=3, offers_in_line=1, offers_aside=5, crashes=1, slow=1),
)


def _no_tombstone(document: Document, line: Line, operation: Operation, now: int) -> Transition:
    return replace(step(document, line, operation, now), tombstone=None)


def _any_token(document: Document, line: Line, operation: Operation, now: int) -> Transition:
    holders = tuple(replace(holder, token="mine") for holder in document.holders)
    return step(replace(document, holders=holders), line, operation, now)


def _no_offer(document: Document, line: Line, operation: Operation, now: int) -> Transition:
    return replace(step(document, line, operation, now), wake=(), due=None)


def _copies_leave(document: Document, line: Line, operation: Operation, now: int) -> Transition:
    """End the message with the grant, at any time of its acknowledgement."""
    if isinstance(operation, Acquire):
        operation = replace(operation, acks_late=False)
    return step(document, line, operation, now)


def _no_entry_is_stale(document: Document, line: Line, operation: Operation, now: int) -> Transition:
    """The same, and a promoted copy is good only while its entry stands."""
    if isinstance(operation, Acquire) and operation.promoted and not operation.redelivered and not line.entry:
        return Transition(document, Stale())
    return _copies_leave(document, line, operation, now)


def _no_mark_of_begin(document: Document, line: Line, operation: Operation, now: int) -> Transition:
    transition = step(document, line, operation, now)
    return replace(transition, tombstone=None) if transition.tombstone == BEGUN else transition


def _any_end(document: Document, line: Line, operation: Operation, now: int) -> Transition:
    living = tuple(holder for holder in document.holders if holder.expiry > now)
    return step(replace(document, holders=living), line, operation, now)


def _no_deaths(document: Document, line: Line, operation: Operation, now: int) -> Transition:
    transition = step(document, line, operation, now)
    return replace(transition, entries=tuple(replace(entry, deaths=0) for entry in transition.entries))


def _no_recall(document: Document, line: Line, operation: Operation, now: int) -> Transition:
    return step(document, replace(line, overdue=()), operation, now)


def _counts_what_it_reads(document: Document, line: Line, operation: Operation, now: int) -> Transition:
    return step(replace(document, unread=0), line, operation, now)


def _sees_no_other_end(document: Document, line: Line, operation: Operation, now: int) -> Transition:
    return step(replace(document, unread_expiry=NEVER), replace(line, others_behind=0), operation, now)


def _keeps_what_is_over(document: Document, line: Line, operation: Operation, now: int) -> Transition:
    """End the wait of a message, and do not wake it."""
    transition = step(document, line, operation, now)
    over = [entry.id for entry in transition.entries if entry.over is not None]
    return replace(transition, wake=tuple(id for id in transition.wake if id not in over), due=None)


def _all_give_up(document: Document, line: Line, operation: Operation, now: int) -> Transition:
    """Let a message that has begun give up when it waits again."""
    transition, behind = step(document, line, operation, now), {entry.id for entry in line.behind}
    entries = (
        replace(entry, gives_up=True, deadline=now + 1) if entry.id in behind else entry
        for entry in transition.entries
    )
    return replace(transition, entries=tuple(entries))


def _all_are_replaced(document: Document, line: Line, operation: Operation, now: int) -> Transition:
    last = tuple(replace(entry, replaceable=True) for entry in line.last)
    head = tuple(replace(entry, replaceable=True) for entry in line.head)
    return step(document, replace(line, last=last, head=head), operation, now)


def _ends_twice(document: Document, line: Line, operation: Operation, now: int) -> Transition:
    """Answer each copy of a message whose wait is over as the first one."""
    if isinstance(operation, Acquire) and line.tombstone and line.tombstone.startswith(OVER):
        operation = replace(operation, redelivered=True)
    return step(document, line, operation, now)


def _what_has_begun_is_newer(snapshot: Snapshot, id: str) -> str | None:
    line = tuple(replace(it, is_replaceable=True) for it in snapshot.line)
    return Snapshot.newer_than(replace(snapshot, line=line), id)


def _what_was_passed_is_newer(document: Document, line: Line, operation: Operation, now: int) -> Transition:
    transition = step(document, line, operation, now)
    before = {entry.id for entry in (*line.head, *line.aside) if entry.replaceable}
    entries = (
        replace(entry, replaceable=entry.replaceable or (entry.id in before and entry.state == "waiting"))
        for entry in transition.entries
    )
    return replace(transition, entries=tuple(entries))


def _no_cost(document: Document, line: Line, operation: Operation, now: int) -> Transition:
    holders = tuple(replace(holder, cost=1) for holder in document.holders)
    return step(replace(document, holders=holders), line, operation, now)


def _no_limit(document: Document, line: Line, operation: Operation, now: int) -> Transition:
    if isinstance(operation, Acquire):
        operation = replace(operation, limit=operation.limit + 1)
    return step(document, line, operation, now)


CONTROLS = {
    "park in two steps": (Setting("no fault at all"), Protocol(parks_in_two_steps=True)),
    "no tombstone": (Setting("a lost connection", lost_acks=1), Protocol(_no_tombstone)),
    "no done": (Setting("an unfinished ending", unfinished=1, lost_acks=1), Protocol(knows_unfinished=False)),
    "no reaper": (Setting("a crash", crashes=1), Protocol(reaps=False)),
    "id without publish id": (Setting("a retry", retries=1), Protocol(retries_have_ids=False)),
    "promoted copies are fresh": (Setting("a slow queue", slow=1), Protocol(knows_promoted=False)),
    "a repeated request is sent as the first": (
        Setting("a lost reply, a live lease lapses", lost_replies=1, pauses=1),
        Protocol(repeats_as_redelivered=False),
    ),
    "an overtaken delivery takes the copy along": (
        Setting("a crash, a lost connection", workers=3, crashes=1, lost_acks=1),
        Protocol(_copies_leave),
    ),
    "a copy that returns unflagged is stale for want of an entry": (
        Setting("no flags, an unfinished ending", flags=False, unfinished=1),
        Protocol(_no_entry_is_stale),
    ),
    "a rejected message returns under its old id": (
        Setting("a rejection", rejections=1),
        Protocol(lives_have_ids=False),
    ),
    "an early message that has begun leaves no mark": (
        Setting("early ack: a crash, a slow queue", early=True, crashes=1, slow=1),
        Protocol(_no_mark_of_begin),
    ),
    "a run that dies is not kept": (
        Setting("recover: a crash", recovers=True, crashes=1),
        Protocol(keeps_messages=False),
    ),
    "a sweep after an outage does not wait for those who live": (
        Setting("recover: the store is away", recovers=True, outages=1),
        Protocol(sweeps_wait=False),
    ),
    "any operation ends a lease with a copy": (
        Setting("recover: the store is away", recovers=True, outages=1),
        Protocol(_any_end),
    ),
    "a dead run loses its place": (
        Setting("order: a crash", ordered=True, recovers=True, crashes=1),
        Protocol(keeps_places=False),
    ),
    "a death is not counted": (
        Setting("recover: a body that kills its workers", recovers=True, kills=MOST_DEATHS),
        Protocol(_no_deaths),
    ),
    "what expires in line waits for its turn": (
        Setting("messages expire behind a body that hangs", hangs=True),
        Protocol(_no_recall),
    ),
    "holders that were not read do not count": (
        Setting("crowded", crowded=True, tasks=3, workers=3, limit=2),
        Protocol(_counts_what_it_reads),
    ),
    "the end of a lease that was not read is not awaited": (
        Setting("crowded: a crash", crowded=True, recovers=True, limit=2, crashes=1),
        Protocol(_sees_no_other_end),
    ),
    "what is over is not woken": (Setting("give up", gives_up=True), Protocol(_keeps_what_is_over)),
    "each copy ends the task": (
        Setting("give up: a slow queue", gives_up=True, slow=1),
        Protocol(_ends_twice),
    ),
    "what has begun is replaced": (
        Setting("latest: recover, a crash", replaces=True, tasks=3, recovers=True, crashes=1),
        Protocol(_all_are_replaced),
    ),
    "what has begun gives up": (
        Setting("give up: recover, a crash", gives_up=True, recovers=True, crashes=1),
        Protocol(_all_give_up),
    ),
    "the line does not know its queues": (
        Setting("order: a queue without a worker", ordered=True, queues=2, asleep=True, slow=1),
        Protocol(knows_queues=False),
    ),
    "what has begun counts as a newer call": (
        Setting("supersede: a retry", **SUPERSEDES, retries=1),
        Protocol(newer_than=_what_has_begun_is_newer),
    ),
    "a call that others have passed counts as newer than they are": (
        Setting("supersede: two queues", **SUPERSEDES, queues=2, slow=1),
        Protocol(_what_was_passed_is_newer),
    ),
    "a body that was told does not look whether the newer call is still there": (
        Setting("supersede: give up", **SUPERSEDES, gives_up=True),
        Protocol(looks_again=False),
    ),
    "the retry of a superseded run runs": (
        Setting("supersede: a retry", **SUPERSEDES, retries=1),
        Protocol(retries_are_superseded=False),
    ),
    "any token will do": (Setting("a lost connection", lost_acks=1), Protocol(_any_token)),
    "nobody is woken": (Setting("no fault at all"), Protocol(_no_offer)),
    "one too many": (Setting("no fault at all"), Protocol(_no_limit)),
    "a lease holds one unit, whatever its run costs": (
        Setting("dear", dear=True, limit=2, tasks=3, workers=3),
        Protocol(_no_cost),
    ),
}
