"""What a worker does for locks when it starts and stops."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any

from billiard import get_start_method
from celery import bootsteps
from celery.platforms import EX_FAILURE
from celery.utils.functional import noop

from celery_exclusive import notices
from celery_exclusive.display import printable
from celery_exclusive.errors import ExclusiveError, OptionError
from celery_exclusive.messages.namespace import keep_namespace, own_broker
from celery_exclusive.system.deadline import deadline
from celery_exclusive.worker.checks import refuse_changed_names, refuse_unfit, warnings
from celery_exclusive.worker.heartbeat import Heartbeat
from celery_exclusive.worker.parts import WorkerParts
from celery_exclusive.worker.queues import note_queues
from celery_exclusive.worker.reaper import Reaper
from celery_exclusive.worker.relay import Relay
from celery_exclusive.worker.roster import Roster
from celery_exclusive.worker.undeclared import Undeclared

if TYPE_CHECKING:
    from celery_exclusive.services import Services

_LOOK = 0.5
"""Seconds between two looks whether the last task has ended."""
_PATIENCE = 0.5
"""Seconds for which a worker that stops waits for the tasks of its pool itself."""
_FAREWELL = 8
"""Seconds for which the main process waits, when all bodies have ended, for its threads, store and broker."""
_FIXUP = "celery_exclusive.installer:install_copy"
"""What Celery calls for the copy of the app that a child which is not forked makes."""


class Locks(bootsteps.StartStopStep):
    """Checks options, settings and store, adds the banner line, and runs heartbeat and reaper.

    It starts before the pool, so that it is stopped after it: leases are kept until the last body has ended.
    """

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self.services: Services = worker.app._celery_exclusive
        startup_info = getattr(worker, "startup_info", None)
        self.undeclared = Undeclared(self.services)
        self.reaper = Reaper(self.services)
        self.parts = WorkerParts()
        if startup_info:
            worker.startup_info = partial(self.banner, startup_info)

    def include(self, parent: Any) -> bool:
        """First of all steps, whatever Celery's order is."""
        parent.steps.insert(0, self)
        return True

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
        if not services.is_needed:
            return
        _check_pool(parent.pool_cls)
        parent.app.fixups = {*parent.app.fixups, _FIXUP}
        refuse_unfit(services, parent.pool_cls)
        refuse_changed_names(services.app)
        for warning in warnings(services):
            notices.logger.warning(warning)
        services.events_from = partial(_events_from, parent)
        broker = own_broker(services)
        keep_namespace(services, broker)
        note_queues(parent.app)
        roster = _roster(parent)
        heartbeat = Heartbeat(services, broker, roster)
        relay = _relay(services, parent)
        if relay:
            services.hand_on = relay.send
        self.parts = WorkerParts(heartbeat, roster, parent, relay, before=services.worker)
        services.worker, services.is_worker = self.parts, True
        heartbeat.start()
        self.reaper.start()

    def register_with_event_loop(self, parent: Any, hub: Any) -> None:
        """The pool runs, and the consumer is connected."""
        if relay := self.parts.relay:
            relay.listen(parent.pool)

    def close(self, parent: Any) -> None:
        """Let bodies that wait for the store know that the worker stops, before anything is stopped."""
        self.parts.close()

    def stop(self, parent: Any) -> None:
        """End what `start` has begun, as soon as the pool has no task any more.

        Celery does not always wait for tasks in threads, which nobody can end: a second signal ends its wait,
        and a test with an embedded worker goes on. They keep their leases until the last of them ends.
        """
        heartbeat = self.parts.heartbeat
        if heartbeat is None or heartbeat.is_for_children:
            self._end()
            return
        executor = getattr(parent.pool, "executor", None)  # the pool's own `stop` would cancel what it has
        pool = Thread(target=executor.shutdown if executor else noop, daemon=True)
        pool.start()
        pool.join(_PATIENCE)
        if pool.is_alive() or heartbeat.keeps_leases:
            end = Thread(target=self._end_after, args=(pool, heartbeat), name="exclusive-stop")
            end.daemon = parent.pool.is_green  # greenlets end with their process, which waits for threads
            end.start()
        else:
            self._end()

    def terminate(self, parent: Any) -> None:
        heartbeat = self.parts.heartbeat
        if heartbeat and heartbeat.is_for_children:
            heartbeat.release_all()
        self.stop(parent)

    def _end_after(self, pool: Thread, heartbeat: Heartbeat) -> None:
        pool.join()
        while heartbeat.keeps_leases:  # before 3.13 Python takes a thread for ended if a signal ends a `join`
            time.sleep(_LOOK)
        time.sleep(_LOOK)  # in which the last of them releases its lease, and Celery acknowledges it
        self._end()

    def _end(self) -> None:
        services, parts = self.services, self.parts
        if parts.relay:
            parts.relay.close()
        with deadline(_FAREWELL):
            if parts.heartbeat:
                parts.heartbeat.stop()
                self.reaper.stop()
            parts.has_ended = True
            if services.worker is parts:  # else a test has begun another worker of this app
                services.leave_worker()
                if earlier := parts.earlier:
                    services.worker, services.is_worker = earlier, True
                else:
                    services.releaser.drain()
                    services.courier.close()
                    services.store.close()
        if parts.roster:
            parts.roster.close()

    def banner(self, startup_info: Callable[..., str], *args: Any, **kwargs: Any) -> str:
        text = startup_info(*args, **kwargs)
        try:
            if not self.services.is_needed:
                return text
            place = f"{printable(self.services.store.url)} ({self.services.origin})"
        except ExclusiveError:
            return text  # `start` says why
        lines = text.splitlines()
        at = next((i for i, line in enumerate(lines) if ".> results:" in line), len(lines) - 1)
        before = lines[at].partition(".>")[0] if ".>" in lines[at] else ""
        lines.insert(at + 1, f"{before}.> locks:       {place}")
        return "\n".join(lines) + "\n"


def _events_from(worker: Any) -> str | None:
    """The worker's name, while it sends the events of tasks: monitors switch them on and off at run time."""
    dispatcher = getattr(worker.consumer, "event_dispatcher", None)
    is_on = dispatcher and dispatcher.enabled and (not dispatcher.groups or "task" in dispatcher.groups)
    return str(worker.hostname) if is_on else None


def _check_pool(pool: Any) -> None:
    if pool.is_green and "gevent" not in pool.__module__:
        raise OptionError(
            f"--pool: in a pool of {pool.__module__} a task that computes stops the heartbeat of all leases: "
            "use --pool=gevent, threads, prefork or solo"
        )


def _roster(parent: Any) -> Roster | None:
    """The roster of a pool of processes."""
    if "prefork" not in parent.pool_cls.__module__:
        return None
    return Roster(max(parent.concurrency, parent.max_concurrency or 0), is_inherited=_is_forked(parent))


def _relay(services: Services, parent: Any) -> Relay | None:
    """The relay of a pool of forked processes, whose results an event loop reads."""
    is_possible = "prefork" in parent.pool_cls.__module__ and _is_forked(parent) and parent.semaphore
    return Relay(services, parent) if is_possible and "relay" in services.fast else None


def _is_forked(parent: Any) -> bool:
    return bool(getattr(parent, "pool_start_method", "fork") == get_start_method() == "fork")
