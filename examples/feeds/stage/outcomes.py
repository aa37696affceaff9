"""Notes in the journal what the result backend says about every task, as it says it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from threading import Thread
from typing import TYPE_CHECKING, Any

import redis
from celery import Celery
from celery.result import AsyncResult

from . import journal

if TYPE_CHECKING:
    from typing_extensions import Self


class Outcomes:
    """Listens to the results that Celery's Redis backend publishes, from a thread of its own."""

    def __init__(self, app: Celery, url: str) -> None:
        self._app = app
        self._prefix: bytes = app.backend.task_keyprefix
        self._client = redis.Redis.from_url(url)
        self._listener = self._client.pubsub(ignore_subscribe_messages=True)
        self._seen: set[str] = set()

    def __enter__(self) -> Self:
        self._listener.psubscribe(self._prefix + b"*")
        self._thread = Thread(target=self._listen, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        self._thread.join()
        self._listener.close()
        self._client.close()

    def complete(self, task_ids: Iterable[str]) -> None:
        """Ask the backend for those that were not heard of: a published message can get lost."""
        for task_id in task_ids:
            if task_id not in self._seen:
                result: AsyncResult[Any] = self._app.AsyncResult(task_id)
                self._note(task_id, result.state, result.result)

    def _listen(self) -> None:
        try:
            while not self._stopped:
                message = self._listener.get_message(timeout=0.2)
                if message is not None:
                    meta = json.loads(message["data"])
                    self._note(meta["task_id"], meta["status"], meta["result"])
        except (redis.ConnectionError, OSError):
            return  # the server has gone: the demo is over, or has failed for that very reason

    def _note(self, task_id: str, state: str, result: object) -> None:
        if state in self._app.backend.READY_STATES and task_id not in self._seen:
            self._seen.add(task_id)
            skipped = isinstance(result, dict) and "skipped" in result
            journal.write("outcome", id=task_id, state=state, skipped=skipped)

    _stopped = False
    _thread: Thread
