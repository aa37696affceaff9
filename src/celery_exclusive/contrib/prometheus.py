"""Metrics of locks for Prometheus: a collector of prometheus-client that looks at the store for each scrape.

`celery -A proj locks metrics` uses it. A process with metrics of its own can register it there:

    from prometheus_client import REGISTRY
    from celery_exclusive.contrib.prometheus import LockCollector

    REGISTRY.register(LockCollector(app))
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from threading import Lock
from typing import Any, Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from celery_exclusive.core.records import SECOND
from celery_exclusive.display import printable
from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.operate.totals import Totals, totals
from celery_exclusive.services import Services, services_of
from celery_exclusive.system.deadline import deadline

__all__ = ["LockCollector"]

MOST_TASKS: Final = 200
"""The most values of the label `task`, besides "other"."""
_QUICK: Final = 2.0
"""The seconds in which a store has to give its first answer, or else it is down."""
_PREFIX: Final = "celery_exclusive_"
_UP: Final = "up", "1 if the store of the locks answers, else 0. Without an answer there are no other values."
_SCAN: Final = "scan_duration_seconds", "Time that the look at all keys took."
_SWEEP: Final = (
    "last_sweep_age_seconds",
    "Time since a worker has ended expired leases and offers. +Inf: none has for an hour, or ever.",
)
_HOLDERS: Final = (
    "holders",
    "Holders of keys. running: a body runs; queued: its message waits, or is lost; period: until a time.",
)
_STATES: Final = ("running", "queued", "period")
_OF_TASK: Final = {
    "dead": (
        "dead_holders",
        "Running holders whose lease has expired, since their worker is dead or cut off.",
    ),
    "waiting": ("waiting_tasks", "Tasks that wait in line."),
    "aside": ("aside_tasks", "Tasks out of the line, since no worker accepts their offers."),
    "longest_line": ("longest_line_tasks", "Tasks in the longest line of one key."),
    "oldest_wait": ("oldest_wait_seconds", "Longest wait of the tasks that are first in their lines."),
    "damaged": ("damaged_keys", "Keys whose data in the store cannot be read."),
}
"""The metrics of a task: the field of its totals, the name and the help."""


class LockCollector(Collector):
    """Collects the metrics of the locks of an app: one look at the store for each scrape.

    Looks follow each other. A scrape that has waited for one takes what it has found, if it began after the
    scrape. Names of tasks are labels, without control characters: at most 200, and "other".

    Parameters:
        app: the Celery app. Default: the only app with `install`, or the current app.

    Raises:
        OptionError: the app has no locks.

    A scrape of a store that does not answer takes seconds at most, and has `celery_exclusive_up 0` alone.
    """

    def __init__(self, app: Any = None) -> None:
        self._services = services_of(app, "LockCollector()")
        self._lock = Lock()
        self._began = -math.inf
        self._found: list[GaugeMetricFamily] = []

    def describe(self) -> list[GaugeMetricFamily]:
        """Return the metrics without values, so that a registry need not look at the store."""
        names = (_UP, _SCAN, _SWEEP, _HOLDERS, *_OF_TASK.values())
        return [GaugeMetricFamily(_PREFIX + name, text) for name, text in names]

    def collect(self) -> list[GaugeMetricFamily]:
        """Look at all keys, and return the metrics."""
        asked = time.monotonic()
        with self._lock:
            if self._began < asked:
                self._began = time.monotonic()
                self._found = list(_look(self._services))
            return self._found


def _look(services: Services) -> Iterator[GaugeMetricFamily]:
    began, store = time.monotonic(), services.store
    try:
        with deadline(_QUICK):
            now, swept = store.times()
        found = totals(services, MOST_TASKS)
    except StoreUnavailable:
        yield _gauge(_UP, 0)
        return
    yield _gauge(_UP, 1)
    yield _gauge(_SWEEP, math.inf if swept is None else max(now - swept, 0) / SECOND)
    yield from _of_tasks({printable(name): of_task for name, of_task in found.items()})
    yield _gauge(_SCAN, time.monotonic() - began)


def _of_tasks(found: dict[str, Totals]) -> Iterator[GaugeMetricFamily]:
    holders = GaugeMetricFamily(_PREFIX + _HOLDERS[0], _HOLDERS[1], labels=["task", "state"])
    for task, of_task in found.items():
        for state in _STATES:
            holders.add_metric([task, state], getattr(of_task, state))
    yield holders
    for field, (name, text) in _OF_TASK.items():
        family = GaugeMetricFamily(_PREFIX + name, text, labels=["task"])
        for task, of_task in found.items():
            family.add_metric([task], getattr(of_task, field))
        yield family


def _gauge(metric: tuple[str, str], value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(_PREFIX + metric[0], metric[1], value=value)
