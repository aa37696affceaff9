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
    "In Django's admin an operator sees the worker that runs a task, the line and the log in a real browser "
    "(Chromium 150 without a window), with a real worker",
    broke="nothing logged",
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

        browser.open(f"{web}/admin/")
        browser.type("#id_username", "root")
        browser.type("#id_password", "secret")
        browser.click("input[type=submit]")
        browser.click(f"a.viewlink[href='{LOCK}']")
        browser.click("nav a[href=keys]")
        unique, running_row = browser.texts("tbody tr")
        browser.screenshot(tmp_path / "1-keys.png")
        (holder,) = (id for id in ids if id in running_row)
        assert {"x=stock:bolts", "running", "counter@shop"} <= set(running_row.split())
        assert unique.startswith("u:orders.tasks.bill:")
        assert "queued" in unique.split()

        browser.open(f"{web}{LOCK}page/key?key=x%3Dstock%3Abolts")
        first, second = browser.texts("#line tbody tr")
        browser.screenshot(tmp_path / "2-key.png")
        assert (first[0], second[0]) == ("1", "2")
        assert {id for id in ids if id in first + second} == set(ids) - {holder}

        browser.open(f"{web}{LOCK}page/keys?q=bill")
        browser.click("tbody th a")
        browser.click("a[href^=release]")
        browser.click("main form button")
        assert "Released the lease of" in browser.text("div.answer.good")
        browser.open(f"{web}/admin/")
        browser.screenshot(tmp_path / "3-log.png")
        assert "u:orders.tasks.bill:" in browser.text("#recent-actions-module")

        with redis.Redis.from_url(redis_url) as doors:
            doors.rpush("door", *ids)
        eventually(lambda: store.inspect("x=stock:bolts") == Snapshot(), "a free lock without a line")
        browser.open(f"{web}{LOCK}")
        assert "No key needs a person." in browser.text("main")
    assert all(file.stat().st_size > 5000 for file in tmp_path.glob("*.png"))
    assert len([*tmp_path.glob("*.png")]) == 3
