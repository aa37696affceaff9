"""What a worker does for locks when it starts and stops."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from celery import bootsteps

from celery_exclusive import notices
from celery_exclusive.errors import OptionError
from celery_exclusive.worker.heartbeat import Heartbeat
from celery_exclusive.worker.namespace import keep_namespace
from celery_exclusive.worker.reaper import Reaper

if TYPE_CHECKING:
    from celery_exclusive.install import Installation


class Locks(bootsteps.StartStopStep):
    """Checks options, settings and store, adds the banner line, and runs heartbeat and reaper.

    It starts before the pool, so that it is stopped after it: leases are kept until the last body has ended.
    """

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self.installation: Installation = worker.app._celery_exclusive
        startup_info = getattr(worker, "startup_info", None)
        if startup_info:
            worker.startup_info = partial(self.banner, startup_info)

    def include(self, parent: Any) -> bool:
        """First of all steps, whatever Celery's order is."""
        parent.steps.insert(0, self)
        return True

    def start(self, parent: Any) -> None:
        installation = self.installation
        installation.adopt_all()
        installation.settings  # noqa: B018 - wrong settings are an error even where no task needs them
        if not installation.is_needed:
            return
        if installation.store.capabilities.one_process and "prefork" in parent.pool_cls.__module__:
            raise OptionError(
                f"exclusive_store: {installation.store.url} is the memory of one process, and each child of "
                "this worker has its own: use a redis:// URL, or the worker's --pool=threads or --pool=solo"
            )
        keep_namespace(installation)
        for warning in installation.store.check():
            notices.logger.warning(warning)
        installation.heartbeat = Heartbeat(installation)
        installation.reaper = Reaper(installation)
        installation.heartbeat.start()
        installation.reaper.start()

    def stop(self, parent: Any) -> None:
        installation = self.installation
        heartbeat, installation.heartbeat = installation.heartbeat, None
        reaper, installation.reaper = installation.reaper, None
        if heartbeat and reaper:
            heartbeat.stop()
            reaper.stop()
            installation.store.close()

    def terminate(self, parent: Any) -> None:
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
