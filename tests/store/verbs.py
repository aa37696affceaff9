"""One case of each thing that is asked of a key."""

from __future__ import annotations

from celery_exclusive.core.operations import (
    Acquire,
    AcquireAlone,
    Drop,
    Enqueue,
    ForceRelease,
    KeyOperation,
    Remove,
    Requeue,
    Restore,
)
from tests.store.operations import LIFE, give, take

COPY = Acquire("a", "token of its copy", LIFE, redelivered=True, message=b"message")
RECOVERED = Acquire("a", "token of a", LIFE, message=b"message", recovers=True, acks_late=True)
QUEUED = AcquireAlone("a", "token", LIFE, phase="queued")
START = AcquireAlone("a", "token of a", 2 * LIFE)
REQUEUE = Requeue("a", "token of a", 2 * LIFE)
KNOWN: dict[str, tuple[list[KeyOperation], KeyOperation]] = {
    "acquire again": ([take("a")], take("a")),
    "acquire as the offered one": ([take("a"), take("b"), give("a")], take("b", message=None)),
    "begin a queued task": ([QUEUED], START),
    "begin one with a shorter ttl": ([QUEUED], AcquireAlone("a", "token of a", LIFE // 2)),
    "hand over to a retry": (
        [START],
        AcquireAlone("b", "t", LIFE, phase="again", inherits=("a", "token of a")),
    ),
    "stand behind the own run": ([take("a")], COPY),
    "release": ([take("a")], give("a")),
    "release one of two": ([take("a", limit=2), take("b", limit=2)], give("a")),
    "release to a line": ([take("a"), take("b")], give("a")),
    "release not done": ([take("a"), take("b")], give("a", "open")),
    "release with a message behind": ([RECOVERED], give("a")),
    "release so, and not done": ([RECOVERED], give("a", "open")),
    "release to the own copy": ([take("a"), COPY], give("a", "open")),
    "requeue": ([take("a")], REQUEUE),
    "requeue to the own copy": ([take("a"), COPY], REQUEUE),
    "remove": ([take("a"), take("b")], Remove("b")),
    "drop": ([take("a"), take("b")], Drop("b", "token of an operator")),
    "force release": ([take("a"), take("b")], ForceRelease("a")),
}
"""Operations on what a store has already: those that have to come before, and the operation itself."""
NEW: dict[str, tuple[list[KeyOperation], KeyOperation]] = {
    "acquire": ([], take("b")),
    "acquire another slot": ([take("a", limit=2)], take("b", limit=2)),
    "wait in line": ([take("a")], take("b")),
    "acquire alone": ([], QUEUED),
    "enqueue": ([], Enqueue("a", b"message")),
    "restore": ([], Restore("a", "token of a", LIFE)),
}
"""Operations of newcomers, likewise."""
