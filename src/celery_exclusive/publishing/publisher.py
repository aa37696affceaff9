"""The publisher of an app with locks: its services, and its memory from one call to the next."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from celery_exclusive import notices
from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.run import current_run
from celery_exclusive.system.cached import cached
from celery_exclusive.system.deadline import REPORT, deadline
from celery_exclusive.system.off_loop import is_in_loop

if TYPE_CHECKING:
    from celery_exclusive.services import Services

PUBLISHER = "_celery_exclusive_publisher"
"""The attribute of an app that has its publisher."""
_LIFE = 60
"""Seconds after which the epoch is read again: a store that has lost its data has a new one."""
_SILENCE = 0.5
"""Seconds without an answer after which a store counts as silent. An immediate error delays no message."""
_MOST_KEYS = 10_000
"""The most keys of refused calls that are remembered."""
_LATELY = 2
"""The calls after a refused one that ask first whether their key is held, which costs others a request."""
_REMEMBERED = 2
"""Seconds for which a silent store is not asked again for messages that are sent in any case."""


class Publisher:
    """The services of an app, and the facts that its calls have learnt of their store.

    `refused_lately`: by task, for how many calls a refusal counts: the next is likely a duplicate, too.
    `warned_of_skips`: tasks whose next steps may get a skip result. `waits_behind`: the keys whose last call
    was refused, with the time until which another one would change nothing.
    """

    def __init__(self, services: Services) -> None:
        self.services = services
        self.refused_lately: dict[str, int] = {}
        self.warned_of_skips: set[str] = set()
        self.waits_behind: dict[str, float] = {}
        self._epoch, self._epoch_expires = "", 0.0
        self.impatient_store = ImpatientStore(services)

    @cached
    def is_fast(self) -> bool:
        """Whether messages are pushed with a client that is kept, past kombu's own code.

        Promises depend neither on this nor on `has_one_call`.
        """
        return bool(self.services.broker_place) and self.services.is_fast

    @cached
    def has_one_call(self) -> bool:
        """Whether a message may be made before its unique key is acquired, see `publishing.asking`.

        Broker and store are Redis: the store works while Celery makes the message. No promise depends on it.
        """
        return self.is_fast and hasattr(self.services.store, "begin")

    def note_call(self, task: str, *, is_refused: bool) -> None:
        if is_refused:
            self.refused_lately[task] = _LATELY
        elif left := self.refused_lately.pop(task, 1) - 1:
            self.refused_lately[task] = left

    def note_ordered(self, task: str, key: str, *, is_refused: bool) -> None:
        self.note_call(task, is_refused=is_refused)
        if is_refused:
            if len(self.waits_behind) >= _MOST_KEYS:
                self.waits_behind.clear()
            self.waits_behind[key] = time.monotonic() + self.services.settings.exclusive_offer

    def epoch(self, store: Any) -> str:
        """Return the epoch of the store, read at most a minute ago.

        By the epoch in a message, a worker notices that the publisher uses another store. Only a call that
        will send a request to this store anyway may read it. After an error the call has waited for the store
        once, and must not wait again.
        """
        now = time.monotonic()
        if now >= self._epoch_expires:
            notices.store_chosen(self.services)
            if is_in_loop():
                notices.blocks_a_loop(self.services)
            self._epoch = store.epoch()
            self._epoch_expires = now + _LIFE
        return self._epoch


class ImpatientStore:
    """The store of an app, for messages that are sent in any case: its calls have a short time limit.

    After the store was silent they raise StoreUnavailable at once. Not used where broker and store are one
    database, without which the message cannot be sent. All messages and releases of the end of a run share
    one budget: a group of many members must not wait for each member again.
    """

    def __init__(self, services: Services) -> None:
        self._services, self._silent_until = services, 0.0

    def __getattr__(self, name: str) -> Any:
        return partial(self._ask, getattr(self._services.store, name))

    def _ask(self, call: Callable[..., Any], *asked: Any) -> Any:
        run, began = current_run.get(), time.monotonic()
        if began < self._silent_until or (run and not run.end.left):
            url = self._services.store.url
            raise StoreUnavailable(f"store {url} did not answer a moment ago, and was not asked again")
        if run:
            limit = run.end if run.body_over else deadline(run.end.left)
        else:
            limit = deadline(REPORT if self._services.worker else None)
        try:
            with limit:
                return call(*asked)
        except StoreUnavailable:
            if time.monotonic() - began >= _SILENCE:
                self._silent_until = time.monotonic() + _REMEMBERED
            raise
