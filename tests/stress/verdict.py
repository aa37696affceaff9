"""The verdict about a journal, from the knowledge of its own processes: no machine is too slow for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.stress.journal import Event
from tests.stress.plan import limit_of

NEVER = float("inf")


@dataclass
class Run:
    """A delivery, and what became of it. It had the lease for sure in [since, min(left, until))."""

    id: str
    key: str
    kind: str
    pid: int
    answered: float = NEVER
    answer: str = ""
    since: float = NEVER
    until: float = 0
    left: float = NEVER
    fence: int = 0
    overlap: float = 0
    effect: float = 0
    finished: bool = False

    def had_lease(self, at: float) -> bool:
        return self.since <= at < min(self.left, self.until)


@dataclass
class Verdict:
    """Figures, and under `faults` what must not be.

    `again` are runs that plain Celery would repeat too, since the broker delivered their message again;
    `stale` the deliveries that were kept from it; `refused` the writes with an old fence.
    """

    tasks: int = 0
    parks: int = 0
    held: int = 0
    stale: int = 0
    kills: int = 0
    pauses: int = 0
    overlaps: int = 0
    lost: int = 0
    twice: int = 0
    again: int = 0
    refused: int = 0
    seconds: float = 0
    faults: list[str] = field(default_factory=list)


def judge(events: Sequence[Event], tasks: Iterable[str]) -> Verdict:
    runs = _runs(events)
    verdict = Verdict()
    verdict.parks = sum(run.answer == "Parked" for run in runs.values())
    verdict.held = sum(run.answer == "Held" for run in runs.values())
    verdict.stale = sum(run.answer == "Stale" for run in runs.values())
    verdict.kills = sum(event.what == "killed" for event in events)
    verdict.pauses = sum(event.what == "paused" for event in events)
    killed = {event.data: event.at for event in events if event.what == "killed"}
    by_id: dict[str, list[Run]] = defaultdict(list)
    by_key: dict[str, list[Run]] = defaultdict(list)
    for run in runs.values():
        by_id[run.id].append(run)
        by_key[run.key].append(run)
    for id in tasks:
        verdict.tasks += 1
        verdict.lost += not any(run.effect for run in by_id[id])
        repeated = list(_repetitions(by_id[id]))
        verdict.twice += bool(repeated)
        verdict.again += not repeated and sum(bool(run.effect) for run in by_id[id]) > 1
        verdict.faults += repeated
    for of_key in by_key.values():
        verdict.overlaps += sum(bool(run.overlap) for run in of_key)
        verdict.faults += _overlaps(of_key, killed)
    if verdict.lost:
        verdict.faults.append(f"{verdict.lost} tasks were lost")
    verdict.faults += _writes(events, runs, verdict)
    return verdict


def _runs(events: Sequence[Event]) -> dict[str, Run]:
    runs: dict[str, Run] = {}
    for event in events:
        if event.what == "attempt":
            id, key, kind = event.data
            runs[event.delivery] = Run(id, key, kind, event.pid)
        elif event.delivery:
            _add(runs[event.delivery], event)
    return runs


def _add(run: Run, event: Event) -> None:
    match event.what:
        case "lease":
            run.since, (run.fence, run.until) = event.at, event.data
        case "renewed":
            run.until = event.data
        case "overlap":
            run.overlap = event.at
        case "left":
            run.left = event.at
        case "effect":
            run.effect = event.at
        case "released":
            was_held, done = event.data
            run.finished = was_held and done
        case "Granted" | "Parked" | "Stale" | "Held":
            run.answered, run.answer = event.at, event.what


def _repetitions(runs: list[Run]) -> Iterator[str]:
    """Only the broker may cause a second run, and not even it after a task that had waited has finished."""
    effects = [run for run in runs if run.effect]
    if len(effects) > 1 and not any(run.kind == "redelivered" for run in runs):
        yield f"{runs[0].id} ran {len(effects)} times, and the broker had delivered it once"
    for first in effects:
        waited = first.kind != "fresh" or any(r.answer == "Parked" and r.answered < first.since for r in runs)
        if not (first.finished and waited):
            continue
        if any(run.kind == "fresh" and run.answered > first.since for run in runs):
            continue  # a delivery from before was on its way, which may run, or wait and then run
        for second in runs:
            if second.fence > first.fence:  # not the times: it may have slept since its grant
                yield f"{second.id} had waited and had finished, and ran again ({second.kind})"


def _overlaps(runs: list[Run], killed: dict[int, float]) -> Iterator[str]:
    """Yield the times with more than `limit` leases, or with more tasks in the section but no lease over."""
    held = [run for run in runs if run.since != NEVER]
    limit = limit_of(runs[0].key)
    for run in held:
        holders = sum(other.had_lease(run.since) for other in held)
        if run.had_lease(run.since) and holders > limit:
            yield f"{holders} leases of {run.key!r} at {run.since:.6f}, limit {limit}"
    for run in held:
        at = run.overlap
        if at and not any(
            other.since <= at < other.left and other.until <= at <= killed.get(other.pid, NEVER)
            for other in held
        ):
            yield f"{run.id} met others in the section of {run.key!r}, and no lease was over"
    fences = sorted((run.fence, run.since) for run in held)
    if len({fence for fence, _ in fences}) < len(fences):
        yield f"a fence of {runs[0].key!r} was given twice"


def _writes(events: Sequence[Event], runs: dict[str, Run], verdict: Verdict) -> Iterator[str]:
    """The resource saw the fences of what it accepted only grow."""
    for event in events:
        if event.what == "written":
            run = runs[event.delivery]
            accepted, seen = event.data
            verdict.refused += not accepted
            if accepted != (run.fence >= seen):
                yield f"a stale write to {run.key!r} was accepted"
