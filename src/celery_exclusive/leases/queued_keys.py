"""Finds and releases the unique keys of a task whose messages have not begun."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from celery_exclusive.errors import LockHeld
from celery_exclusive.leases.operator_release import release
from celery_exclusive.options.key_text import absolute_key, own_key, without_hash
from celery_exclusive.stores.base import states

if TYPE_CHECKING:
    from celery_exclusive.services import Services
    from celery_exclusive.stores.base import Store


def queued_keys(store: Store, task_name: str) -> list[str]:
    """Return the queued unique keys of a task, for all its arguments.

    A `key=` with another text than the task's name may be shared with other tasks, and is left out.

    Raises:
        ExclusiveError: the store cannot list its keys, or does not answer.
    """
    own, shared = own_key(task_name, "u"), absolute_key(task_name, "u")
    keys = {shared, *(key for key in store.scan(own) if without_hash(key) == own)}
    return [key for key, snapshot in states(store, keys) if snapshot.state == "queued"]


def release_queued(services: Services, keys: Iterable[str]) -> int:
    """Release the keys of tasks that have not begun, and return their number. Running tasks keep theirs."""
    released = 0
    for key in keys:
        with suppress(LockHeld):
            released += bool(release(services, key).former)
    return released
