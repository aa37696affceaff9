"""What befalls the network between workers and their store, and what must be so afterwards."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from celery_exclusive.stores.base import open_store
from tests.proxy import Proxy
from tests.servers import RedisServer
from tests.worker.lab import Lab, Worker
from tests.worker.stage import Stage

HEARTBEAT = "the renewal of leases"
REAPER = "the search for expired leases"
ACQUIRE, RELEASE, RESTORE = (b"\r\n%b\r\n" % verb for verb in (b"acquire", b"release", b"restore"))
"""Words in the requests of these verbs."""
MESSAGE = b'"coding": '
"""A word in the requests that leave a message in the store."""
TROUBLES: dict[str, Callable[[Proxy], None]] = {
    "cut": lambda proxy: proxy.cut(),
    "deaf": lambda proxy: proxy.drop(requests=True),
    "mute": lambda proxy: proxy.drop(replies=True),
    "half open": lambda proxy: proxy.drop(requests=True, replies=True),
}


def make_lab(stage: Stage, proxy: Proxy, timeout: float = 3, **conf: object) -> Lab:
    url = f"redis://127.0.0.1:{proxy.port}/0?socket_timeout={timeout}"
    return stage.make_lab("tests.worker.shop_trouble", exclusive_store=url, **conf)


def hold(lab: Lab, name: str, **more: object) -> Any:
    """Send a task whose body stays open until the test opens the door "holder", and wait until it runs."""
    result = lab.send(name, "k", tag="holder", hold=True, **more)
    lab.journal.wait_for("start", tag="holder")
    return result


def lose(lab: Lab, worker: Worker, tag: str, key: str = "k", **options: object) -> str:
    """Let a run of the task `lost` lose its lease; return its id when the log has told."""
    result = lab.send("lost", key, tag=tag, hold=True, options=options)
    lab.journal.wait_for("start", tag=tag)
    lab.task("lost").release_lock(key, force=True)
    lab.open(tag)
    worker.wait_for_log(f"[{result.id}] lost its lease")
    return str(result.id)


def begun(worker: Worker, what: str) -> int:
    return worker.log.count(f"] {what} failed; retrying: ")


def over(worker: Worker, what: str) -> int:
    return worker.log.count(f"] {what} recovered after ")


def assert_all_is_well(stage: Stage, lab: Lab, store: RedisServer) -> None:
    """Each body was entered once, one at a time, and nothing stays behind."""
    assert lab.journal.most_open(key="k") == 1
    assert_nobody_ran_twice_and_nothing_is_left(stage, lab, store)


def assert_nobody_ran_twice_and_nothing_is_left(stage: Stage, lab: Lab, store: RedisServer) -> None:
    assert repeated(lab) == []
    with store.client() as client:
        stage.assert_nothing_is_left(lab, client)


def repeated(lab: Lab) -> list[str]:
    return [tag for tag, count in Counter(lab.journal.tags()).items() if count > 1]


def lapse(store: RedisServer, key: str) -> int:
    """When the only lease on a key ends unless it is renewed, by the journal's clock; not later."""
    near, now = open_store(store.url), time.monotonic_ns()
    (holder,) = near.inspect(key).holders
    near.close()
    return now + holder.remaining * 1000
