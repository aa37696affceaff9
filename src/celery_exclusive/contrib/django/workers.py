"""Asks the workers which of them run the tasks that hold locks, since the store does not know it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

TIMEOUT = 0.7
"""Seconds for which a page waits for the workers' answers, and for the broker."""


def workers_of(app: Any, ids: Collection[str]) -> dict[str, str]:
    """Return the worker of each running task, as the workers report it; empty if no worker answers."""
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
