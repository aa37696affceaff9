"""The boot step of a worker: starts and stops the parts that locks need."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from secrets import randbelow
from socket import gethostname
from threading import Thread
from typing import TYPE_CHECKING, Any

from billiard import get_start_method
from celery import bootsteps
from celery.platforms import EX_FAILURE
from celery.utils.functional import noop

from celery_exclusive import notices
from celery_exclusive.core.claim import worker_mark
from celery_exclusive.display import printable
from celery_exclusive.errors import ExclusiveError
from celery_exclusive.seams.celery_request import wrap_banner
from celery_exclusive.stores.workers import WorkerRecord
from celery_exclusive.system.deadline import deadline
from celery_exclusive.worker.checks import refuse_changed_names, refuse_unfit, warnings
from celery_exclusive.worker.context import WorkerContext
from celery_exclusive.worker.heartbeat import Heartbeat
from celery_exclusive.worker.neighbours import described, keep_record, look_at_neighbours
from celery_exclusive.worker.pool import kind_of
from celery_exclusive.worker.queues import note_queues
from celery_exclusive.worker.reaper import Reaper
from celery_exclusive.worker.relay import Relay
from celery_exclusive.worker.request import show_first
from celery_exclusive.worker.roster import Roster, SharedRoster
from celery_exclusive.worker.undeclared import Undeclared

if TYPE_CHECKING:
    from celery_exclusive.services import Services

_LOOK = 0.5
"""Seconds between two checks whether the last task has ended."""
_PATIENCE = 0.5
"""Seconds for which a worker that stops waits for the tasks of its pool itself."""
_FAREWELL = 8
"""Seconds for which the main process waits, when all bodies have ended, for its threads, store and broker."""
_FIXUP = "celery_exclusive.installer:install_copy"
"""The function that Celery calls for the copy of an app in a child that is not forked."""


class Locks(bootsteps.StartStopStep):
    """Checks options, settings and store, adds the banner line, and runs heartbeat and reaper.

    The step starts before the pool and so stops after it: leases are renewed until the last body has ended.
    """

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self.services: Services = worker.app._celery_exclusive
        self.undeclared = Undeclared(self.services)
        self.worker: WorkerContext | None = None
        wrap_banner(worker, self.banner)

    def include(self, parent: Any) -> bool:
        """Put this step before all other steps of Celery."""
        parent.steps.insert(0, self)
        return True

    @property
    def is_needed(self) -> bool:
        return self.services.is_needed or bool(self.services.app.conf.worker_pool_restarts)

    def start(self, parent: Any) -> None:
        try:
            self._start(parent)
        except ExclusiveError as error:  # Celery would hide its one line under a traceback
            notices.cannot_start(error)
            raise SystemExit(EX_FAILURE) from None

    def _start(self, parent: Any) -> None:
        services = self.services
        services.installer.adopt_all()
        for warning in services.installer.unknown_tasks():
            notices.logger.warning(warning)
        services.settings  # noqa: B018 - wrong settings are an error even where no task needs them
        if not self.is_needed:
            return
        parent.app.fixups = {*parent.app.fixups, _FIXUP}
        refuse_unfit(services, parent.pool_cls)
        refuse_changed_names(services.app)
        for warning in warnings(services):
            notices.logger.warning(warning)
        record = described(services, own_record(parent.hostname))
        for warning in look_at_neighbours(services, record):
            notices.logger.warning(warning)
        broker = keep_record(services, record)
        note_queues(parent.app, keeps_client=services.is_fast)
        roster, relay = Roster(), None
        if kind_of(parent.pool_cls) == "prefork":
            is_forked = getattr(parent, "pool_start_method", "fork") == get_start_method() == "fork"
            children = max(parent.concurrency, parent.max_concurrency or 0)
            roster = SharedRoster(children, is_inherited=is_forked)
            if is_forked and parent.semaphore and services.is_fast:  # an event loop reads its results
                relay = Relay(services, parent)
        roster.limit(parent.time_limit, parent.soft_time_limit)
        heartbeat = Heartbeat(services, broker, roster, record)
        self.reaper = Reaper(services, heartbeat.notice_epoch)
        self.worker = WorkerContext(services, roster, heartbeat, relay, parent, worker_mark(record.number))
        services.workers.append(self.worker)
        parent.consumer.on_task_message.add(show_first)
        heartbeat.start()
        self.reaper.start()

    def register_with_event_loop(self, parent: Any, hub: Any) -> None:
        """Start the relay: Celery calls this when the pool runs and the consumer is connected."""
        if self.worker and self.worker.relay:
            self.worker.relay.listen(parent.pool)

    def close(self, parent: Any) -> None:
        """Let bodies that wait for the store and the reaper know that the worker stops, before it does."""
        if self.worker:
            self.worker.roster.stop()
            self.reaper.close()

    def stop(self, parent: Any) -> None:
        """End what `start` has begun, as soon as the pool has no task any more.

        Celery does not always wait for tasks in threads, which cannot be ended from outside. Their leases are
        renewed until the last one ends.
        """
        if not self.worker:
            return
        if not self.worker.runs_in_main:
            self._end(self.worker)
            return
        executor = getattr(parent.pool, "executor", None)  # the pool's own `stop` would cancel what it has
        pool = Thread(target=executor.shutdown if executor else noop, daemon=True)
        pool.start()
        pool.join(_PATIENCE)
        if pool.is_alive() or self.worker.roster.runs():
            end = Thread(target=self._end_after, args=(pool, self.worker), name="exclusive-stop")
            end.daemon = parent.pool.is_green  # greenlets end with their process, which waits for threads
            end.start()
        else:
            self._end(self.worker)

    def terminate(self, parent: Any) -> None:
        if self.worker:
            for slot in self.worker.roster.left():
                self.services.releaser.add_run(slot.claims, redelivered=slot.claims.acks_late)
        self.stop(parent)

    def _end_after(self, pool: Thread, worker: WorkerContext) -> None:
        pool.join()
        while worker.roster.runs():  # before 3.13 Python takes a thread for ended if a signal ends a `join`
            time.sleep(_LOOK)
        time.sleep(_LOOK)  # in which Celery acknowledges the last of them
        self._end(worker)

    def _end(self, worker: WorkerContext) -> None:
        services = self.services
        if worker not in services.workers:  # a second signal has ended it
            return
        if worker.relay:
            worker.relay.close()
        with deadline(_FAREWELL):
            if worker.heartbeat:
                worker.heartbeat.stop()
            self.reaper.stop()
            services.workers.remove(worker)
            if not services.workers:  # else a test has begun another worker of this app
                services.releaser.drain()
                services.courier.close()
                services.store.close()
        worker.roster.close()

    def info(self, obj: Any) -> dict[str, Any]:  # type: ignore[override] # the stubs say None
        """Return the part of `inspect stats` that `locks doctor` compares. It has no secret."""
        if not self.worker:
            return {}
        return {"celery_exclusive": {"has_secret": self.services.signer.is_on}}

    def banner(self, startup_info: Callable[..., str], *args: Any, **kwargs: Any) -> str:
        text = startup_info(*args, **kwargs)
        try:
            if not self.is_needed:
                return text
            order = "published (with key=: arrived)" if self.services.orders_calls else "arrived"
            place = f"{printable(self.services.store.url)} ({self.services.origin}), order: {order}"
        except ExclusiveError:
            return text  # `start` says why
        lines = text.splitlines()
        at = next((i for i, line in enumerate(lines) if ".> results:" in line), len(lines) - 1)
        before = lines[at].partition(".>")[0] if ".>" in lines[at] else ""
        lines.insert(at + 1, f"{before}.> locks:       {place}")
        return "\n".join(lines) + "\n"


def own_record(nodename: str) -> WorkerRecord:
    """Return the record of this process as a worker, with a new number."""
    release = "unknown"
    with suppress(PackageNotFoundError):  # as in a frozen app, whose packages are not installed
        release = version("celery-exclusive")
    number = randbelow(2**16 - 1) + 1
    return WorkerRecord(number, nodename, os.getpid(), gethostname(), release, int(time.time()))
