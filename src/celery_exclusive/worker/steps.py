"""What a worker does for locks when it starts and stops."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from celery import bootsteps

from celery_exclusive import notices
from celery_exclusive.errors import OptionError
from celery_exclusive.install import install
from celery_exclusive.namespace import keep_namespace, own_broker
from celery_exclusive.worker.endings import Endings
from celery_exclusive.worker.fitness import refuse_unfit, warnings
from celery_exclusive.worker.heartbeat import Heartbeat
from celery_exclusive.worker.reaper import Reaper
from celery_exclusive.worker.unlocked import Unlocked

if TYPE_CHECKING:
    from celery_exclusive.install import Installation


class Locks(bootsteps.StartStopStep):
    """Checks options, settings and store, adds the banner line, and runs heartbeat, endings and reaper.

    It starts before the pool, so that it is stopped after it: leases are kept until the last body has ended.
    """

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self.installation: Installation = worker.app._celery_exclusive
        startup_info = getattr(worker, "startup_info", None)
        self.unlocked = Unlocked(self.installation)
        self.reaper = Reaper(self.installation)
        if startup_info:
            worker.startup_info = partial(self.banner, startup_info)

    def include(self, parent: Any) -> bool:
        """First of all steps, whatever Celery's order is."""
        parent.steps.insert(0, self)
        return True

    def start(self, parent: Any) -> None:
        installation = self.installation
        installation.adopt_all()
        for warning in installation.unknown_tasks():
            notices.logger.warning(warning)
        installation.settings  # noqa: B018 - wrong settings are an error even where no task needs them
        if not installation.is_needed:
            return
        _check_pool(parent.pool_cls)
        parent.app.fixups = {*parent.app.fixups, f"{__name__}:{_install_copy.__name__}"}
        refuse_unfit(installation, parent.pool_cls)
        for warning in warnings(installation):
            notices.logger.warning(warning)
        installation.events_from = parent.hostname if parent.task_events else None
        broker = own_broker(installation)
        keep_namespace(installation, broker)
        has_children = "prefork" in parent.pool_cls.__module__
        installation.heartbeat = Heartbeat(installation, broker, is_for_children=has_children)
        installation.endings = Endings(installation)
        installation.heartbeat.start()
        installation.endings.start()
        self.reaper.start()

    def stop(self, parent: Any) -> None:
        installation = self.installation
        heartbeat, installation.heartbeat = installation.heartbeat, None
        endings, installation.endings = installation.endings, None
        if heartbeat and endings:
            heartbeat.stop()
            self.reaper.stop()
            endings.stop()
            installation.courier.close()
            installation.debts.settle()
            installation.store.close()

    def terminate(self, parent: Any) -> None:
        """Bodies in threads cannot be ended: the process waits for them, and keeps their leases meanwhile."""
        heartbeat = self.installation.heartbeat
        if heartbeat and heartbeat.is_for_children:
            heartbeat.give_back_all()
            self.stop(parent)

    def banner(self, startup_info: Callable[..., str], *args: Any, **kwargs: Any) -> str:
        text = startup_info(*args, **kwargs)
        if not self.installation.is_needed:
            return text
        lines = text.splitlines()
        at = next((i for i, line in enumerate(lines) if ".> results:" in line), len(lines) - 1)
        before = lines[at].partition(".>")[0] if ".>" in lines[at] else ""
        lines.insert(
            at + 1, f"{before}.> locks:       {self.installation.store.url} ({self.installation.origin})"
        )
        return "\n".join(lines) + "\n"


def _check_pool(pool: Any) -> None:
    if pool.is_green and "gevent" not in pool.__module__:
        raise OptionError(
            f"--pool: in a pool of {pool.__module__} a task that computes stops the heartbeat of all leases: "
            "use --pool=gevent, threads, prefork or solo"
        )


def _install_copy(app: Any) -> None:
    """A child that is not forked makes a copy of the app, which runs the tasks: give it locks too."""
    installation: Installation = cast("Any", install(app))._celery_exclusive
    installation.endings = Endings(installation)
