"""What Celery's own commands show of our settings: where the store is, and no password."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.servers import RedisServer
from tests.worker.lab import Lab, command

SHOPS = {
    "exclusive_store": "app.conf.update(CONF)",
    "CELERY_EXCLUSIVE_STORE": (
        "CONF = {f'CELERY_{name.upper()}': value for name, value in CONF.items()}\n"
        "app.config_from_object(CONF, namespace='CELERY')"
    ),
}
SHOP = """
import json, os
from celery import Celery
from celery_exclusive import Exclusive, install
CONF = json.loads(os.environ["LAB_CONF"])
app = install(Celery("reported"))
{}
@app.task(exclusive=Exclusive())
def rebuild(): ...
"""


@pytest.mark.promise(
    "`celery report` and `celery inspect conf` show where the store is, and no secret, also behind a "
    "namespace",
    name="reports without secrets",
    broke="settings not masked; masked only when they are loaded",
)
@pytest.mark.parametrize("setting", SHOPS)
def test_report_and_inspect_conf_show_the_place_of_the_store_and_no_password(
    make_lab: Callable[..., Lab], start_redis: Callable[..., RedisServer], tmp_path: Path, setting: str
) -> None:
    server = start_redis()
    with server.client() as client:
        client.acl_setuser("me", enabled=True, passwords=["+hunter2"], keys=["*"], categories=["+@all"])
    (tmp_path / "reported_shop.py").write_text(SHOP.format(SHOPS[setting]))
    url = f"redis://me:hunter2@127.0.0.1:{server.port}/0?socket_timeout=7"
    lab = make_lab(module="reported_shop", exclusive_store=url)
    worker = lab.start_worker()
    assert f"redis://me:**@127.0.0.1:{server.port}/0 (exclusive_store)" in worker.log
    for words in (["report"], ["inspect", "conf"], ["inspect", "conf", "-j"]):
        done = command(lab, *words)
        shown = done.stdout + done.stderr
        assert f"redis://**@127.0.0.1:{server.port}/0" in shown
        assert setting in shown
        assert "hunter2" not in shown
        if words == ["report"]:
            ours = f"celery-exclusive {version('celery-exclusive')}: locks in redis://me:**@127.0.0.1:{server.port}/0"
            assert f"{ours} (exclusive_store), exclusive_prefix cx\n" in shown
