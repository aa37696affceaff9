"""An older release of the shop, which does not know the task `far` yet."""

from __future__ import annotations

from tests.worker.shop_shared import app, far

__all__ = ["app"]
app.tasks.unregister(far.name)
