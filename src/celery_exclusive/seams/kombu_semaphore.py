"""The semaphore that counts the free processes of a pool."""

from __future__ import annotations

from typing import Any


def replace_queue(semaphore: Any, queue: Any) -> None:
    """Let requests wait in another queue, which has `append`, `popleft` and `clear`. None may wait now."""
    semaphore._waiting = queue
    semaphore._add_waiter, semaphore._pop_waiter = queue.append, queue.popleft
