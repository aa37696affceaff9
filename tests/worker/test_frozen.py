"""What earlier releases have left in a store is understood by this one: see `frozen.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.servers import RedisServer
from tests.worker.frozen import CONF, FOLDER, load_redis, load_sqlite
from tests.worker.lab import Lab, eventually
from tests.worker.releases import SHOP

LEFT = {"line": 4, "two": 3, "once": 1}
"""The tasks that held a lease or waited, by their names."""


@pytest.mark.promise(
    "What 1.0.0rc1 has left in Redis or in a SQLite file is understood: runs of a worker that was killed are "
    "recovered, lines go on in order under their limits, and the window of a debounce closes",
    broke="another version of stored messages; other names in Redis",
)
@pytest.mark.parametrize("file", sorted(FOLDER.iterdir()), ids=lambda file: file.name)
def test_leases_and_lines_that_a_release_has_left_run_under_this_one(
    file: Path, redis_server: RedisServer, redis_url: str, make_lab: Callable[..., Lab], tmp_path: Path
) -> None:
    path = tmp_path / "locks.db"
    if file.suffix == ".redis":
        with redis_server.client() as client:
            load_redis(client, file.read_text(), redis_server.port)
    else:
        load_sqlite(path, file.read_text(), redis_server.port)
    store = redis_url if file.suffix == ".redis" else f"sqlite:///{path}"
    lab = make_lab(module=SHOP, **{**CONF, "exclusive_ttl": 15}, exclusive_store=store)
    assert lab.app.tasks["release.line"].lock_state("k").waiting == 3
    lab.start_worker()
    tags = [f"{name} {number}" for name, count in LEFT.items() for number in range(count)]
    lab.open(*tags)
    lab.journal.wait_for("end", len(tags) + 1)
    waited = [tag for tag in lab.journal.tags(task="release.line") if tag != "line 0"]
    assert waited == ["line 1", "line 2", "line 3"]
    assert sorted(lab.journal.tags()) == sorted([*tags, "newest"])
    assert lab.journal.most_open(task="release.line") == 1
    assert lab.journal.most_open(task="release.two") <= 2
    for name in (*LEFT, "burst"):
        state = lab.app.tasks[f"release.{name}"].lock_state
        eventually(lambda state=state: not state("k").holders and not state("k").unique_holder, "a free key")
