"""A small laboratory: real worker processes on a real broker, which can be stopped, paused and killed."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import redis
from celery import Celery, _state
from kombu import pools
from typing_extensions import Self

from tests.clocks import Clock
from tests.worker import versions
from tests.worker.journal import Journal, eventually, is_alive
from tests.worker.nursery import DEATH_OF_PARENT, Child, Nursery

REPOSITORY = Path(__file__).parents[2]
_SHOPS = ("tests.worker.shop", "tests.compat.shop", "tests.soak.shop")
"""How the names of modules begin that are made anew for each lab."""
LINES, WIDTH = 30, 160
"""Of a worker's log, what is shown for a failed test: what is long hides what the test says itself."""


class Lab:
    """One app on one broker, its journal, and the workers a test starts.

        lab.start_worker("w1", concurrency=4)
        lab.send("wait", "feed", tag="a", hold=True)
        lab.journal.wait_for("start", tag="a")
        lab.open("a")

    `conf` are Celery settings, here and in the workers; `module` is where their tasks are.
    """

    def __init__(
        self, url: str, folder: Path, conf: dict[str, Any], module: str = "tests.worker.shop"
    ) -> None:
        self.url, self.folder, self.module = url, folder, module
        self.conf = {
            "broker_url": url,
            "result_backend": url,
            "broker_connection_retry_on_startup": True,
            "broker_transport_options": {
                "visibility_timeout": 600,
                "unacked_restore_interval": 1,
                "unacked_restore_throttle": 1,
            },
            "worker_cancel_long_running_tasks_on_connection_loss": False,
            "worker_hijack_root_logger": True,
            "task_default_queue": "lab",
            "exclusive_ttl": 60,
            "exclusive_offer": 15,
            **versions.SETTINGS,
            "exclusive_fast": versions.IS_FAST,
            **conf,
        }
        self.journal = Journal(folder / "journal")
        self.doors = redis.Redis.from_url(url)
        self._workers = ExitStack()
        self._app: Celery | None = None
        self._finalizers = set(_state._on_app_finalizers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._workers.close()
        self.doors.close()
        if self._app:
            disconnect(self._app)
            sys.modules["tests.worker.shop"].doors.close()
            self._app.close()
        _state._on_app_finalizers &= self._finalizers  # else the next app would get our tasks too

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "LAB_CONF": json.dumps(self.conf),
            "LAB_JOURNAL": str(self.journal.path),
            "LAB_DOORS": self.url,
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)]),
            "PYTHONUNBUFFERED": "1",
        }

    @property
    def app(self) -> Celery:
        """The same app in this process, for publishing and looking."""
        if self._app is None:
            names = {name: value for name, value in self.environment.items() if name.startswith("LAB_")}
            os.environ.update(names)
            for shop in [name for name in sys.modules if name.startswith(_SHOPS)]:
                del sys.modules[shop]
            self._app = import_module(self.module).app
            for name in names:
                del os.environ[name]
        return self._app

    def task(self, name: str) -> Any:
        return self.app.tasks[f"{self.module}.{name}"]

    def send(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Publish a task; `options={...}` are those of apply_async."""
        return self.task(name).apply_async(args, options_free(kwargs), **kwargs.get("options", {}))

    def open(self, *tags: str) -> None:
        """Let bodies that are held at these doors end, now or when they come there."""
        for tag in tags:
            self.doors.rpush(f"door:{tag}", 1)

    def start_worker(self, name: str = "w1", concurrency: int = 2, *, pool: str = "prefork",
                     options: tuple[str, ...] = (), ready: bool = True, clock: Clock | None = None,
                     is_fresh: bool = False, **conf: Any) -> Worker:  # fmt: skip
        """Start a worker process and wait until it is ready; `conf` are settings for it alone."""
        worker = Worker(self, name, concurrency, pool, options, clock, conf, is_fresh=is_fresh)
        self._workers.callback(worker.clear_away)
        if ready:
            worker.wait_ready()
        return worker

    def waiting(self, name: str, *args: Any) -> int:
        return int(self.task(name).lock_state(*args).waiting)

    def line(self, name: str, *args: Any) -> list[str]:
        """The task ids that wait, in the order in which they reached the store."""
        key = self.task(name).lock_state(*args).key
        return [id.decode().partition("/")[0] for id in self.doors.zrange(f"cx2:{{0}}:q:{key}", 0, -1)]

    def messages_at_the_broker(self) -> int:
        """Those in the queue, and those delivered and not yet acknowledged."""
        return int(self.doors.llen("lab")) + int(self.doors.hlen("unacked"))

    def wait_until_in_line(self, task_id: str, name: str, *args: Any) -> None:
        """Wait until this task is in line, whoever else may be, for what these arguments lock."""
        eventually(lambda: task_id in self.line(name, *args), f"{task_id} in line")

    def assert_kept(self, name: str, *args: Any, renewals: int = 2) -> None:
        """What these arguments lock stays held until the heartbeat has renewed its lease so often."""

        def remaining() -> float:
            (holder,) = self.task(name).lock_state(*args).holders
            return float(holder.remaining)

        assert_renewed(remaining, renewals)

    def wait_for_line(self, count: int, name: str, *args: Any, timeout: float = 60) -> None:
        """Wait until so many wait in line for what these arguments lock."""
        eventually(lambda: self.waiting(name, *args) == count, f"{count} in line", timeout)


def assert_renewed(remaining: Callable[[], float], renewals: int = 2) -> None:
    """Wait until a lease has been renewed so often, of which this tells the seconds that are left."""
    left = [math.inf]
    for number in range(renewals):

        def is_renewed() -> bool:
            left.append(remaining())
            return left[-1] > left[-2]

        eventually(is_renewed, f"renewal {number + 1} of {renewals}")


def command(lab: Lab, *words: str, **conf: Any) -> subprocess.CompletedProcess[str]:
    """Run `celery -A app WORDS` with the lab's app; `conf` are settings for it alone."""
    environment = {**lab.environment, "LAB_CONF": json.dumps({**lab.conf, **conf})}
    with TemporaryDirectory() as folder:
        said, errors = Path(folder, "said"), Path(folder, "errors")
        process = start(["-A", lab.module, *words], environment, lab.folder, said, errors=errors)
        code = process.wait(200)
        return subprocess.CompletedProcess(words, code, said.read_text(), errors.read_text())


def disconnect(app: Any) -> None:
    """Close what an app keeps open until its process ends; a test process has many apps."""
    store = vars(getattr(app, "_celery_exclusive", app)).get("store")
    if store:
        store.close()
    if str(app.conf.result_backend).startswith("redis"):
        app.backend.result_consumer.subscribed_to.clear()  # else a deleted result connects again
        app.backend.result_consumer.stop()
        app.backend.result_consumer._pubsub = None  # Celery 5.5 does so all the same, for 20 s
        app.backend.client.connection_pool.disconnect()
    pools.reset()  # else the next test might get one that is cut meanwhile


def options_free(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name != "options"}


def wait_until_gone(*pids: int) -> None:
    eventually(lambda: not any(map(is_alive, pids)), f"the end of {pids}")


def start(
    words: list[str], environment: dict[str, str], folder: Path, log_path: Path, *, pool: str = "prefork",
    is_fresh: bool = False, module: str = "celery.__main__", errors: Path | None = None,
) -> Child | subprocess.Popen[bytes]:  # fmt: skip
    """Start `celery WORDS`, or the `main` of another module.

    `is_fresh`: in a process that has neither imported nor loaded anything. `errors`: a file for what it
    writes to stderr, which else is in the log, too.
    """
    nursery = None if is_fresh else Nursery.for_environment(environment, pool)
    if nursery:
        return nursery.start(words, environment, folder, log_path, module, errors)
    code = f"{DEATH_OF_PARENT}; from {module} import main; main()"
    with log_path.open("ab") as log, (errors or log_path).open("ab") as error_log:
        return subprocess.Popen(
            [sys.executable, "-c", code, *words], env=environment, cwd=folder, stdin=subprocess.DEVNULL,
            stdout=log, stderr=error_log, start_new_session=True,
        )  # fmt: skip


_WRITING = 0.2
"""Seconds that a process has to write its stacks."""
_FRAMES = 25
"""The lines of a stack that are shown: below them is the way from Celery's start to its pool."""
living: set[Worker] = set()
"""The workers that have not been cleared away."""


class Worker:
    """A `celery worker` process, with its log."""

    def __init__(self, lab: Lab, name: str, concurrency: int, pool: str, options: tuple[str, ...],
                 clock: Clock | None, conf: dict[str, Any], *, is_fresh: bool) -> None:  # fmt: skip
        self.lab, self.name, self.pool = lab, f"{name}@lab", pool
        self.log_path = lab.folder / f"{name}.log"
        self.stacks_path = lab.folder / f"{name}.stacks"
        environment = {
            **(clock.env if clock else {}),
            **lab.environment,
            "LAB_CONF": json.dumps({**lab.conf, **conf}),
            "LAB_STACKS": str(self.stacks_path),
        }
        words = [
            "-A", lab.module, "worker", "-P", pool, "-c", str(concurrency), "-n", self.name, "-l", "INFO",
            "--without-gossip", "--without-mingle", *options,
        ]  # fmt: skip
        self.process = start(
            words, environment, lab.folder, self.log_path, pool=pool, is_fresh=is_fresh or clock is not None
        )
        living.add(self)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def children(self) -> list[int]:
        """The processes of its pool."""
        found = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [int(pid) for pid in found]

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    @property
    def digest(self) -> str:
        """The end of its log for people: without banner and tracebacks, and where the whole is."""
        lines = [
            line.replace("tests.worker.", "")[:WIDTH]
            for line in self.log.splitlines()
            if line.startswith("[2")
        ]
        return "\n".join([f"----- {self.name}: the end of {self.log_path}", *lines[-LINES:]])

    def stacks(self) -> str:
        """Return where its processes are just now, for a test that has waited for one of them in vain."""
        if self.process.poll() is None and self.stacks_path.exists():
            with suppress(OSError):  # it ends meanwhile
                for pid in (self.pid, *self.children):
                    os.kill(pid, signal.SIGUSR2)
                    time.sleep(_WRITING)
        threads = self.stacks_path.read_text().split("hread 0x") if self.stacks_path.exists() else []
        return "hread 0x".join("\n".join(stack.splitlines()[:_FRAMES]) + "\n" for stack in threads)

    def wait_ready(self, timeout: float = 60) -> None:
        """Wait until it runs tasks and hears commands: with greenlets the second may come later."""
        self.wait_for_log(" ready.", timeout)
        if self.pool == "gevent":
            self.wait_for_commands(timeout)

    def wait_for_commands(self, timeout: float = 60) -> None:
        """Wait until it hears commands: it may say that it is ready before it has subscribed to them."""
        ping = self.lab.app.control.ping
        eventually(lambda: ping([self.name], timeout=1), f"{self.name} to hear commands", timeout)

    def wait_accepted(self, task_id: str) -> None:
        """Wait until its main process knows in which child this task runs.

        A child that dies before that is another ending: Celery gives the same delivery to the next child.
        """

        def is_known() -> bool:
            active = self.lab.app.control.inspect([self.name], timeout=60, limit=1).active() or {}
            return task_id in [task["id"] for task in active.get(self.name, ())]

        eventually(is_known, f"{self.name} to know of {task_id}")

    def wait_for_log(self, text: str, timeout: float = 60) -> str:
        """Wait for a line with this text, and return it."""

        def look() -> str | None:
            for line in self.log.splitlines():
                if text in line:
                    return line
            if not is_alive(self.pid):
                code = self.process.wait(60)
                raise AssertionError(f"worker {self.name} ended with {code}:\n{self.digest}")
            return None

        return str(eventually(look, f"{text!r} in the log of {self.name}", timeout))

    def pause(self) -> None:
        """Stop the whole worker, children too, as a suspended machine would."""
        for pid in (self.pid, *self.children):
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in (*self.children, self.pid):
            os.kill(pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it at once with its children, as a lost machine would; returns when all of them are gone."""
        children = []
        if self.process.poll() is None:
            children = self.children
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(60)
        wait_until_gone(*children)

    def stop(self, timeout: float = 60) -> int:
        """Warm shutdown."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    def clear_away(self) -> None:
        living.discard(self)
        self.kill()
        print(self.digest)  # noqa: T201 - pytest shows it for a failed test
