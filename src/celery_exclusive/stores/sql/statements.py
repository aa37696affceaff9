"""What the tables are asked, made once. Parameters that choose rows are called `of_` and the column."""

from __future__ import annotations

from sqlalchemy import (
    ColumnElement,
    Table,
    and_,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from celery_exclusive.stores.sql.schema import line, locks, namespaces, tombstones


def _of(table: Table, *columns: str) -> ColumnElement[bool]:
    return and_(*(table.c[column] == bindparam(f"of_{column}") for column in columns))


_NAMESPACE = _of(namespaces, "namespace")
_LOCK = _of(locks, "namespace", "key")
_LINE = _of(line, "namespace", "key")
_ENTRY = _of(line, "namespace", "key", "id")
_TOMBSTONE = _of(tombstones, "namespace", "key", "id")
_ENTRY_COLUMNS = (line.c.id, line.c.seq, line.c.offer_until, line.c.offers, line.c.state)
_other = line.alias()

namespace = select(namespaces).where(_NAMESPACE)
change_namespace = update(namespaces).where(_NAMESPACE)

lock = (
    select(
        namespaces.c.epoch,
        namespaces.c.fence.label("floor"),
        locks.c.version,
        locks.c.fence,
        locks.c.due,
        locks.c.waiting,
        locks.c.aside,
        locks.c.behind,
        locks.c.document,
        tombstones.c.until,
        tombstones.c.token,
    )
    .select_from(namespaces.outerjoin(locks, _LOCK).outerjoin(tombstones, _TOMBSTONE))
    .where(_NAMESPACE)
)
insert_lock = insert(locks)
change_lock = update(locks).where(_LOCK, locks.c.version == bindparam("of_version"))
renewed_locks = select(locks.c.key, locks.c.version, locks.c.document, locks.c.ends).where(
    _of(locks, "namespace"), locks.c.key.in_(bindparam("of_keys", expanding=True))
)
renew_lock = update(locks).where(_LOCK)
postpone_lock = update(locks).where(_LOCK).values(due=bindparam("due"))

line_part = (
    select(*_ENTRY_COLUMNS)
    .where(_LINE, line.c.state == bindparam("of_state"))
    .order_by(line.c.place, line.c.id)
    .limit(bindparam("count"))
)
entry = select(
    *_ENTRY_COLUMNS,
    select(func.count())
    .where(
        _other.c.namespace == line.c.namespace,
        _other.c.key == line.c.key,
        _other.c.state == "waiting",
        _other.c.place < line.c.seq,
    )
    .scalar_subquery()
    .label("ahead"),
).where(_ENTRY)
insert_entry = insert(line)
change_entry = update(line).where(_ENTRY)
delete_entry = delete(line).where(_ENTRY)
delete_line = delete(line).where(_LINE)
messages = select(line.c.id, line.c.message).where(_LINE, line.c.id.in_(bindparam("of_ids", expanding=True)))

insert_tombstone = insert(tombstones)
change_tombstone = update(tombstones).where(_TOMBSTONE)

ended_locks = (
    select(locks.c.key, locks.c.fence)
    .where(_of(locks, "namespace"), locks.c.ends <= bindparam("of_time"))
    .limit(bindparam("count"))
)
delete_lock = delete(locks).where(_LOCK)
ended_tombstones = (
    select(tombstones.c.key, tombstones.c.id)
    .where(_of(tombstones, "namespace"), tombstones.c.until <= bindparam("of_time"))
    .limit(bindparam("count"))
)
delete_tombstone = delete(tombstones).where(_TOMBSTONE)
due_keys = (
    select(locks.c.key)
    .where(_of(locks, "namespace"), locks.c.due <= bindparam("of_time"))
    .order_by(locks.c.due, locks.c.key)
    .limit(bindparam("count"))
)
used_keys = select(locks.c.key).where(_of(locks, "namespace"), or_(locks.c.ends.is_(None), locks.c.ends > 0))
