"""The store of an app for messages that are sent in any case: its calls have a short time limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.run import current_run
from celery_exclusive.system.deadline import REPORT, deadline

if TYPE_CHECKING:
    from celery_exclusive.publishing.publisher import Publisher

T = TypeVar("T")

_SILENCE = 0.5
"""Seconds without an answer after which a store counts as silent. An immediate error delays no message."""


def store_or_impatient(publisher: Publisher) -> Any:
    """Return the store for a message that is sent even if the store does not answer.

    Where broker and store are one database, the message cannot be sent before the database answers: it waits
    like any other message.
    """
    services = publisher.services
    return services.store if services.has_one_place else ImpatientStore(publisher)


class ImpatientStore:
    """A store whose calls have a short time limit, and fail at once after it was silent.

    All messages and releases of the end of a run share one budget. A group of many members must not wait for
    each member again, so the silence is remembered.

    Its calls raise StoreUnavailable if the store does not answer, or did not answer a moment ago.
    """

    def __init__(self, publisher: Publisher) -> None:
        self._publisher, self._services = publisher, publisher.services

    def __getattr__(self, name: str) -> Any:
        return getattr(self._services.store, name)

    def apply(self, *asked: Any) -> Any:
        return self._ask(self._services.store.apply, *asked)

    def epoch(self) -> str:
        return self._ask(self._services.store.epoch)

    def inspect(self, key: str) -> Any:
        return self._ask(self._services.store.inspect, key)

    def begin(self, *asked: Any) -> Any:
        store: Any = self._services.store
        return self._ask(store.begin, *asked)

    def _ask(self, call: Callable[..., T], *asked: Any) -> T:
        limit = self._limit()
        if self._publisher.is_store_silent or limit is None:
            url = self._services.store.url
            raise StoreUnavailable(f"store {url} did not answer a moment ago, and was not asked again")
        with self._noting_silence(), limit:
            return call(*asked)

    def _limit(self) -> AbstractContextManager[None] | None:
        """Return the time limit of a call. None: its run has no time left."""
        run = current_run.get()
        if run is None:
            return deadline(REPORT if self._services.worker else None)
        if not run.end.left:
            return None
        return run.end if run.body_over else deadline(run.end.left)

    @contextmanager
    def _noting_silence(self) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        except StoreUnavailable:
            if time.monotonic() - began >= _SILENCE:
                self._publisher.note_silence()
            raise
