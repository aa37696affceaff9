"""What a worker says when it starts and goes on all the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.servers import RedisServer
from tests.worker.lab import Lab


@pytest.mark.promise(
    "A line less durable than the broker is warned of at start",
    name="less durable line",
    broke=(
        "the store's warnings not asked for; maxmemory-policy, `fsync`, `synchronous_commit`, "
        "`innodb_flush_log_at_trx_commit` not looked at"
    ),
)
def test_a_worker_warns_of_a_store_that_would_forget_its_lines(
    make_lab: Callable[..., Lab], start_redis: Callable[..., RedisServer]
) -> None:
    store = start_redis()
    line = make_lab(exclusive_store=store.url).start_worker("w1", 1).wait_for_log("set appendonly to yes")
    assert ": WARNING/" in line
    assert store.url in line


def test_a_worker_does_not_warn_of_a_store_that_keeps_its_lines(
    make_lab: Callable[..., Lab], start_redis: Callable[..., RedisServer]
) -> None:
    worker = make_lab(exclusive_store=start_redis(appendonly=True).url).start_worker("w1", 1)
    assert "appendonly" not in worker.log


@pytest.mark.promise("An app that only installs needs no store")
def test_a_worker_of_an_app_without_options_needs_no_store_and_shows_none(
    make_lab: Callable[..., Lab], tmp_path: Path
) -> None:
    (tmp_path / "free_shop.py").write_text(FREE_SHOP)
    lab = make_lab(module="free_shop", result_backend=None, exclusive_store="redis://127.0.0.1:1/3")
    worker = lab.start_worker("w1", 1)
    assert ".> results:" in worker.log
    assert "locks:" not in worker.log
    assert worker.stop() == 0


FREE_SHOP = """
import json, os
from celery import Celery
from celery_exclusive import install
app = install(Celery("free"))
app.conf.update(json.loads(os.environ["LAB_CONF"]))
@app.task
def free(): ...
"""
