"""The changes of one operation on a key, and the work that they require."""

from __future__ import annotations

from dataclasses import dataclass

from celery_exclusive.core.operations import Answer
from celery_exclusive.core.records import Document, Entry


@dataclass(frozen=True, slots=True)
class Transition:
    """The result of a step: the new document, the changes of the line, and the ids to republish.

    * `entries`: new or changed entries. `removed`: ids whose entries are deleted with their messages.
    * `kept`: store the operation's message.
    * `tombstone`: the operation's id is finished, by the delivery with this token, or has `BEGUN`.
    * `wake`: ids whose messages must be published now. `aside`: ids whose offers no worker accepted.
    * `due`: when the reaper must look at the key; None: not before the next operation.
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
