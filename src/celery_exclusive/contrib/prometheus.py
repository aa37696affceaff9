"""Metrics of locks for Prometheus: a collector of prometheus-client that asks the store, and a counter.

`celery -A proj locks metrics` uses the collector. A process with metrics of its own can register it there:

    from prometheus_client import REGISTRY
    from celery_exclusive.contrib.prometheus import LockCollector

    REGISTRY.register(LockCollector(app))

What workers alone know, such as deaths and lost leases, they count themselves, for their own exporter:

    from celery_exclusive.contrib.prometheus import count_outcomes

    count_outcomes()
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from threading import Lock
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from celery.signals import worker_process_init, worker_ready
from prometheus_client import REGISTRY, Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

from celery_exclusive.core.records import SECOND
from celery_exclusive.display import printable
from celery_exclusive.errors import StoreError, StoreUnavailable
from celery_exclusive.operate.states import tasks_with_options
from celery_exclusive.operate.totals import OTHER, SHARED, Totals, totals
from celery_exclusive.operate.trial import try_lock
from celery_exclusive.services import services_of
from celery_exclusive.signals import lock_outcome
from celery_exclusive.system.deadline import deadline

if TYPE_CHECKING:
    from celery_exclusive.signals import Kind, LockOutcome
    from celery_exclusive.stores.base import Store

__all__ = ["LockCollector", "count_outcomes"]

MOST_TASKS: Final = 200
"""The most values of the label `task`, besides "other"."""
_QUICK: Final = 2.0
"""The seconds in which a store has to give its first answers, or else it is down."""
_PAUSE: Final = 9
"""How many times as long as a look has taken no other look begins, so that looks take a tenth of the time."""
_GOES_ON: Final = 600
"""The seconds for which the numbers of a look go on, if none after it finds anything."""
_PREFIX: Final = "celery_exclusive_"
_UP: Final = "up", "1 if the store of the locks answers, else 0. Without an answer there are no other values."
_WRITABLE: Final = (
    "writable",
    "1 if the store has granted a lock of the exporter. 0: it is full, read-only, or denies it to this user.",
)
_EPOCH: Final = "epoch", "A number that changes when the store has lost its data, or has older ones."
_SWEEP: Final = (
    "last_sweep_age_seconds",
    "Time since a worker has ended expired leases and offers. +Inf: none has for an hour, or ever.",
)
_SCAN: Final = "scan_duration_seconds", "Time that the last look at all keys took."
_RATIO: Final = (
    "scanned_ratio",
    "Part of the keys whose states were read. Below 1 holders are estimates; 0: of a part of the keys.",
)
_PAUSED: Final = (
    "paused_keys",
    "Keys that an operator has paused, or that are held back, of those whose states were read.",
)
_OUTCOMES: Final = "outcomes", "Outcomes of tasks at their locks."
_RATE_WAITS: Final = "rate_waits", "Calls that had to wait since a rate was used up."
_RARE: Final[tuple[Kind, ...]] = ("recovered", "lost", "unprotected", "given_up")
"""The outcomes of a task that begin at 0: else the first one were no increase for Prometheus."""
_OF_STORE: Final = _UP, _WRITABLE, _EPOCH, _SWEEP, _SCAN, _RATIO
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
    "aside": (
        "aside_tasks",
        "Tasks out of the line: no worker accepts their offers, or they wait for their last chance.",
    ),
    "longest_line": ("longest_line_tasks", "Tasks in the longest line of one key."),
    "oldest_wait": ("oldest_wait_seconds", "Longest wait of the tasks that are first in their lines."),
    "damaged": ("damaged_keys", "Keys whose data in the store cannot be read."),
}
"""The metrics of a task: the field of its totals, the name and the help."""


class LockCollector(Collector):
    """Collects the metrics of the locks of an app, for each scrape.

    What concerns the store is asked for each scrape. A look at the keys serves the scrapes of the next
    seconds, too, nine times as long as it has taken. Labels are the tasks of the app, at most 200, "-" for
    keys that tasks share, and "other".

    Parameters:
        app: the Celery app. Default: the only app with `install`, or the current app.

    Raises:
        OptionError: the app has no locks.

    A scrape takes seconds at most. If the store does not answer, it has `celery_exclusive_up 0` alone.
    """

    def __init__(self, app: Any = None) -> None:
        self._services = services_of(app, "LockCollector()")
        self._lock = Lock()
        self._pause_until = -math.inf
        self._found: list[GaugeMetricFamily] = []
        self._totals: list[GaugeMetricFamily] = []
        self._looked = -math.inf

    def describe(self) -> list[GaugeMetricFamily]:
        """Return the metrics without values, so that a registry need not look at the store."""
        names = (*_OF_STORE, _PAUSED, _HOLDERS, *_OF_TASK.values())
        return [GaugeMetricFamily(_PREFIX + name, text) for name, text in names]

    def collect(self) -> list[GaugeMetricFamily]:
        """Ask the store, look at all keys unless the last look is as good, and return the metrics."""
        with self._lock:
            try:
                return [*_of_store(self._services.store), *self._of_keys()]
            except StoreUnavailable:
                return [_gauge(_UP, 0)]

    def _of_keys(self) -> list[GaugeMetricFamily]:
        if (began := time.monotonic()) >= self._pause_until:
            try:
                found, ratio = totals(self._services, MOST_TASKS)
                self._totals, self._looked = list(_of_tasks(found)), began
            except StoreUnavailable:  # it has answered before, and is too slow: the last look goes on
                ratio = 0.0
                if began - self._looked > _GOES_ON:
                    self._totals = []
            now = time.monotonic()
            self._found = [*self._totals, _gauge(_RATIO, ratio), _gauge(_SCAN, now - began)]
            self._pause_until = now + _PAUSE * (now - began)
        return self._found


def _of_store(store: Store) -> Iterator[GaugeMetricFamily]:
    with deadline(_QUICK):
        (now, swept), epoch = store.times(), store.epoch()
        try:
            try_lock(store)
            is_writable = True
        except StoreError:
            is_writable = False
    yield _gauge(_UP, 1)
    yield _gauge(_WRITABLE, is_writable)
    yield _gauge(_EPOCH, crc32(epoch.encode()))
    yield _gauge(_SWEEP, math.inf if swept is None else max(now - swept, 0) / SECOND)


def _of_tasks(found: dict[str, Totals]) -> Iterator[GaugeMetricFamily]:
    holders = GaugeMetricFamily(_PREFIX + _HOLDERS[0], _HOLDERS[1], labels=["task", "state"])
    for task, of_task in found.items():
        for state in _STATES:
            holders.add_metric([printable(task), state], getattr(of_task, state))
    yield holders
    for field, (name, text) in _OF_TASK.items():
        family = GaugeMetricFamily(_PREFIX + name, text, labels=["task"])
        for task, of_task in found.items():
            family.add_metric([printable(task)], getattr(of_task, field))
        yield family
    yield _gauge(_PAUSED, sum(of_task.paused for of_task in found.values()))


def _gauge(metric: tuple[str, str], value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(_PREFIX + metric[0], metric[1], value=value)


def count_outcomes(app: Any = None, registry: CollectorRegistry = REGISTRY) -> None:
    """Count the outcomes of this process, and of those that it forks, as `celery_exclusive_outcomes_total`.

    Call it once, where the tasks are declared. The exporter of the workers serves the counter; a prefork
    worker needs PROMETHEUS_MULTIPROC_DIR. The labels are the task and the outcome, as `LockOutcome.kind`.

    Parameters:
        app: the Celery app. Default: the only app with `install`, or the current app.
        registry: where the counter is registered.

    Raises:
        OptionError: the app has no locks.
    """
    services = services_of(app, "count_outcomes()")
    tasks = services.app.tasks
    counter = Counter(_PREFIX + _OUTCOMES[0], _OUTCOMES[1], ["task", "outcome"], registry=registry)
    rate_waits = Counter(_PREFIX + _RATE_WAITS[0], _RATE_WAITS[1], ["task"], registry=registry)

    def count(outcome: LockOutcome, **_: Any) -> None:
        name = outcome.task_name
        task = SHARED if name is None else printable(name) if name in tasks else OTHER
        begin_at_zero(task)
        counter.labels(task, outcome.kind).inc()
        if (outcome.kind, outcome.reason) == ("waited", "rate"):
            rate_waits.labels(task).inc()

    def begin_at_zero(task: str) -> None:
        for kind in _RARE:
            counter.labels(task, kind)
        rate_waits.labels(task)

    def begin(**_: Any) -> None:
        """Show the zeros to a scrape before the first outcome, which else were no increase."""
        for task in tasks_with_options(services):
            begin_at_zero(printable(task.name))

    lock_outcome.connect(count, weak=False)
    for has_started in (worker_ready, worker_process_init):
        has_started.connect(begin, weak=False)
