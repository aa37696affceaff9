"""The parts of a key, as a transaction reads and writes their rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from typing import Any

from celery_exclusive.core.records import NEVER, Entry, Part
from celery_exclusive.stores.damaged import Damaged, check_type, read_part
from celery_exclusive.stores.document_store import shut_in
from celery_exclusive.stores.sql import rows, statements
from celery_exclusive.stores.text import to_bytes, to_text


class PartRows:
    """Where a transaction has the parts of a key.

    Parameters:
        ask: executes a statement with parameters, and returns its rows.
        name: the namespace and the key.
    """

    def __init__(self, ask: Callable[..., Sequence[Any]], *name: bytes) -> None:
        self._ask, self._name = ask, name
        self.counted = dict[str, int]()
        """How many shut tasks the parts that were read say that they have."""

    def parts(self, names: Collection[str]) -> list[Part]:
        statement = statements.repeated(statements.THESE_PARTS, len(names))
        return self._read(statement, *map(to_bytes, names))

    def due_parts(self, count: int) -> list[Part]:
        return self._read(statements.DUE_PARTS, count)

    def some(self, count: int) -> list[Part]:
        """Return so many of the parts."""
        return self._read(statements.SOME_PARTS, count)

    def shut(self, name: str, count: int) -> list[Entry]:
        of = shut_in(name), to_bytes(name), count
        return [rows.entry(*row) for row in self._ask(statements.SHUT, *self._name, *of)]

    def _read(self, statement: str, *values: Any) -> list[Part]:
        found = [_part(*row) for row in self._ask(statement, *self._name, *values)]
        self.counted.update((part.name, part.shut) for part in found)
        return found


def fields_of(part: Part) -> tuple[int | str | None, ...]:
    """Return the fields of a part that stand before its name."""
    return None if part.due == NEVER else part.due, json.dumps(part.text)


def _part(name: bytes, due: Any, text: Any) -> Part:
    check_type(bytes, name)
    try:
        text = json.loads(text)
    except (ValueError, TypeError) as error:
        raise Damaged(f"{type(error).__name__}: {error}") from error
    part = read_part(to_text(name), text)
    if due != fields_of(part)[0]:
        raise Damaged(f"its part {part.name!r} is due at {due}, not at {part.due}")
    return part
