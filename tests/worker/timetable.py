"""The time table of docs/reference/endings.md: after which event, how long until the key is usable.

TIMETABLE=folder pytest tests/worker          # the tests note what they see
python -m tests.worker.timetable folder       # and this writes it into the page
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/reference/endings.md"
BEGIN, END = "<!-- written by `make timetable` -->\n", "<!-- to here -->\n"
COLUMNS = ["prefork, Redis", "prefork, RabbitMQ", "threads", "gevent", "solo"]
BROKERS = {"redis": "Redis", "rabbitmq": "RabbitMQ"}

# By their names: what happens, and when the next in line may start.
ROWS: dict[str, tuple[str, str]] = {
    "return": ("the body returns", "at once"),
    "exception": ("it raises", "at once"),
    "retry": ("`self.retry(countdown=0)`", "at once"),
    "retry-later": ("`self.retry` with a countdown", "at once"),
    "retries-exhausted": ("`self.retry` beyond `max_retries`", "at once"),
    "autoretry": ("`autoretry_for`", "at once"),
    "ignore": ("`Ignore`", "at once"),
    "reject": ("`Reject`", "at once"),
    "reject-requeue": ("`Reject(requeue=True)`", "at once"),
    "replace": ("`self.replace`", "at once"),
    "system-exit": (
        "the body raises SystemExit, KeyboardInterrupt or another BaseException",
        "at once, or within 5 s",
    ),
    "memory-error": ("the body raises MemoryError, and its worker ends", "at once"),
    "soft-limit": ("soft time limit", "at once"),
    "hard-limit": ("hard time limit, Python code", "when the process is gone"),
    "hard-limit-c": ("hard time limit, C code that ignores signals", "when the process is gone"),
    "child-exit": ("`os._exit` in the body", "when the worker sees it: up to 5 s"),
    "child-killed": ("SIGKILL of the child", "when the worker sees it: up to 5 s"),
    "child-killed-broker-away": ("SIGKILL of the child while the broker is unreachable", "`ttl`, or sooner"),
    "worker-killed": ("SIGKILL of the worker and its children", "`ttl` and a reaper's period"),
    "worker-killed-again": (
        "the same: until its own task runs again, with late acknowledgement",
        "`ttl` and a reaper's period",
    ),
    "terminate": ("`revoke(terminate=True)`", "when the process is gone"),
    "terminate-stubborn": ("the same, and the body catches SystemExit and runs on", "when it ends"),
    "terminate-kill": ('`revoke(terminate=True, signal="SIGKILL")`', "when the process is gone"),
    "revoked-offered": ("the next task in line turns out to be revoked", "at once"),
    "expired-offered": ("the next task in line turns out to be expired", "at once"),
    "expired-in-queue": ("its message expires in RabbitMQ's queue", "when its offer expires"),
    "purged-offered": ("its message is purged", "when its offer expires"),
    "warm-shutdown": ("warm shutdown", "at the end of the body"),
    "cold-shutdown": ("cold shutdown", "when the process is gone"),
    "soft-shutdown": ("soft shutdown, the body outlasts it", "when the process is gone"),
    "recycled": (
        "`max_tasks_per_child`, `max_memory_per_child`: its process is replaced",
        "at once, or within 5 s",
    ),
    "broker-lost": ("the connection to the broker is lost, the body goes on", "at the end of the body"),
    "broker-lost-cancelled": (
        "the same, with `worker_cancel_long_running_tasks_on_connection_loss`",
        "when the process is gone",
    ),
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
    found: defaultdict[tuple[str, str], float] = defaultdict(float)
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text().splitlines():
            one = json.loads(line)
            place = one["row"], column(one["pool"], one["broker"])
            found[place] = max(found[place], one["seconds"])
    lines = [["what happens", "the next may start", *COLUMNS], ["---"] * (2 + len(COLUMNS))]
    for row, words in ROWS.items():
        figures = [found.get((row, name)) for name in COLUMNS]
        lines.append([*words, *("" if figure is None else f"{figure:.2f}" for figure in figures)])
    return "".join(f"| {' | '.join(words)} |\n" for words in lines)


def column(pool: str, broker: str) -> str:
    return f"{pool}, {BROKERS[broker]}" if pool == "prefork" else pool


def main() -> None:
    before, rest = PAGE.read_text().split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}{table(Path(sys.argv[1]))}{END}{after}")


if __name__ == "__main__":
    main()
