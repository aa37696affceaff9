"""The arguments of apply.lua for an operation, and its reply as the store's answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from operator import attrgetter
from os import urandom
from typing import Any, Final, get_args

from celery_exclusive.core import operations
from celery_exclusive.core.key_state import waiting
from celery_exclusive.core.operations import Answer, Applied, KeyOperation, Owner, Waiting
from celery_exclusive.core.records import NEVER, Entry, OwnerPhase, State
from celery_exclusive.stores.base import Cursor, Place, Reply, Wake
from celery_exclusive.stores.redis import scripts
from celery_exclusive.stores.text import to_text

AGAIN: Final = {"acquire": ("redelivered", True), "acquire_alone": ("repeated", True)}
"""The fields that are added to a request that is sent again after its answer was lost."""
_HEAD: Final = ("id", "token", "ttl")
"""The fields that come by their place, "" where an operation has none. The others come by their names."""
_PAIRS: Final = {
    "takes_over": ("takes_over_id", "takes_over_phase"),
    "inherits": ("inherits_id", "inherits_token"),
    "waits": ("waits_for", "waits_at_most"),
}


_VERBS: Final[dict[type[KeyOperation], str]] = {
    operations.Acquire: "acquire",
    operations.AcquireAlone: "acquire_alone",
    operations.Enqueue: "enqueue",
    operations.Release: "release",
    operations.Requeue: "requeue",
    operations.Remove: "remove",
    operations.Recall: "recall",
    operations.StandBehind: "stand_behind",
    operations.Drop: "drop",
    operations.GiveUp: "give_up",
    operations.ForceRelease: "force_release",
    operations.Restore: "restore",
    operations.SetLimit: "set_limit",
    operations.Hold: "hold",
    operations.Charge: "charge",
}
"""The verbs of the script."""


class _Form:
    """How operations of one type are read."""

    def __init__(self, kind: type[KeyOperation], verb: str) -> None:
        self.verb = verb
        sent = [field for field in fields(kind) if field.name != "sends"]  # the script sees that by its list
        get = attrgetter(*(field.name for field in sent))
        self.values_of = get if len(sent) > 1 else lambda operation: (get(operation),)
        self.in_head = sum(field.name in _HEAD for field in sent)
        self.blanks = ("",) * (len(_HEAD) - self.in_head)
        self.names = [field.name for field in sent[self.in_head :]]
        self.defaults = tuple(field.default for field in sent[self.in_head :])


_FORMS: Final = {kind: _Form(kind, verb) for kind, verb in _VERBS.items()}
_FIELDS: Final = {
    form.verb: [sent for name in form.names for sent in _PAIRS.get(name, (name,))] for form in _FORMS.values()
}
"""The fields that each verb has by their names, as the header of apply.lua lists them."""
_FIELDS["reap"] = ["limit", "every", "recovers_until"]
for _verb in ("acquire_alone", "enqueue"):
    _FIELDS[_verb] += ["list", "payload"]
APPLY: Final = scripts.load(
    "apply.lua",
    arguments="now verb key id token ttl settings field value",
    reply="answer number owners epoch wakes asides unreadable time drawn",
    fields=_FIELDS.items(),
)


def words_of(key: str, operation: KeyOperation, now: int | str, settings: str) -> tuple[Any, ...]:
    """Return the arguments of the script: of the fields after `settings` those that have no default."""
    form = _FORMS[type(operation)]
    values = form.values_of(operation)
    others = values[form.in_head :]
    named: list[object] = []
    if others != form.defaults:
        for name, value, default in zip(form.names, others, form.defaults, strict=True):
            if value != default and name in _PAIRS:
                named += (word for pair in zip(_PAIRS[name], value, strict=True) for word in pair)
            elif value != default and name in ("rates", "part_rates"):
                named += (name, " ".join(str(number) for rate in value for number in rate))
            elif value != default:
                named += (name, value)
    head = values[: form.in_head] + form.blanks
    return (now, form.verb, key, *head, settings + urandom(8).hex(), *named)


_GIVES_UP, _REPLACEABLE, _IS_OVER = 1, 2, 4
_STATES: Final[dict[bytes, State]] = {b"q:": "waiting", b"a:": "aside", b"s:": "shut"}
"""The flags of a record, as load.lua has them."""
_PHASES: Final[dict[bytes, OwnerPhase]] = {phase.encode(): phase for phase in get_args(OwnerPhase)}
_ANSWERS: Final[dict[bytes, Callable[..., Answer]]] = {
    b"granted": lambda number, after, _: operations.Granted(number, after[0].id if after else ""),
    b"parked": operations.Parked,
    b"held": lambda _, *by: operations.Held(*by),
    b"full": operations.Full,
    b"over": lambda newer, *by: operations.Over(to_text(newer), *by),
    b"stale": lambda *_: operations.Stale(),
    b"done": lambda number, *_: Applied(bool(number)),
}


def read_reply(reply: Any) -> Reply:
    """Read the whole reply of the script."""
    name, number, owners, epoch, wakes, asides, unreadable, time, _ = reply
    is_done = name == b"done"  # without owners: of a sweep, the time until the next key is due
    return Reply(
        _ANSWERS[name](number, *read_owners([] if is_done else owners)),
        tuple(
            Wake(to_text(key), to_text(id), message, to_text(epoch), waiting, deaths)
            for key, id, message, waiting, deaths in _rows(wakes, 5)
        ),
        tuple((to_text(key), to_text(id)) for key, id in _rows(asides, 2)),
        to_text(epoch),
        more=is_done and number < 0,
        swept=max(abs(number) - 1, 0) if is_done else 0,
        unreadable=tuple(
            (to_text(key), shorten(problem.decode(errors="replace"))) for key, problem in _rows(unreadable, 2)
        ),
        due_in=next(iter(owners), None) if is_done else None,
        time=time,
    )


def read_owners(found: list[Any]) -> tuple[tuple[Owner, ...], int]:
    """Return the owners that an answer names, and the number of others."""
    *flat, others = found or [0]
    owners = tuple(
        Owner(to_text(id), age, left, fence, _PHASES[phase], to_text(token))
        for id, age, left, fence, phase, token in _rows(flat, 6)
    )
    return owners, others


def read_lease(id: bytes, lease: bytes, now: int) -> Owner:
    """Return a holder, of its lease as document.lua keeps it."""
    expiry, fence, _, words, rest = lease.split(b" ", 4)
    age, left = max(now - int(fence), 0), max(int(expiry) - now, 0)
    phase, _, size = [*words.split(b":"), b"", b""][:3]
    return Owner(to_text(id), age, left, int(fence), _PHASES[phase], to_text(rest[int(size or 0) :]))


def read_line(found: list[Any], now: int) -> tuple[Waiting, ...]:
    """Return the first tasks in line, as inspect.lua shows them."""
    return tuple(waiting(_entry("waiting", *task), now) for task in _rows(found, 4))


def read_page(found: list[Any], now: int) -> Iterator[tuple[Cursor, Place]]:
    """Yield the tasks of a page, as line.lua shows them."""
    for kind, *task, message in _rows(found, 6):
        entry = _entry(_STATES[kind[:2]], *task)
        state = f"shut{kind[2:].decode()}" if entry.state == "shut" else entry.state
        yield Cursor(state, int(task[1]), entry.id), Place(waiting(entry, now), message)


def _entry(state: State, id: bytes, place: bytes, record: bytes, deadline: bytes) -> Entry:
    """Return an entry. Raises ValueError if another program has written it."""
    fields = record.split(b" ", 6) if record else [b"0", b"0", place]
    *numbers, newer = [*fields, *(b"0", b"0", b"1", b"")[len(fields) - 3 :]]
    until, offers, seq, deaths, flags, cost = map(int, numbers)
    over, part = (to_text(newer), "") if flags & _IS_OVER else (None, to_text(newer))
    ends, gives_up = int(deadline or NEVER), bool(flags & _GIVES_UP)
    replaceable = bool(flags & _REPLACEABLE)
    return Entry(
        to_text(id), seq, until, offers, state, deaths, ends, gives_up, replaceable, over, cost, part
    )


def shorten(problem: str) -> str:
    """Return a problem without its place in the script."""
    return re.sub(r"^(ERR )?@?user_script: ?\d+: | script: .*$", "", problem)


def _rows(flat: list[Any], width: int) -> Iterator[tuple[Any, ...]]:
    return zip(*[iter(flat)] * width, strict=True)
