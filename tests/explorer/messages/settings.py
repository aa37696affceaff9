"""The worlds of messages that are explored."""

from __future__ import annotations

from typing import Any

from tests.explorer.messages.world import Budget, Setting


def setting(name: str, **given: Any) -> Setting:
    """Return a setting; names of the budget are numbers of it."""
    budget = Budget(**{what: given.pop(what) for what in Budget._fields if what in given})
    return Setting(name, budget=budget, **given)


SETTINGS = (
    setting("a crash, a second delivery", crashes=1, repeats=1),
    setting("two keys: a crash", exclusive=True, crashes=1),
    setting("two keys: a second delivery", exclusive=True, repeats=1),
    setting("two keys: a child is killed for good", exclusive=True, kills=1),
    setting("a killed child whose message comes again, two of them", lost_children=2),
    setting("a retry, a crash", retries=1, crashes=1),
    setting("two keys: a retry with another key", calls="ab'", exclusive=True, retries_elsewhere=1),
    setting("a replacement, a second delivery", replacements=1, repeats=1),
    setting("three workers: a retry, a second delivery", calls="a", workers=3, retries=1, repeats=1),
    setting(
        "three workers: a replacement, a second delivery", calls="a", workers=3, replacements=1, repeats=1
    ),
    setting("two keys: members of canvases, the next step of a chain", calls="aB", exclusive=True, steps=1),
    setting("calls from inside the body, a crash", inner=1, inner_members=1, crashes=1),
    setting("a publisher that fails, a retry that fails", refusals=2, interruptions=1, retries=1),
    setting("lost replies, a second delivery", lost_replies=1, repeats=1),
    setting("lost replies, a retry, a second delivery", calls="a", retries=1, lost_replies=1, repeats=1),
    setting("one call sends: lost replies, a crash", sends=True, lost_replies=2, crashes=1),
    setting("one call sends, and has to: lost replies", calls="aB", sends=True, lost_replies=2, repeats=1),
    setting("one call sends: a queue longer than queued_ttl", sends=True, lost_replies=1, backlogs=1),
    setting("one call sends, two keys: lost replies", sends=True, exclusive=True, lost_replies=1),
    setting("one call sends, until started: lost replies", until="started", sends=True, lost_replies=2),
    setting("one call sends, one task id twice: lost replies", calls="aa", sends=True, lost_replies=2),
    setting("two keys: the store is away for long", exclusive=True, outages=1),
    setting("two keys: a retry, the store is away for long", calls="a", exclusive=True, retries=1, outages=1),
    setting(
        "until started, early ack, two keys: the store is away for long",
        until="started",
        exclusive=True,
        late=False,
        outages=1,
    ),
    setting("lost replies, a retry that is not sent", lost_replies=2, retries=1, refusals=1),
    setting("a queue longer than queued_ttl, a crash", backlogs=1, crashes=1),
    setting("a live lease expires, a second delivery", pauses=1, repeats=1),
    setting("a body gives its message back, a second delivery", rejects=1, repeats=1),
    setting("a copy is revoked, a second delivery, a slow queue", revocations=1, repeats=1, slow=1),
    setting("the store forgets, a second delivery", forgets=1, repeats=1),
    setting("two keys: the store forgets", exclusive=True, forgets=1),
    setting("a conflict at the lock is skipped: a crash", exclusive=True, on_conflict="skip", crashes=1),
    setting("a conflict at the lock is rescheduled", exclusive=True, on_conflict="reschedule", repeats=1),
    setting("one task id twice: a crash, a second delivery", calls="aa", crashes=1, repeats=1),
    setting("one task id twice, one of them a member: a second delivery", calls="aA", repeats=1),
    setting(
        "one task id twice, two keys: a conflict at the lock is skipped: a crash",
        calls="aa'",
        exclusive=True,
        on_conflict="skip",
        crashes=1,
    ),
    setting(
        "one task id twice: a queue longer than queued_ttl",
        calls="aa",
        exclusive=True,
        on_conflict="skip",
        backlogs=1,
        repeats=1,
    ),
    setting("until started, two keys: a crash", until="started", exclusive=True, crashes=1),
    setting("a period, two keys: a crash", until="period", exclusive=True, crashes=1),
    setting("early ack: a crash, a second delivery, a slow queue", late=False, crashes=1, repeats=1, slow=1),
    setting("early ack, two keys: a crash, a killed child", late=False, exclusive=True, crashes=1, kills=1),
    setting("no flags: a crash, a second delivery", flags=False, crashes=1, repeats=1),
    setting("recover: one call, a crash", calls="a", exclusive=True, recovers=True, crashes=1),
    setting("recover: a second delivery", exclusive=True, recovers=True, repeats=1),
    setting(
        "recover: one worker: a retry, a crash",
        calls="a",
        workers=1,
        exclusive=True,
        recovers=True,
        retries=1,
        crashes=1,
    ),
    setting(
        "recover: one call, the store is away for long", calls="a", exclusive=True, recovers=True, outages=1
    ),
    setting("recover: a killed child comes again", calls="a", exclusive=True, recovers=True, lost_children=1),
)

LARGE = (
    setting("large: recover: a retry, a crash", calls="a", exclusive=True, recovers=True,
            retries=1, crashes=1),
    setting("large: recover: the store is away", exclusive=True, recovers=True, outages=1),
    setting("large: recover: a crash, a copy", exclusive=True, recovers=True, crashes=1, repeats=1),
    setting("large: recover: lost replies", exclusive=True, recovers=True, lost_replies=1, crashes=1),
    setting("large: recover: a message goes back", exclusive=True, recovers=True, rejects=1, crashes=1),
    setting("large: recover: a copy is revoked", exclusive=True, recovers=True, revocations=1, crashes=1),
    setting("large: two keys: a crash, a second delivery", exclusive=True, crashes=1, repeats=1),
    setting("large: two keys: a killed child comes again", exclusive=True, lost_children=1, slow=1),
    setting("large: two keys: a body gives its message back", exclusive=True, rejects=1, repeats=1),
    setting("large: two keys: lost replies", exclusive=True, lost_replies=1, repeats=1),
    setting("large: two keys: a retry, a crash", exclusive=True, retries=1, crashes=1),
    setting("large: two keys: a retry with another key, a crash", calls="ab'", exclusive=True,
            retries_elsewhere=1, crashes=1),
    setting("large: two keys: a copy is revoked, a crash", exclusive=True, revocations=1, crashes=1),
    setting("large: two keys: a second delivery, a slow queue", exclusive=True, repeats=1, slow=1),
    setting("large: two keys: the store forgets, a crash", exclusive=True, forgets=1, crashes=1),
    setting("large: a period, two keys: a crash", until="period", exclusive=True, crashes=1, retries=1),
    setting("large: a killed child, a second delivery", lost_children=1, repeats=1),
    setting("large: three calls: a queue longer than queued_ttl", calls="abc", backlogs=1, crashes=1),
    setting("large: three calls: a crash, a second delivery", calls="abc", crashes=1, repeats=1),
    setting("large: a pause, a crash, a second delivery", pauses=1, crashes=1, repeats=1),
    setting("large: three workers", workers=3, crashes=1, repeats=1, slow=1),
    setting("large: retries and replacements", retries=1, replacements=1, repeats=1, crashes=1),
    setting("large: until started", calls="abc", until="started", exclusive=True, crashes=1, repeats=1),
)  # fmt: skip
