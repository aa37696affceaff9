"""The words that other libraries have for our options, each with what to write here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from celery_exclusive.errors import did_you_mean


def unknown_option(name: str, known: Collection[str], hints: Mapping[str, str]) -> str:
    """Describe an option that does not exist: where it belongs, or the option that is spelled like it."""
    if name in hints:
        return f"{name}= {hints[name]}."
    return f"there is no option {name!r} (there are {', '.join(known)}){did_you_mean(name, known)}"


def _words(words: str, hint: str) -> dict[str, str]:
    return dict.fromkeys(words.split(), hint)


_WAIT: Final = "blocking_timeout acquire_timeout wait_timeout"
_TTL: Final = "expire expires expiry expire_after lock_expire lock_expiry lock_timeout lease_time lifetime"
_RATE: Final = "rate_limit rates limiter throttle per_second per_minute"
_LIMIT: Final = "concurrency max_concurrency max_concurrent max_leases capacity"
_OF_ALL: Final = {
    **_words("keys unique_on args params", "is by= here, the parameters of the task that make up the key"),
    **_words("name lock_name lock_key lock_id", "is key= here, a string that tasks share"),
    **_words("auto_renewal heartbeat", "is not needed: the lease of a living process is always renewed"),
}
OF_EXCLUSIVE: Final = {
    **_OF_ALL,
    "timeout": "is give_up_after= for the longest wait, ttl= for the lease of a dead worker, and Celery's "
    "time_limit= for the longest run",
    **_words(
        _TTL, "is ttl= here, for the lease of a dead worker. Celery's time_limit= is for the longest run"
    ),
    **_words(f"wait max_wait {_WAIT}", "is give_up_after= here"),
    **_words(
        "blocking nowait graceful raise_on_duplicate",
        "is on_conflict= here: 'wait' in line, the default, 'skip' or 'raise'",
    ),
    **_words(_LIMIT, "is limit= here"),
    **_words(_RATE, "is rate= here, such as rate='500/m'"),
    **_words("units tokens", "is cost= here, the units that a run takes"),
    **_words("part parts partition tenant fair fairness", "is per= here, such as per='tenant_id'"),
    **_words("until period queued_ttl unlock_before_run", "is about calls: give it to unique=Unique(...)"),
}
OF_UNIQUE: Final = {
    **_OF_ALL,
    **_words(
        f"timeout {_TTL}",
        "is queued_ttl= for the key of a lost message, ttl= for the lease of a dead worker, and period= for "
        "a key that is held so long in any case",
    ),
    **_words("blocking nowait graceful raise_on_duplicate", "is on_conflict= here: 'skip' or 'raise'"),
    "unlock_before_run": "is until='started' here",
    **_words(
        "wait max_wait",
        "is for Debounce(wait=..., max_wait=...), which runs a burst of calls once, after its last call",
    ),
    **_words(
        "limit rate cost per weight give_up_after on_give_up max_waiting on_full order keep_on_retry "
        f"{_RATE} {_LIMIT} {_WAIT}",
        "is about runs: give it to exclusive=Exclusive(...)",
    ),
}
OF_DEBOUNCE: Final = {
    **_OF_ALL,
    **_words("delay timeout window interval", "is wait= here, the pause after the last call of a burst"),
    **_words("trailing", "is not needed: a burst of calls runs once, after its last call"),
    **_words(
        "until period queued_ttl",
        "is for Unique(), which runs the first call of a burst. A window of calls ends by wait= and "
        "max_wait=",
    ),
    **_words(
        "ttl recover limit max_waiting",
        "is for a key that guards a run, and a window of calls ends before its run: give it to exclusive=",
    ),
}
OF_LOCK: Final = {
    "timeout": "is ttl= for the lock of a dead process, as in redis-py, and wait= for the longest wait, as "
    "in filelock and threading",
    "blocking": "is wait= here: 0 for one try, None to wait until the lock is free",
    "nowait": "is wait=0 here",
    **_words(_WAIT, "is wait= here"),
    **_words(_TTL, "is ttl= here, for the lock of a dead process"),
    **_words(_LIMIT, "is limit= here"),
    **_words(_RATE, "is rate= here, such as rate='500/m'"),
    **_words("per parts partition tenant", "is part= here, the text of one part, such as part='acme'"),
    **_words("xact transaction", "is until_commit= here"),
    **_words(
        "auto_renewal auto_renew sleep thread_local",
        "is not needed: a thread renews the lease, and any thread may release the lock",
    ),
}
