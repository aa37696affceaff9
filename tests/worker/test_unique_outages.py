"""When the store goes away in the midst of the calls for one delivery: no work is lost, and no key stays."""

from __future__ import annotations

import pytest

from celery_exclusive.stores.base import open_store
from tests.proxy import Proxy
from tests.servers import RedisServer
from tests.worker.journal import is_alive
from tests.worker.lab import eventually
from tests.worker.stage import Stage
from tests.worker.test_unique import ONCE, SHOP, hold

pytestmark = pytest.mark.timeout(240)
DEADLINE = 90
OFTEN = 100
"""More than a worker repeats a call in any of these tests."""


def away(proxy: Proxy, timeout: float = 1) -> str:
    """The URL of the store behind a network."""
    return f"redis://127.0.0.1:{proxy.port}/0?socket_timeout={timeout}"


def withhold(proxy: Proxy, word: str, times: int = OFTEN) -> None:
    """Keep requests with this word among their arguments; those that come after a cut are not kept."""
    for _ in range(times):
        proxy.withhold(b"\r\n%b\r\n" % word.encode())


def wait_until_expired(store: RedisServer, key: str) -> None:
    near = open_store(store.url)
    eventually(lambda: not near.inspect(key).holders, f"no lease on {key}")
    near.close()


@ONCE
def test_a_child_that_is_replaced_releases_what_the_store_has_not_answered_yet(
    stage: Stage, proxy: Proxy, store: RedisServer
) -> None:
    """The unique key of what was skipped would be held for a day: nothing has begun."""
    lab = stage.make_lab(SHOP, exclusive_store=store.url, exclusive_ttl=600)
    url = away(proxy)
    worker = stage.start_worker(lab, options=("--max-tasks-per-child", "1"), exclusive_store=url)
    hold(lab, "fussy", unique=None)
    (start,) = lab.journal.events("start")
    (other,) = (pid for pid in worker.children if pid != start["pid"])
    key = lab.task("fussy").lock_state("k").key.replace("x:", "u:", 1)
    withhold(proxy, key)
    skipped = lab.send("fussy", "k", "skipped")
    assert skipped.key == key
    assert "skipped" in skipped.get(timeout=DEADLINE)
    worker.wait_for_log(f"unique key {key} could not be released; the release is retried")
    before = len(proxy.met)
    eventually(lambda: len(proxy.met) > before + 2 or not is_alive(other), "a second try, or an end")
    proxy.cut()
    proxy.restore()
    eventually(lambda: lab.task("fussy").lock_state("k").unique_holder is None, "a free key")
    lab.open("holder")
    lab.journal.wait_for("end", tag="holder")
    with store.client() as client:
        stage.assert_nothing_is_left(lab, client)
