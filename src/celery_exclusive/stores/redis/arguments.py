"""The verb and the fields of an operation, as apply.lua gets them: all but three by their names."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from celery_exclusive.core.operations import (
    Acquire,
    AcquireAlone,
    Enqueue,
    ForceRelease,
    GiveUp,
    KeyOperation,
    Recall,
    Release,
    Remove,
    Requeue,
    Restore,
)

_VERBS: dict[type[KeyOperation], str] = {
    Acquire: "acquire",
    AcquireAlone: "acquire_alone",
    Enqueue: "enqueue",
    Release: "release",
    Requeue: "requeue",
    Remove: "remove",
    Recall: "recall",
    GiveUp: "give_up",
    ForceRelease: "force_release",
    Restore: "restore",
}
_HEAD = ("id", "token", "ttl")
"""The fields that come by their place, "" where an operation has none."""
_BY_LIST = "sends"
"""The field that the script knows by another one: an operation sends if it has a list to push onto."""
_PAIRS = {
    "takes_over": ("takes_over_id", "takes_over_phase"),
    "inherits": ("inherits_id", "inherits_token"),
}
AGAIN = {"acquire": ("redelivered", True), "acquire_alone": ("repeated", True)}
"""The fields that are added to a request that is sent again after its answer was lost."""
NO_HEAD = ("", "", "")
"""The three fields by place of an operation without an id."""


class _Form:
    """How operations of one type are read."""

    def __init__(self, kind: type[KeyOperation], verb: str) -> None:
        self.verb = verb
        fields = [field for field in dataclasses.fields(kind) if field.name != _BY_LIST]
        self.values_of = _getter([field.name for field in fields])
        self.in_head = sum(field.name in _HEAD for field in fields)
        self.blanks = NO_HEAD[self.in_head :]
        self.names = [field.name for field in fields[self.in_head :]]
        self.defaults = tuple(field.default for field in fields[self.in_head :])


def _getter(names: list[str]) -> Callable[[KeyOperation], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    get = attrgetter(*names)
    return lambda operation: (get(operation),)


_FORMS = {kind: _Form(kind, verb) for kind, verb in _VERBS.items()}
FIELDS = {
    form.verb: [sent for name in form.names for sent in _PAIRS.get(name, (name,))] for form in _FORMS.values()
}
"""The fields that each verb has by their names, as the header of apply.lua lists them."""
FIELDS["reap"] = ["limit", "every", "recovers_until"]
FIELDS["acquire_alone"] += ["list", "payload"]


def arguments_of(operation: KeyOperation) -> tuple[str, tuple[object, ...], list[object]]:
    """Return the verb, its id, token and ttl, and name and value of each other field that has no default."""
    form = _FORMS[type(operation)]
    values = form.values_of(operation)
    head, others = values[: form.in_head] + form.blanks, values[form.in_head :]
    named: list[object] = []
    if others != form.defaults:
        for name, value, default in zip(form.names, others, form.defaults, strict=True):
            if value == default:
                continue
            if name in _PAIRS:
                (id_field, other_field), (id, other) = _PAIRS[name], value
                named += (id_field, id, other_field, other)
            else:
                named += (name, value)
    return form.verb, head, named
