"""The shop, with bad luck in its workers for two task ids: "poisoned", and "interrupted"."""

from __future__ import annotations

from typing import Any

from celery import Task
from celery.exceptions import SoftTimeLimitExceeded

from celery_exclusive import Exclusive
from celery_exclusive.core.operations import Granted
from tests.worker.shop import act, app, task

__all__ = ["app"]


@task(exclusive=Exclusive("key", ttl=1))
def brief(self: Task, key: str, tag: str = "") -> None:
    act(self, key, tag)


class _BadLuck:
    """The app's store, which does nothing for one id, and interrupts another one when it has its lease."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def apply(self, key: str, operation: Any) -> Any:
        if operation.id.startswith("poisoned/"):
            raise ValueError("poison")
        reply = self._store.apply(key, operation)
        if operation.id.startswith("interrupted/") and isinstance(reply.answer, Granted):
            return _Interruption()
        return reply


class _Interruption:
    """A soft time limit whose signal lands where an answer of the store is first looked at."""

    def __getattr__(self, name: str) -> Any:
        raise SoftTimeLimitExceeded


app._celery_exclusive.store = _BadLuck(app._celery_exclusive.store)
