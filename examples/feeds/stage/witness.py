"""Loaded by the demo's workers (`celery worker -I stage.witness`): notes every delivery."""

from __future__ import annotations

from typing import Any

from celery.signals import task_received, worker_ready

from . import journal


@worker_ready.connect(weak=False)
def _ready(sender: Any, **_: Any) -> None:
    journal.write("ready", worker=sender.hostname)


@task_received.connect(weak=False)
def _received(request: Any, **_: Any) -> None:
    journal.write("received", id=request.id)
