"""A lease names the worker that has it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_exclusive import lock
from celery_exclusive.core.claim import worker_number
from celery_exclusive.stores.base import Store
from tests.worker.lab import Lab


@pytest.mark.proves("workers by number")
def test_the_token_of_a_holder_names_its_worker(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab()
    started = [lab.start_worker(name, 1) for name in ("w1", "w2")]
    for tag in "ab":
        lab.send("wait", tag, tag=tag, hold=True)
        lab.journal.wait_for("start", tag=tag)
    store: Store = lab.app._celery_exclusive.store  # type: ignore[attr-defined]
    owners = [owner for key in store.scan() for owner in store.inspect(key).holders]
    known = store.workers()
    names = {owner.id.partition("/")[0]: known[worker_number(owner.token)] for owner in owners}
    assert len(names) == 2
    for (worker,) in names.values():
        assert worker.pid in [one.process.pid for one in started]
    assert {worker.nodename.partition("@")[0] for (worker,) in names.values()} == {"w1", "w2"}
    with lock("own", app=lab.app):
        (owner,) = store.inspect("x=own").holders
    assert worker_number(owner.token) == 0
    lab.open(*"ab")
