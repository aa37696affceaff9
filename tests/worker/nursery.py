"""Starts worker processes: it imports Celery once and forks, since half of a start is imports.

The processes are those that the `celery` command would be: sessions of their own, with their own environment,
folder and log. A pool that patches the standard library has a nursery that has patched it before all imports.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from select import select
from typing import ClassVar

from celery.app.backends import by_name

from tests import nursery

DEATH_OF_PARENT = "import ctypes, signal; ctypes.CDLL(None).prctl(1, signal.SIGKILL)"
REPOSITORY = Path(__file__).parents[2]
OF_ONE_TEST = (
    *("LAB_", "PYTEST_CURRENT_TEST", "C_FORCE_ROOT", "DJANGO_", "PROJECT_"),
    *("CELERY_LOG_", "_MP_FORK_LOG"),  # left by a worker that a test has run in its own process
)
"""How the variables begin that no module reads before the app is imported."""
MOST = 2
"""How many nurseries, patched or not, a test process has: for most tests, and for one variable more."""
PATCHES = "from celery import maybe_patch_concurrency; maybe_patch_concurrency(['celery', '-P', 'gevent']); "
"""What the `celery` command does before it imports anything else."""
MODULES = (
    *("celery.__main__", "celery.apps.worker", "celery.bin.celery", "celery.worker.consumer"),
    *("celery.concurrency.prefork", "celery.concurrency.thread", "celery.concurrency.solo"),
    *("celery.worker.strategy", "celery.app.control", "celery.app.events", "celery.app.log"),
    *("celery.events", "celery.events.receiver", "celery.fixups.django", "encodings.idna"),
    *("billiard.popen_fork", "billiard.sharedctypes", "billiard.synchronize"),
    *("celery.worker.autoscale", "celery.backends.redis", "kombu.transport.redis", "kombu.transport.pyamqp"),
    *("celery_exclusive.installer", "celery_exclusive.worker.steps", "celery_exclusive.local.lock"),
    *("celery_exclusive.stores.redis.store", "celery_exclusive.stores.sql.sqlite"),
    *("celery_exclusive.stores.sql.postgres", "celery_exclusive.stores.sql.mysql"),
)


class Nursery(nursery.Nursery):
    """The parent of worker processes, itself a child without threads. What it started ends with it."""

    _started: ClassVar[list[Nursery]] = []

    @classmethod
    def for_environment(cls, environment: Mapping[str, str], pool: str) -> Nursery | None:
        """Return a nursery with these variables; None if there are others enough."""
        common = {name: value for name, value in environment.items() if not name.startswith(OF_ONE_TEST)}
        patches = PATCHES if pool == "gevent" else ""
        alike = [started for started in cls._started if started.patches == patches]
        for started in alike:
            if started.common == common:
                return started
        if len(alike) == MOST:
            return None
        cls._started.append(cls(common, patches))
        return cls._started[-1]

    def __init__(self, common: dict[str, str], patches: str = "") -> None:
        self.common, self.patches = common, patches
        command = [sys.executable, "-c", f"{patches}from tests.worker.nursery import main; main()"]
        super().__init__(command, cwd=REPOSITORY, env=common, start_new_session=True)

    def start(
        self,
        words: list[str],
        environment: Mapping[str, str],
        folder: Path,
        log: Path,
        module: str = "celery.__main__",
        errors: Path | None = None,
    ) -> Child:
        """Start `celery WORDS` in this folder, or another module with a `main`.

        Its errors go to the log, too, or into a file of their own.
        """
        outputs = [str(log), str(errors or log)]
        for output in outputs:
            Path(output).touch()
        return Child(self, int(self.ask("start", words, dict(environment), str(folder), outputs, module)))


@dataclass
class Child:
    """A process of a nursery, with the methods of `subprocess.Popen` that tests use."""

    nursery: Nursery
    pid: int
    returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self.nursery.ask("poll", self.pid)
        return self.returncode

    def wait(self, timeout: float) -> int:
        if self.poll() is None:
            descriptor = os.pidfd_open(self.pid)
            try:
                select([descriptor], [], [], timeout)  # until it has ended
            finally:
                os.close(descriptor)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(f"worker {self.pid}", timeout)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def main() -> None:
    """Serve until the test process is gone; in a child, be a `celery` command."""
    exec(DEATH_OF_PARENT)
    nursery.read_versions_once()
    for module in MODULES:
        import_module(module)
    by_name("redis")  # Celery looks through all packages for extensions, once per process
    if module := _serve():
        import_module(module).main()


def _serve() -> str | None:
    """Return, in a child, the module whose `main` it runs."""
    fork, waitpid = os.fork, os.waitpid
    if "gevent.monkey" in sys.modules:  # it would watch the children by a loop, which does not run here
        gevent_os = import_module("gevent.os")
        fork, waitpid = gevent_os.fork_gevent, gevent_os._waitpid
    for verb, *arguments in nursery.questions():
        if verb == "start":
            found: int | None = fork()
            if found == 0:
                return _become(*arguments)
        else:
            ended, status = waitpid(arguments[0], os.WNOHANG)
            found = os.waitstatus_to_exitcode(status) if ended else None
        nursery.answer(found)
    return None


def _become(
    words: list[str], environment: dict[str, str], folder: str, outputs: list[str], module: str
) -> str:
    exec(DEATH_OF_PARENT)
    os.setsid()
    files = [os.open(output, os.O_WRONLY | os.O_APPEND) for output in outputs]
    for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), *files)):
        os.dup2(file, number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["celery", *words]
    return module
