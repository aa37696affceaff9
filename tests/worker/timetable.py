"""The time table of docs/evidence/endings-figures.md: after which event, how long until the key is usable.

TIMETABLE=folder pytest tests/worker          # the tests note what they see
python -m tests.worker.timetable folder       # and this writes it into the page
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/evidence/endings-figures.md"
BEGIN, END = "<!-- written by `make timetable` -->\n", "<!-- to here -->\n"
COLUMNS = ["prefork, Redis", "prefork, RabbitMQ", "threads", "gevent", "solo"]
BROKERS = {"redis": "Redis", "rabbitmq": "RabbitMQ"}

AT_ONCE, GONE, SEEN = "at once", "when the process is gone", "when the worker sees it: up to 5 s"
RETURNS = ("the body returns or raises", AT_ONCE)
RETRIES = ("`self.retry`, `autoretry_for`, also beyond `max_retries`", AT_ONCE)
REJECTS = ("`Ignore`, `Reject`, also with `requeue=True`", AT_ONCE)
LIMIT = ("hard time limit, also in C code that ignores signals", GONE)
DIES = ("the child exits by `os._exit`, or is killed", SEEN)
KILLED = ("SIGKILL of the worker and its children", "`ttl` and a reaper's period")
TERMINATES = ("`revoke(terminate=True)`, also with SIGKILL", GONE)
OFFERED = ("the next task in line turns out to be revoked or expired", AT_ONCE)
MISSING = ("its message expires in RabbitMQ's queue, or is purged", "when its offer expires")
SHUTDOWN = ("cold shutdown, or a soft one that the body outlasts", GONE)
RECYCLES = "at once, or within 5 s"

# By the names that the tests note: what happens, and when the next in line may start. Some share a row.
ROWS: dict[str, tuple[str, str]] = {
    "return": RETURNS,
    "exception": RETURNS,
    "retry": RETRIES,
    "retry-later": RETRIES,
    "retries-exhausted": RETRIES,
    "autoretry": RETRIES,
    "ignore": REJECTS,
    "reject": REJECTS,
    "reject-requeue": REJECTS,
    "replace": ("`self.replace`", AT_ONCE),
    "system-exit": ("the body raises SystemExit or another BaseException", RECYCLES),
    "memory-error": ("the body raises MemoryError, and its worker ends", AT_ONCE),
    "soft-limit": ("soft time limit", AT_ONCE),
    "hard-limit": LIMIT,
    "hard-limit-c": LIMIT,
    "child-exit": DIES,
    "child-killed": DIES,
    "child-killed-broker-away": ("the same while the broker is unreachable", "`ttl`, or sooner"),
    "worker-killed": KILLED,
    "worker-killed-again": KILLED,
    "terminate": TERMINATES,
    "terminate-kill": TERMINATES,
    "terminate-stubborn": ("the same, and the body catches SystemExit and runs on", "when it ends"),
    "revoked-offered": OFFERED,
    "expired-offered": OFFERED,
    "expired-in-queue": MISSING,
    "purged-offered": MISSING,
    "warm-shutdown": ("warm shutdown", "at the end of the body"),
    "cold-shutdown": SHUTDOWN,
    "soft-shutdown": SHUTDOWN,
    "recycled": ("`max_tasks_per_child`, `max_memory_per_child`: its process is replaced", RECYCLES),
    "broker-lost": ("the connection to the broker is lost, the body goes on", "at the end of the body"),
    "broker-lost-cancelled": ("the same, with `worker_cancel_long_running_tasks_on_connection_loss`", GONE),
    "store-away-at-release": ("the store was down when the body ended, and is back", "1 s"),
    "store-restarted": ("the store restarts with its data, within `ttl`", "as without it"),
    "store-lost-data": ("the store loses its data", "at the end of the body"),
}


def note(row: str, pool: str, broker: str, late: bool, seconds: float) -> None:
    """Keep one figure, if somebody collects them."""
    assert row in ROWS, f"{row} is no row of the time table"
    assert seconds >= 0, f"the next one was there {-seconds} s too early"
    if folder := os.environ.get("TIMETABLE"):
        words = {"row": row, "pool": pool, "broker": broker, "late": late, "seconds": seconds}
        with Path(folder, f"{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps(words) + "\n")


def table(folder: Path) -> str:
    """All figures of a folder as one table: the longest of each row and column."""
    found: defaultdict[tuple[tuple[str, str], str], float] = defaultdict(float)
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text().splitlines():
            one = json.loads(line)
            place = ROWS[one["row"]], column(one["pool"], one["broker"])
            found[place] = max(found[place], one["seconds"])
    lines = [["what happens", "the next may start", *COLUMNS], ["---"] * (2 + len(COLUMNS))]
    for row in dict.fromkeys(ROWS.values()):
        figures = [found.get((row, name)) for name in COLUMNS]
        lines.append([*row, *("" if figure is None else f"{figure:.2f}" for figure in figures)])
    return "".join(f"| {' | '.join(words)} |\n" for words in lines)


def column(pool: str, broker: str) -> str:
    return f"{pool}, {BROKERS[broker]}" if pool == "prefork" else pool


def main() -> None:
    before, rest = PAGE.read_text().split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}{table(Path(sys.argv[1]))}{END}{after}")


if __name__ == "__main__":
    main()
