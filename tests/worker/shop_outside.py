"""Bodies that somebody else ends: while they are held they tell that they are alive, or do not let go."""

from __future__ import annotations

import os
import socket
import time
from functools import partial
from urllib.parse import urlsplit

from celery import Task

from celery_exclusive import Exclusive
from tests.worker.shop import app, journal, task
from tests.worker.shop_pools import _Slow

__all__ = ["app"]
MAIN = os.getpid()
SOON = 0.02


def live(task: Task, tag: str, *, hold: bool, key: str = "", is_stubborn: bool = False) -> str:
    """One body, open until the test opens its tag's door; a stubborn one goes on when it is told to end.

    Whoever tells it waits until it is alive: what comes right after the start ends it outside of the try.
    """
    note = partial(journal.write, task=task.name, id=task.request.id, key=key, tag=tag)
    note("start")
    while hold:
        try:
            while hold:
                note("alive")
                time.sleep(SOON)
                hold = not _opens(tag)
        except BaseException as told:
            note("told", to_end_by=type(told).__name__)
            if not is_stubborn:
                raise
    note("end")
    return tag


def _opens(tag: str) -> bool:
    """Look over a new connection: one that was interrupted may wait for ever for what it has not asked.

    A client would not do: Python swallows what is raised while its `__del__` runs, and nobody is told.
    """
    place = urlsplit(os.environ["LAB_DOORS"])
    with (
        socket.create_connection((place.hostname, place.port)) as connection,
        connection.makefile("rb") as answer,
    ):
        connection.sendall(f"SELECT {place.path[1:] or 0}\r\nLPOP door:{tag}\r\n".encode())
        answer.readline()
        return int(answer.readline()[1:]) > 0


@task(exclusive=Exclusive(key="{key}"))
def wait(self: Task, key: str, tag: str = "", hold: bool = False, is_stubborn: bool = False) -> str:
    return live(self, tag, hold=hold, key=key, is_stubborn=is_stubborn)


@task(exclusive=Exclusive(key="{key}", ttl=12))
def brief(self: Task, key: str, tag: str = "", hold: bool = False, is_stubborn: bool = False) -> str:
    """Its lease is soon over, unless a heartbeat keeps it."""
    return live(self, tag, hold=hold, key=key, is_stubborn=is_stubborn)


@task()
def plain(self: Task, tag: str, hold: bool = False, is_stubborn: bool = False) -> str:
    """The same without a lock."""
    return live(self, tag, hold=hold, is_stubborn=is_stubborn)


class _SlowInChildren(_Slow):
    """Calls of the store that last until somebody ends them; what the main process has to do goes on."""

    def _pass(self, id: str, place: str) -> None:
        if os.getpid() != MAIN:
            super()._pass(id, place)


if not isinstance(app._celery_exclusive.store, _Slow):  # which greenlets have
    app._celery_exclusive.store = _SlowInChildren(app._celery_exclusive.store)
