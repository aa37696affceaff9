"""Pages of a key's line: the parameters of `statements.PAGE`, and its rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from celery_exclusive.core.key_state import waiting
from celery_exclusive.stores.base import Cursor, Page, Place, page_of
from celery_exclusive.stores.damaged import check_type
from celery_exclusive.stores.document_store import cursor_of
from celery_exclusive.stores.sql import rows
from celery_exclusive.stores.text import to_bytes

_FIRST: Final = -(2**63)
"""The first place that a column can hold."""


def parameters(namespace: bytes, key: str, after: Cursor | None, count: int) -> Sequence[bytes | int | str]:
    """Return the parameters that read one task more than the page has, of each part of the line."""
    every, name = list[bytes | int | str](), (namespace, to_bytes(key))
    after = after or Cursor("waiting", _FIRST, "")
    at = after
    for state in ("waiting", "aside", "shut"):
        first = Cursor(state, _FIRST, "")
        at = after if after.order[0] == first.order[0] else first
        is_over = after.order[0] > first.order[0]
        every += (*name, at.state, at.place, at.place, to_bytes(at.id), 0 if is_over else count + 1)
    return [*every, *name, at.state, count + 1]


def page(found: Iterable[Sequence[Any]], count: int, now: int) -> Page:
    """Return the page with these rows, which may be in any order.

    Raises:
        Damaged: another program has written a row.
    """
    tasks = sorted((_task(*row, now=now) for row in found), key=_order)
    return page_of(tasks, count)


def _task(*row: Any, now: int) -> tuple[Cursor, Place]:
    *fields, message = row
    entry = rows.entry(*fields)
    check_type(bytes, message)
    return cursor_of(entry), Place(waiting(entry, now), message)


def _order(task: tuple[Cursor, Place]) -> tuple[int, str, int, bytes]:
    return task[0].order
