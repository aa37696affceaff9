"""The table and the sentence at the end of the demo."""

from __future__ import annotations

from dataclasses import dataclass

from .progress import name
from .verdict import LEAST_MET, LEAST_WAITED, Verdict

_WIDTH = 52


@dataclass(frozen=True)
class Damage:
    """The damage that the overlaps did to the database."""

    duplicates: int
    lost_updates: int


def report(verdict: Verdict, damage: Damage, seconds: float) -> str:
    """Return the whole report."""
    rows = [*_accounts(verdict), *_lock(verdict), *_kill(verdict), *_database(damage)]
    lines = [f"  {label:<{_WIDTH}}{value}" for label, value in rows]
    mode = "With exclusive=Exclusive(...)" if verdict.is_protected else "UNPROTECTED, without our options"
    return "\n".join(
        ["", f"{mode}, {seconds:.0f} s, from the independent log:", "", *lines, "", _sentence(verdict)]
    )


def _accounts(verdict: Verdict) -> list[tuple[str, str]]:
    fates = verdict.fates
    worst = max(verdict.overlaps, key=lambda feed: verdict.overlaps[feed], default=None)
    allowed = "  (no fault: brokers deliver at least once)" if verdict.twice else ""
    where = f"  (most in {name(worst)}: {verdict.overlaps[worst]})" if worst else ""
    return [
        ("submitted", str(verdict.submitted)),
        (
            "  = ran + skipped + failed + lost",
            " + ".join(str(fates[fate]) for fate in ("ran", "skipped", "failed", "lost")),
        ),
        ("overlaps (imports begun while the feed was busy)", f"{verdict.overlapping}{where}"),
        ("lost", str(fates["lost"])),
        ("ran twice (delivered again by the broker)", f"{verdict.twice}{allowed}"),
    ]


def _lock(verdict: Verdict) -> list[tuple[str, str]]:
    if not verdict.is_protected:
        return []
    return [
        ("met a held lock", f"{verdict.met}  (at least {LEAST_MET} for a verdict)"),
        ("  of these waited for it", f"{verdict.waited}  (at least {LEAST_WAITED})"),
        ("  skipped without a reason", str(verdict.unfounded)),
    ]


def _kill(verdict: Verdict) -> list[tuple[str, str]]:
    recovery = verdict.recovery
    if recovery is None:
        return [("killed worker", "none")]
    behind = f", {recovery.waiting} waiting behind it" if verdict.is_protected else ""
    seconds = "never" if recovery.seconds is None else f"{recovery.seconds:.1f} s"
    return [
        ("worker killed while importing", name(recovery.kill.feed) + behind),
        ("time to recover (next import of that feed)", seconds),
        (
            "imports that the kill cut off and that ran again",
            f"{recovery.cut_and_run_again} of {recovery.cut}",
        ),
    ]


def _database(damage: Damage) -> list[tuple[str, str]]:
    return [
        ("duplicate entries in the database", str(damage.duplicates)),
        ("imports that the database did not count", str(damage.lost_updates)),
    ]


def _sentence(verdict: Verdict) -> str:
    match verdict.colour:
        case "green":
            return "VERDICT: green. Every submission is accounted for, nothing overlapped, nothing was lost."
        case "red":
            why = "" if verdict.is_protected else " This is what our options are for."
            return f"VERDICT: red. {'; '.join(verdict.faults)}.{why}"
        case "inconclusive":
            return f"VERDICT: inconclusive. Nothing went wrong, but {'; '.join(verdict.doubts)}."
