"""The verb and the fields of an operation, as apply.lua gets them: by their names, never by their place."""

from __future__ import annotations

import dataclasses

from celery_exclusive.core.operations import (
    Acquire,
    AcquireAlone,
    ForceRelease,
    KeyOperation,
    Release,
    Remove,
    Requeue,
    Restore,
)

_VERBS: dict[type[KeyOperation], str] = {
    Acquire: "acquire",
    AcquireAlone: "acquire_alone",
    Release: "release",
    Requeue: "requeue",
    Remove: "remove",
    ForceRelease: "force_release",
    Restore: "restore",
}
_NAMES = {verb: [field.name for field in dataclasses.fields(kind)] for kind, verb in _VERBS.items()}
_PARTS_OF_FORMER = {
    "acquire": ("former_id", "former_phase"),
    "acquire_alone": ("former_id", "former_token"),
}


def _sent_as(verb: str, name: str) -> tuple[str, ...]:
    return _PARTS_OF_FORMER[verb] if name == "former" else (name,)


FIELDS = {verb: [sent for name in names for sent in _sent_as(verb, name)] for verb, names in _NAMES.items()}
"""The fields of each verb, as the header of apply.lua lists them."""
FIELDS["reap"] = ["limit", "every"]


def arguments_of(operation: KeyOperation) -> tuple[str, list[object]]:
    """Return the verb, and name and value of each field that is neither None nor False."""
    verb = _VERBS[type(operation)]
    named: list[object] = []
    for name in _NAMES[verb]:
        value = getattr(operation, name)
        if name == "former" and value:
            (id_field, other_field), (id, other) = _PARTS_OF_FORMER[verb], value
            named += (id_field, id, other_field, other)
        elif value is not None and value is not False:
            named += (name, value)
    return verb, named
