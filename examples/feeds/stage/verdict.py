"""The verdict that the independent log proves. Pure: a history in, a verdict out.

Nothing here asks the library. Whether a submission met a held lock and waited is read off the
deliveries and the bodies: it waited if a worker had it, and its body began only after another body
of the same feed had ended; it was skipped for a reason if another submission of the feed was with
the workers at that time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Literal

from .history import History, Kill, Nanoseconds, Run, Submission

LEAST_MET = 100
LEAST_WAITED = 20

Fate = Literal["ran", "skipped", "failed", "lost"]
Colour = Literal["green", "red", "inconclusive"]

_SECOND: Nanoseconds = 1_000_000_000
_GRACE = 2 * _SECOND
"""From a body's last line to the lock's release: the result is stored in between."""


@dataclass(frozen=True)
class Recovery:
    """The effect of the kill. `seconds` is the time from it to the feed's next body, None for never."""

    kill: Kill
    cut: int
    cut_and_run_again: int
    held: bool
    waiting: int
    seconds: float | None


@dataclass(frozen=True)
class Verdict:
    """The result of one run of the demo."""

    is_protected: bool
    fates: dict[Fate, int]
    overlaps: dict[str, int]
    unfounded: int
    waited: int
    met: int
    twice: int
    recovery: Recovery | None

    @property
    def submitted(self) -> int:
        """How many submissions there were; each has exactly one fate."""
        return sum(self.fates.values())

    @property
    def overlapping(self) -> int:
        """How many bodies began while another body of the same feed was running."""
        return sum(self.overlaps.values())

    @property
    def faults(self) -> list[str]:
        """The faults: events that must not happen and did."""
        faults = []
        if self.overlapping:
            faults.append(f"{self.overlapping} imports began while the same feed was being imported")
        if self.fates["lost"]:
            faults.append(f"{self.fates['lost']} submissions neither ran nor were skipped")
        if self.unfounded:
            faults.append(
                f"{self.unfounded} submissions were skipped although no task was at work on their feed"
            )
        if self.recovery and self.recovery.seconds is None:
            faults.append("the killed worker's feed was never imported again")
        return faults

    @property
    def doubts(self) -> list[str]:
        """Why a run without faults would prove nothing."""
        if not self.is_protected:
            return ["nothing overlapped, so this load shows nothing"]
        doubts = []
        if self.met < LEAST_MET:
            doubts.append(f"only {self.met} submissions met a held lock, {LEAST_MET} are needed")
        if self.waited < LEAST_WAITED:
            doubts.append(f"only {self.waited} waited for it, {LEAST_WAITED} are needed")
        if not (self.recovery and self.recovery.held and self.recovery.waiting):
            doubts.append("no worker was killed while it held a lease with others waiting behind it")
        return doubts

    @property
    def colour(self) -> Colour:
        """`red` for a fault, `inconclusive` for a doubt, else `green`."""
        if self.faults:
            return "red"
        return "inconclusive" if self.doubts else "green"

    @property
    def exit_code(self) -> int:
        """The demo's exit status."""
        return {"green": 0, "red": 1, "inconclusive": 2}[self.colour]


def judge(history: History, *, is_protected: bool) -> Verdict:
    """Judge a run of the demo."""
    fates = {task_id: _fate(history, task_id) for task_id in history.submissions}
    waited = sum(_waited(history, submission) for submission in history.submissions.values())
    skipped = [history.submissions[task_id] for task_id, fate in fates.items() if fate == "skipped"]
    founded = sum(_is_founded(history, submission) for submission in skipped)
    counts = Counter(fates.values())
    return Verdict(
        is_protected=is_protected,
        fates={fate: counts[fate] for fate in ("ran", "skipped", "failed", "lost")},
        overlaps=_overlaps(history.runs),
        unfounded=len(skipped) - founded,
        waited=waited,
        met=waited + founded,
        twice=sum(
            times > 1 for times in Counter(run.id for run in history.runs if run.how == "done").values()
        ),
        recovery=_recovery(history, history.kill) if history.kill else None,
    )


def _fate(history: History, task_id: str) -> Fate:
    endings = {run.how for run in history.runs if run.id == task_id}
    if "done" in endings:
        return "ran"
    if "failed" in endings:
        return "failed"
    outcome = history.outcomes.get(task_id)
    return "skipped" if outcome and outcome.skipped else "lost"


def _overlaps(runs: list[Run]) -> dict[str, int]:
    """Count by feed the bodies that began while another one was open."""
    counts: dict[str, int] = {}
    busy_until: dict[str, Nanoseconds] = defaultdict(int)
    for run in sorted(runs, key=lambda run: run.begin):
        if run.begin < busy_until[run.feed]:
            counts[run.feed] = counts.get(run.feed, 0) + 1
        busy_until[run.feed] = max(busy_until[run.feed], run.end)
    return counts


def _waited(history: History, submission: Submission) -> bool:
    begin = min((run.begin for run in history.runs if run.id == submission.id), default=None)
    arrived = min(history.received.get(submission.id, ()), default=None)
    if begin is None or arrived is None:
        return False
    others = (run for run in history.runs if run.feed == submission.feed and run.id != submission.id)
    return any(arrived < run.end <= begin for run in others)


def _is_founded(history: History, skipped: Submission) -> bool:
    """Whether another task of that feed was with the workers when this one was skipped."""
    arrived = max(history.received.get(skipped.id, ()), default=skipped.at)
    decided = history.outcomes[skipped.id].at
    spans: dict[str, list[Nanoseconds]] = defaultdict(list)
    for run in history.runs:
        if run.feed == skipped.feed and run.id != skipped.id:
            spans[run.id] += [*history.received.get(run.id, ()), run.begin, run.end]
    return any(min(span) <= decided and arrived <= max(span) + _GRACE for span in spans.values())


def _recovery(history: History, kill: Kill) -> Recovery:
    cut = [
        run for run in history.runs if run.how == "cut" and run.worker == kill.worker and run.begin < kill.at
    ]
    again = {run.id for run in history.runs if run.how == "done" and run.begin >= kill.at}
    begins = [run.begin for run in history.runs if run.feed == kill.feed and run.begin >= kill.at]
    began_before = {run.id for run in history.runs if run.begin < kill.at}
    began_after = {run.id for run in history.runs if run.feed == kill.feed and run.begin >= kill.at}
    return Recovery(
        kill=kill,
        cut=len(cut),
        cut_and_run_again=sum(run.id in again for run in cut),
        held=any(run.feed == kill.feed for run in cut),
        waiting=sum(
            min(history.received.get(task_id, [kill.at])) < kill.at for task_id in began_after - began_before
        ),
        seconds=(min(begins) - kill.at) / _SECOND if begins else None,
    )
