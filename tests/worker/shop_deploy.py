"""What all releases of the deploys' shop share: one body for its tasks."""

from __future__ import annotations

from typing import Any

from celery import Task

from tests.worker.shop import act, app, task

__all__ = ["act", "app", "declare", "task"]


def declare(options: dict[str, dict[str, Any]]) -> None:
    """Declare `deploy.NAME` for each name, with these options."""

    def work(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
        act(self, key, tag, hold=hold)
        return tag

    for name, given in options.items():
        task(name=f"deploy.{name}", **given)(work)
