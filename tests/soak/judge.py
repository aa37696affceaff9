"""The judge of a round: it knows its journal alone, and nothing of the library.

Other facts of the journal excuse a run from when its lease may have ended: its process stood still, its store
was away, or an operator released it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

from tests.soak.record import SECOND, Call, Event, Record, Run

_READY = ("SUCCESS", "FAILURE", "REVOKED")
_SLACK = 5 * SECOND
"""How long a key may be held after the last line of its body."""
_SKEW = 1.5
"""Seconds from the grant of a start to its body, at most."""


@dataclass(frozen=True)
class Finding:
    """What must not be, and the lines of the journal that prove it."""

    kind: str
    text: str
    lines: tuple[Event, ...]

    def __str__(self) -> str:
        return "\n".join([f"{self.kind}: {self.text}", *(f"    {json.dumps(line)}" for line in self.lines)])


def judge(events: Sequence[Event]) -> list[Finding]:
    """Return all that must not be."""
    record = Record(events)
    rules = (overlaps, lost, twice, disorder, rates, newest, let_in, refused, left)
    return [finding for rule in rules for finding in rule(record)]


def overlaps(record: Record) -> Iterator[Finding]:
    """Find bodies that ran beside more of their key, or of its part, than the limit allows."""
    for option, own, _ in record.keys_of("exclusive"):
        runs = [_with_retry(record, run) for run in own] if option["keep_on_retry"] else own
        yield from _beyond(record, runs, option["limit"], option.get("cost", 1))
        for limits, mine in _parts(option, runs):
            yield from _beyond(record, mine, limits.get("limit"), option.get("cost", 1))
    for option, runs, _ in record.keys_of("unique"):
        if option.get("until") == "finished":
            yield from _beyond(record, runs, 1, 1)


def _parts(option: Event, runs: Sequence[Run]) -> Iterator[tuple[Event, list[Run]]]:
    """Yield the limits of a part, and its runs, for each part of a key that has such limits."""
    if isinstance(per := option.get("per"), dict):
        for part in {run.begin["part"] for run in runs}:
            yield per, [run for run in runs if run.begin["part"] == part]


def _with_retry(record: Record, run: Run) -> Run:
    """Return a run that keeps its lease until its next attempt begins."""
    attempt = run.begin["attempt"] + 1
    later = [it.since for it in record.runs[run.begin["number"]] if it.begin["attempt"] == attempt]
    if run.how != "retry" or not later or record.faults(run.since, later[0]):
        return run
    return Run(run.begin, later[0], run.how)


def _beyond(record: Record, runs: Sequence[Run], limit: int | None, cost: Any) -> Iterator[Finding]:
    for run in runs if limit else ():
        beside = [it for it in runs if it.since <= run.since < min(it.until, record.lapse(it))]
        if limit and sum(min(it.units(cost), limit) for it in beside) > limit:
            yield Finding(
                "overlap", f"{len(beside)} bodies at once beyond the limit {limit}", _lines(*beside)
            )


def lost(record: Record) -> Iterator[Finding]:
    """Find calls that were sent, and have neither run nor ended in another way.

    A kill may cost what plain Celery would lose: with early acknowledgement what the process had taken, and
    with a Redis broker the message that was on its way to a worker.
    """
    outages = len(record.of["outage"]) * len(record.round["pools"])
    for is_late in (True, False):
        calls = [it for it in record.calls.values() if record.tasks[it.calling["task"]]["late"] == is_late]
        missing = [call for call in calls if call.is_sent and not _has_ended(record, call)]
        excused = [call for call in missing if _may_be_lost(record, call)]
        allowed = outages + sum(1 if is_late else event["slots"] for event in record.of["killed"])
        for call in missing if len(excused) > allowed else [it for it in missing if it not in excused]:
            yield _finding(record, "lost", f"call {call.number} is {call.state}", call)


def _has_ended(record: Record, call: Call) -> bool:
    if call.state in _READY or any(run.is_done for run in record.runs.get(call.number, ())):
        return True
    is_due = all(record.calls[number].state == "SUCCESS" for number in call.calling["after"])
    return not is_due or call.number in record.revoked


def _may_be_lost(record: Record, call: Call) -> bool:
    before = [run for number in call.calling["after"] for run in record.runs.get(number, ())]
    if any(record.faults(run.since, run.until + _SLACK, "killed outage", run) for run in before):
        return True
    is_kept = record.tasks[call.calling["task"]]["late"] and not record.round["stack"].startswith("redis")
    return not is_kept and bool(record.faults(call.since, record.last, "killed outage"))


def twice(record: Record) -> Iterator[Finding]:
    """Find attempts that were done, and ran again though nothing befell them.

    If what publishes a call, an earlier attempt or the step before, has run again, the call has come again.
    A step that was skipped has no body to tell of that, and a window may send its newest call again.
    """
    for number, runs in record.runs.items():
        call = record.calls.get(number)
        before = [record.runs.get(it, ()) for it in call.calling["after"]] if call else []
        for first, second in pairwise(runs):
            attempt = first.begin["attempt"]
            is_again = first.is_done and second.begin["attempt"] <= attempt
            is_late = second.since - first.since > record.round["visibility"] * SECOND / 2
            is_second = sum(run.begin["attempt"] < attempt for run in runs) > attempt
            is_second = is_second or any(len(found) > 1 for found in before)
            is_own = all(before) and "debounce" not in record.tasks[first.begin["task"]]
            faults = record.faults(first.since - SECOND, second.since, run=first if is_own else None)
            faults += record.faults(call.since if call else 0, second.since, "outage")
            if is_again and not (is_late or is_second or faults):
                yield Finding("twice", f"call {number} had ended, and ran again", _lines(*runs))


def disorder(record: Record) -> Iterator[Finding]:
    """Find calls of a key in the order of publishing that began before an earlier call."""
    for option, runs, calls in record.keys_of("exclusive"):
        if option["order"] != "published" or option["limit"] != 1:
            continue
        began = {run.begin["number"]: run.since for run in reversed(runs)}
        plain = [it for it in calls if it.is_plain and it.number in began and not it.calling.get("countdown")]
        for one, other in combinations(plain, 2):
            is_part = not option.get("per") or one.calling["part"] == other.calling["part"]
            begin = began[one.number]
            is_after = is_part and one.until < other.since and began[other.number] < begin
            if is_after and not _is_troubled(record, one, begin):
                yield _finding(
                    record, "disorder", f"call {other.number} began before {one.number}", one, other
                )


def rates(record: Record) -> Iterator[Finding]:
    """Find more starts in a time than the rate of a key, or of its part, allows."""
    for option, runs, _ in record.keys_of("exclusive"):
        for limits, mine in [(option, runs), *_parts(option, runs)]:
            if rate := limits.get("rate"):
                yield from _above(record, mine, rate, option.get("cost", 1))


def _above(record: Record, runs: Sequence[Run], rate: str, cost: Any) -> Iterator[Finding]:
    most, period = int(rate.partition("/")[0]), float(rate.partition("/")[2].removesuffix("s"))
    for run in runs:
        until = run.since + (period - _SKEW) * SECOND
        window = [it for it in runs if run.since <= it.since < until]
        is_above = sum(min(it.units(cost), most) for it in window) > most
        if is_above and not record.faults(run.since - record.ttl, until, "stalled"):
            yield Finding("rate", f"{len(window)} starts beyond {rate}", _lines(*window))


def newest(record: Record) -> Iterator[Finding]:
    """Find keys whose newest call did not run, though it is the one that counts."""
    for kind in ("exclusive", "debounce"):
        for option, _, calls in record.keys_of(kind):
            is_window = kind == "debounce"
            call = calls[-1] if calls else None
            if not call or not (is_window or option["on_conflict"] in ("latest", "supersede")):
                continue
            is_alone = all(it.is_plain and it.until < call.since for it in calls[:-1]) and call.is_plain
            is_free = "error" not in call.called and "unique" not in record.tasks[call.calling["task"]]
            gone = {it.number for it in (calls if is_window else [call])} & record.revoked
            is_due = is_alone and is_free and not gone and not call.calling.get("expires")
            if is_due and not record.runs.get(call.number) and not _may_be_lost(record, call):
                yield _finding(record, "newest", f"call {call.number} did not run", call)


def let_in(record: Record) -> Iterator[Finding]:
    """Find calls that were sent though their unique key was held from before to after them."""
    for option, _, calls in record.keys_of("unique"):
        plain = [it for it in calls if it.is_plain and it.is_sent]
        for held, call in combinations(plain if option["on_conflict"] != "share" else (), 2):
            until = _held_until(record, held, option)
            if held.until < call.since and call.until < until and not _may_be_free(record, held, until):
                text = f"call {call.number} was sent while {held.number} held its key"
                yield _finding(record, "let in", text, held, call)


def _held_until(record: Record, call: Call, option: Event) -> float:
    """Return until when a call held its unique key for sure; 0 if it never ran."""
    if "period" in option:
        return call.since + float(option["period"]) * SECOND
    runs = record.runs.get(call.number) or [Run({"at": 0}, 0, "")]
    return runs[0].since if option["until"] == "started" else runs[-1].until


def _may_be_free(record: Record, call: Call, until: float) -> bool:
    is_ended = bool(call.calling.get("expires")) or call.number in record.revoked
    return is_ended or _is_troubled(record, call, until)


def _is_troubled(record: Record, call: Call, until: float) -> bool:
    """Whether anything befell the servers, the workers or the key since a call."""
    return bool(record.faults(call.since, until) or record.forced(call.calling, call.since, until))


def refused(record: Record) -> Iterator[Finding]:
    """Find calls that were skipped for another one that had ended long ago."""
    by_id = {call.id: call for call in record.calls.values() if call.is_sent}
    for option, _, calls in record.keys_of("unique"):
        for call in (it for it in calls if it.called.get("outcome") == "skipped"):
            holder = by_id.get(call.called["existing_id"])
            until = _held_until(record, holder, option) if holder else 0
            if holder and 0 < until < call.since - _SLACK and not record.faults(holder.since, call.since):
                text = f"call {call.number} was skipped for {holder.number}, which had ended"
                yield _finding(record, "refused", text, holder, call)


def left(record: Record) -> Iterator[Finding]:
    """Find what was left when all should have been quiet."""
    for event in record.of["left"]:
        yield Finding("left", "messages, bodies or keys", (event,))


def _finding(record: Record, kind: str, text: str, *calls: Call) -> Finding:
    runs = [run for call in calls for run in record.runs.get(call.number, ())]
    return Finding(
        kind, text, (*(it for call in calls for it in (call.calling, call.called)), *_lines(*runs))
    )


def _lines(*runs: Run) -> tuple[Event, ...]:
    return tuple({**run.begin, "until": run.until, "how": run.how} for run in runs)
