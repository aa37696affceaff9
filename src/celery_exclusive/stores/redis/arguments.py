"""The verb and the fields of an operation, as apply.lua gets them: by their names, never by their place."""

from __future__ import annotations

import dataclasses

from celery_exclusive.core.operations import (
    Acquire,
    AcquireAlone,
    Enqueue,
    ForceRelease,
    GiveUp,
    KeyOperation,
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
    GiveUp: "give_up",
    ForceRelease: "force_release",
    Restore: "restore",
}
_NAMES = {verb: [field.name for field in dataclasses.fields(kind)] for kind, verb in _VERBS.items()}
_PAIRS = {
    "takes_over": ("takes_over_id", "takes_over_phase"),
    "inherits": ("inherits_id", "inherits_token"),
}
FIELDS = {
    verb: [sent for name in names for sent in _PAIRS.get(name, (name,))] for verb, names in _NAMES.items()
}
"""The fields of each verb, as the header of apply.lua lists them."""
FIELDS["reap"] = ["limit", "every", "recovers_until"]
FIELDS["acquire_alone"] += ["list", "payload"]


def arguments_of(operation: KeyOperation) -> tuple[str, list[object]]:
    """Return the verb, and name and value of each field that is neither None nor False."""
    verb = _VERBS[type(operation)]
    named: list[object] = []
    for name in _NAMES[verb]:
        value = getattr(operation, name)
        if name in _PAIRS and value:
            (id_field, other_field), (id, other) = _PAIRS[name], value
            named += (id_field, id, other_field, other)
        elif value is not None and value is not False:
            named += (name, value)
    return verb, named
