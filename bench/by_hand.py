"""The least that a worker does to keep a lease: a task and its request, by hand, with nothing checked.

The publisher sends key and id. The main process gives each delivery a token, and remembers it while it runs.
The child notes the token in memory that it shares with its parent, acquires the key before the body, and
releases it after the result is stored. There is no rule for a key that is held, no limit of time, no retry,
and no ending but a return or an exception.
"""

from __future__ import annotations

import json
import mmap
from hashlib import blake2b
from os import urandom
from typing import Any

from celery import Task
from celery.worker.request import Request

from celery_exclusive.core.operations import Acquire, Release
from celery_exclusive.core.records import SECOND
from celery_exclusive.stores.base import Store, open_store

_TOKEN = "token"
_SENT = ("task", "id", "lang", "eta", "group", "origin", "retries", "root_id", "argsrepr", "kwargsrepr")
_memory = mmap.mmap(-1, 64)
_running: dict[str, Request] = {}


def header(key: str) -> dict[str, Any]:
    """What a worker has to know of a call: its key, its own id, and in which store the key is."""
    digest = blake2b(json.dumps([key]).encode(), digest_size=16).hexdigest()
    return {"v": 1, "id": urandom(4).hex(), "exclusive": f"x:bench.work:{digest}", "store": "0" * 16}


class HandRequest(Request):
    """Gives its delivery a token, and is remembered while it runs."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.token = self.request_dict[_TOKEN] = urandom(8).hex()

    def execute_using_pool(self, pool: Any, **kwargs: Any) -> Any:
        _running[self.token] = self
        return super().execute_using_pool(pool, **kwargs)

    def on_success(self, *args: Any, **kwargs: Any) -> Any:
        _running.pop(self.token, None)
        return super().on_success(*args, **kwargs)


class HandTask(Task):  # type: ignore[misc]
    """Acquires its key before its body, and releases it after its result."""

    abstract = True
    Request = f"{__name__}:HandRequest"
    url = ""
    store: Store | None = None

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        return super().apply_async(args, kwargs, headers={"exclusive": header(args[0])}, **options)

    def before_start(self, task_id: str, *_: Any) -> None:
        request = self.request
        fields, token = request.headers["exclusive"], vars(request)[_TOKEN]
        self.store = self.store or open_store(self.url)  # in the child that uses it
        _memory[:16] = token.encode()
        late = self.kept(fields) if self.acks_late else {}
        claim = f"{task_id}/{fields['id']}"
        self.store.apply(fields["exclusive"], Acquire(claim, token, 30 * SECOND, **late))
        _memory[16:17] = b"\1"

    def kept(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The message that the store keeps until the run is done."""
        request = self.request
        sent = {name: vars(request).get(name) for name in _SENT}
        body = json.dumps([request.args, request.kwargs, {}])
        message = json.dumps({"v": 1, "body": body, "headers": {**sent, "exclusive": fields}})
        return {"acks_late": True, "recovers": True, "message": message.encode()}

    def after_return(self, _status: str, _retval: Any, task_id: str, *_: Any) -> None:
        fields, token = self.request.headers["exclusive"], vars(self.request)[_TOKEN]
        _memory[16:17] = b"\0"
        assert self.store
        self.store.apply(fields["exclusive"], Release(f"{task_id}/{fields['id']}", token))
