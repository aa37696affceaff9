"""The shop, with bad luck in its workers for the task id "poisoned", and for ids that begin with a place.

At that place in the library's own calls, such as "after-grant:1", a soft time limit lands, once: the signal
with which the pool tells it. "before-publish" and "after-publish" are about the message of this id.
"""

from __future__ import annotations

import os
import signal
import threading
from functools import partial
from typing import Any

from celery import Task
from celery.signals import worker_process_init

from celery_exclusive import Exclusive
from celery_exclusive.core.operations import Acquire, Granted, Parked, Release
from celery_exclusive.messages.courier import Courier
from celery_exclusive.stores.base import Reply
from celery_exclusive.worker.relay import Relay
from tests.worker.shop import act, app, journal, task

__all__ = ["app"]
MAIN = os.getpid()


@task(exclusive=Exclusive("key", ttl=1))
def brief(self: Task, key: str, tag: str = "") -> None:
    act(self, key, tag)


@task(exclusive=Exclusive("key"))
def wait(self: Task, key: str, tag: str = "", hold: bool = False) -> None:
    act(self, key, tag, hold=hold)


@worker_process_init.connect(weak=False)
def start_another_thread(**_: Any) -> None:
    """As many libraries do in a child: it may be the one that the system lets take a signal."""
    threading.Thread(target=threading.Event().wait, daemon=True).start()


class _BadLuck:
    """The app's store, which does nothing for one id, and is interrupted for others."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def apply(self, key: str, operation: Any, **how: Any) -> Any:
        if operation.id.startswith("poisoned/"):
            raise ValueError("poison")
        _meet(operation.id, f"before-{_verb(operation)}")
        reply = self._store.apply(key, operation, **how)
        after = {Granted: "grant", Parked: "park"}.get(type(reply.answer), _verb(operation))
        _meet(operation.id, f"after-{after}")
        return reply


class _UnluckyCourier(Courier):
    def follow_up(self, reply: Reply, **wait: float) -> None:
        _meeting(reply, super().follow_up, **wait)


def _hand_on(relay: Relay, reply: Reply, hand_on: Any = Relay.hand_on) -> Any:
    return _meeting(reply, partial(hand_on, relay))


def _meeting(reply: Reply, publish: Any, **wait: float) -> Any:
    for wake in reply.wake:
        _meet(wake.id, "before-publish")
    left = publish(reply, **wait)
    for wake in reply.wake:
        _meet(wake.id, "after-publish")
    return left


def _verb(operation: Any) -> str:
    if isinstance(operation, Acquire):
        return "acquire" if operation.promoted is None else "promoted"
    return "release" if isinstance(operation, Release) else "other"


def _meet(id: str, place: str) -> None:
    task_id = id.partition("/")[0]
    is_met = task_id.partition(":")[0] == place and os.getpid() != MAIN
    if is_met and not journal.events("limit", id=task_id):
        journal.write("limit", id=task_id)
        os.kill(os.getpid(), signal.SIGUSR1)


app._celery_exclusive.courier = _UnluckyCourier(app._celery_exclusive)
Relay.hand_on = _hand_on  # type: ignore[method-assign]
app._celery_exclusive.store = _BadLuck(app._celery_exclusive.store)
