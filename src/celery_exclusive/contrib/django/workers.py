"""Which workers run the tasks that hold locks: the workers know it, the store does not."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

TIMEOUT = 0.7
"""Seconds for which a page waits for the workers' answers, and for the broker."""


def workers_of(app: Any, ids: Collection[str]) -> dict[str, str]:
    """Return the worker of each task that one says it runs; empty if no worker can be asked."""
    if not ids:
        return {}
    try:
        with app.connection_for_write(connect_timeout=TIMEOUT) as connection:
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=TIMEOUT)
            inspect = app.control.inspect(timeout=TIMEOUT, connection=connection)
            answers = inspect.query_task(*ids) or {}
    except Exception:  # noqa: BLE001 - a broker that is down must not hide the locks
        return {}
    return {id: worker for worker, tasks in answers.items() for id in tasks}
