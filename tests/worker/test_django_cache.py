"""Workers whose locks are in the server behind a cache of Django."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.django.databases import configured
from tests.worker.lab import Lab
from tests.worker.message import Message, stop_consuming

DEADLINE = 90
BACKENDS = {"redis": "redis.RedisCache", "memcached": "memcached.PyMemcacheCache"}


@pytest.fixture(params=BACKENDS)
def lab(
    request: pytest.FixtureRequest, make_lab: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Lab]:
    kind: str = request.param
    url: str = request.getfixturevalue(f"{kind}_url")
    caches: dict[str, Any] = {
        "locks": {
            "BACKEND": f"django.core.cache.backends.{BACKENDS[kind]}",
            "LOCATION": url.removeprefix("memcached://"),
            "KEY_PREFIX": "site",
        }
    }
    monkeypatch.setenv("DJANGO_CACHES", json.dumps(caches))
    with configured({}, CACHES=caches):
        yield make_lab(
            module="tests.worker.shop_lineless",
            exclusive_store="django-cache://locks",
            exclusive_ttl=3,
            task_acks_late=True,
            task_reject_on_worker_lost=True,
        )


@pytest.mark.promise(
    "Workers with locks behind an alias, on Redis and on memcached: a task is held against another "
    "worker's, a unique call is not queued twice, a killed worker's task runs again",
    broke="the alias opened in the memory of the process",
)
def test_workers_lock_in_the_server_behind_a_cache_and_one_that_is_killed_loses_no_task(lab: Lab) -> None:
    doomed = lab.start_worker("w1", 1)
    holder = lab.send("skip", "k", tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    lab.assert_kept("skip", "k")
    stop_consuming(lab, doomed, "lab")  # it has no slot left
    lab.start_worker("w2", 2)
    second = lab.send("skip", "k", tag="second")
    assert second.get(timeout=DEADLINE)["skipped"]["existing_id"] == holder.id

    first = lab.send("once", "k", "first", True)
    lab.journal.wait_for("start", tag="first")
    assert lab.send("once", "k", "duplicate").existing_id == first.id
    lab.open("first")
    assert first.get(timeout=DEADLINE) == "first"

    message = Message.unacknowledged(lab, holder.id)
    doomed.kill()
    message.deliver_again()
    lab.journal.wait_for("start", 2, tag="holder")
    lab.open("holder")
    assert holder.get(timeout=DEADLINE) == "holder"
    assert lab.journal.tags("start") == ["holder", "first", "holder"]
