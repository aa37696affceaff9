"""The reasons why a task does not run: one closed list for log lines, outcomes, metrics and commands."""

from __future__ import annotations

from typing import Final, Literal

Reason = Literal[
    "held",
    "rate",
    "paused",
    "hold",
    "part",
    "in_line",
    "offered",
    "aside",
    "not_before",
    "store_down",
    "backend_down",
    "duplicate",
    "full",
    "revoked",
    "expired",
    "given_up",
    "replaced",
    "superseded",
    "finished",
    "queued",
    "running",
    "not_ours",
]
REASONS: Final[dict[Reason, str]] = {
    "held": "another owner holds the key",
    "rate": "as many tasks have started as the rate of the key allows",
    "paused": "an operator has paused the key",
    "hold": "a run, or an operator, lets no task of the key start for a while",
    "part": "as many tasks of its part of the key run, or are next in line, as the limit of the part allows",
    "in_line": "the task waits in the line of the key",
    "offered": "the key is offered to the task, and its message is on its way to a worker",
    "aside": "no worker accepted the offers of the task, its message is not signed, or it waits for its last "
    "chance: others pass it until it gets another offer",
    "not_before": "the task waits for newer calls until its window closes",
    "store_down": "the store does not answer",
    "backend_down": "the result backend does not answer, and no lock of this app knows the task",
    "duplicate": "another task, which is queued or runs, holds the unique key",
    "full": "as many tasks wait in the line as max_waiting allows",
    "revoked": "the task was revoked",
    "expired": "the message expired before its task began",
    "given_up": "the task has waited for give_up_after, or too many workers died while they ran it",
    "replaced": "a newer task has taken the place of the task in the line",
    "superseded": 'a newer task has superseded the task, which waited or ran (on_conflict="supersede")',
    "finished": "the task has finished",
    "queued": "the message of the task is in its queue: no worker has begun it",
    "running": "a worker runs the task",
    "not_ours": "no lock of this app knows the task",
}
"""Each reason with its sentence."""
