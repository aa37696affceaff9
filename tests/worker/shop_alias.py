"""The shop, with an older name of one of its tasks, as after a renaming."""

from __future__ import annotations

from tests.worker.shop import app, wait

OLDER = "tests.worker.shop_alias.wait"
app.finalize()
app.tasks[OLDER] = app.tasks[wait.name]
