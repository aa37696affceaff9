"""Recognises Celery's beat as a publisher, which only logs errors: a duplicate is no error there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery.signals import beat_init

_process = {"is_celery_beat": False}


def is_celery_beat(options: Mapping[str, Any]) -> bool:
    """Whether beat publishes a call with these options, from this process or from another one."""
    return _process["is_celery_beat"] or bool((options.get("headers") or {}).get("celery_beat_task"))


@beat_init.connect
def _note_celery_beat(**_: Any) -> None:
    _process["is_celery_beat"] = True
