"""The admin in a real browser, with a real worker: what an operator sees and does."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import redis

from celery_exclusive.stores.base import Snapshot, open_store
from tests.browser import Browser
from tests.django.shop_project import PROJECT, Shop, with_file
from tests.worker.journal import eventually
from tests.worker.nursery import DEATH_OF_PARENT

pytestmark = [pytest.mark.slow, pytest.mark.large]
PREPARE = """
import django; django.setup()
from django.contrib.auth.models import User
from orders.tasks import bill, count_stock
User.objects.create_superuser("root", password="secret")
bill.apply_async((7,), queue="nobody")
for _ in range(3):
    print(count_stock.delay("bolts").id)
"""
LOCK = "/admin/celery_exclusive/lock/"


@contextmanager
def running(shop: Shop, log: Path, *command: str) -> Iterator[str]:
    """Run a process of the project; yield the first line that it prints."""
    start = f"{DEATH_OF_PARENT}; import runpy, sys; sys.argv = {list(command)!r}; runpy."
    start += f"run_path({command[0]!r}, run_name='__main__')"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-c", start],
            env=shop.environment,
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGKILL)


@pytest.mark.promise(
    "An operator sees the worker that runs a task, the line and the log in a real browser (Chromium 150 "
    "without a window), with a real worker",
    broke="no worker asked; places counted backwards",
)
def test_an_operator_sees_locks_and_lines_and_releases_what_no_task_runs_under(
    tmp_path: Path, redis_url: str, browser: Browser
) -> None:
    shop = with_file(tmp_path, CELERY_BROKER_URL=redis_url)
    shop.manage("migrate")
    shop.manage("migrate", "--database=locks")
    worker_log = tmp_path / "worker.log"
    worker = [*["worker.py", "worker", "--pool=threads", "--concurrency=2", "--hostname=counter@shop"]]
    with (
        running(shop, worker_log, *worker),
        running(shop, tmp_path / "web.log", "web.py") as port,
        closing(open_store(f"sqlite:///{tmp_path / 'locks.db'}")) as store,
    ):
        ids = shop.run("-c", PREPARE).stdout.split()[-3:]
        eventually(lambda: store.inspect("x=stock:bolts").waiting == 2, "two in line")
        web = f"http://127.0.0.1:{port}"

        browser.open(f"{web}{LOCK}")
        browser.type("#id_username", "root")
        browser.type("#id_password", "secret")
        browser.click("input[type=submit]")
        unique, running_row = browser.texts("#result_list tbody tr")
        browser.screenshot(tmp_path / "1-locks.png")
        (holder,) = (id for id in ids if id in running_row)
        assert running_row.startswith("x=stock:bolts running ")
        assert f"{holder} counter@shop " in running_row
        assert running_row.endswith(" s 2")
        assert unique.startswith("u:orders.tasks.bill:")
        assert " queued " in unique

        browser.click("#action-toggle")
        browser.click("select[name=action] option[value=release]")
        browser.click("button[name=index]")
        said = "\n".join(browser.texts(".messagelist li"))
        browser.screenshot(tmp_path / "2-released.png")
        assert f"Lock x=stock:bolts: Not released: {holder} runs." in said
        assert "Lock u:orders.tasks.bill:" in said
        assert "Released, was held by" in said
        assert len(browser.texts("#result_list tbody tr")) == 1

        browser.open(f"{web}/admin/celery_exclusive/waitingtask/")
        first, second = browser.texts("#result_list tbody tr")
        browser.screenshot(tmp_path / "3-waiting.png")
        assert first.startswith("x=stock:bolts 1 waiting ")
        assert second.startswith("x=stock:bolts 2 waiting ")
        assert {id for id in ids if id in first + second} == set(ids) - {holder}

        browser.open(f"{web}{LOCK}x_3Dstock_3Abolts/history/")
        history = browser.text("#content")
        browser.screenshot(tmp_path / "4-history.png")
        assert f"Not released: {holder} runs." in history

        with redis.Redis.from_url(redis_url) as doors:
            doors.rpush("door", *ids)
        eventually(lambda: store.inspect("x=stock:bolts") == Snapshot(), "a free lock without a line")
        browser.open(f"{web}{LOCK}")
        assert "0 locks" in browser.text("#changelist")
    assert all(file.stat().st_size > 5000 for file in tmp_path.glob("*.png"))
    assert len([*tmp_path.glob("*.png")]) == 4
