"""What an operation has changed of a key, and what has to be done for it."""

from __future__ import annotations

from dataclasses import dataclass

from celery_exclusive.core.operations import Answer
from celery_exclusive.core.records import Document, Entry


@dataclass(frozen=True, slots=True)
class Transition:
    """The result of a step: the new document, the changes of the line, and the ids to republish.

    `entries` are new or changed; `removed` leave with their messages; `kept`: store the operation's message;
    `tombstone`: its id is finished, by the delivery of this token, or has `BEGUN`. The messages of `wake`
    must be published now; no worker accepted the offers of `aside`. At `due` the reaper must look at the key;
    None: not before the next operation.
    """

    document: Document
    answer: Answer
    entries: tuple[Entry, ...] = ()
    removed: tuple[str, ...] = ()
    kept: bool = False
    tombstone: str | None = None
    wake: tuple[str, ...] = ()
    aside: tuple[str, ...] = ()
    due: int | None = None
