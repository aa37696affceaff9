"""The run itself: starts everything, watches the journal, kills a worker, waits for the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import URLError

import server

from . import broker, journal, stores, turns
from .board import Board
from .history import History
from .messages import Messages
from .outcomes import Outcomes
from .processes import Processes
from .producers import PRODUCERS, total
from .progress import Progress, name
from .report import Damage, report
from .verdict import judge

if TYPE_CHECKING:
    from typing_extensions import Self

HERE = Path(__file__).resolve().parent.parent
WORKERS = ("one@feeds", "two@feeds")
CONCURRENCY = 4
_TICK = 0.05
_START_SECONDS = 45.0
_DEATH_SECONDS = 5.0
_LINE_BEFORE_KILL = 3
_SHARE_BEFORE_KILL = 0.25


class Failed(Exception):
    """The stage broke down, which says nothing about locks; the text says where to look."""


class Show:
    """One run of the demo; a context that leaves nothing running."""

    def __init__(
        self, folder: Path, feeds: Path | None, urls: list[str], store: str | None, *, is_protected: bool
    ) -> None:
        self._folder = folder
        self._store = store
        self._is_protected = is_protected
        self._begin = time.monotonic()
        self._events: list[journal.Event] = []
        self._board = Board()
        self._stack = ExitStack()
        self._processes = Processes(folder, HERE)
        self._server = server.FeedServer(_sites(feeds, urls))
        self._progress = Progress(self._board, self._server.urls)
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._producers: list[subprocess.Popen[bytes]] = []
        self._victim: str | None = None

    def __enter__(self) -> Self:
        self._stack.callback(self._processes.stop)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, deadline: float) -> int:
        """Play the whole demo, print the report and return the exit status."""
        self._set_up()
        self._progress.tell(f"{len(WORKERS)} workers are ready, {PRODUCERS} producers begin")
        for producer in self._producers:
            assert producer.stdin
            producer.stdin.write(json.dumps(self._server.urls).encode() + b"\n")
            producer.stdin.flush()
        if not self._watch(self._is_over, self._begin + deadline):
            self._progress.tell(f"time is up: {len(self._board.unsettled)} unsettled, {self._messages}")
        self._outcomes.complete(self._board.unsettled)
        self._progress.close()
        self._events += self._reader.fresh()
        verdict = judge(History.of(self._events), is_protected=self._is_protected)
        print(report(verdict, _damage(verdict.fates["ran"]), time.monotonic() - self._begin), flush=True)
        return verdict.exit_code

    def _set_up(self) -> None:
        """Start the server, the broker, the workers and the producers; return when all are ready."""
        journal_path = Path(os.environ[journal.VARIABLE])
        journal_path.touch()
        self._reader = journal.Reader(journal_path)
        self._stack.callback(self._reader.close)
        self._stack.enter_context(self._server)
        if self._store:
            os.environ["FEEDS_STORE"] = self._stack.enter_context(stores.started(self._store))
        url = os.environ["FEEDS_REDIS"] = broker.start(self._processes, self._folder, os.environ)
        locks = os.environ["FEEDS_STORE"] or url
        self._progress.tell(f"{len(self._server.urls)} feeds are served, the broker answers at {url}")
        self._progress.tell(f"the locks are in {locks}")
        app = _migrate()
        for worker in WORKERS:
            self._workers[worker] = self._processes.start(worker, _worker_command(worker), os.environ)
        command = [sys.executable, "-m", "stage.producers"]
        for number in range(PRODUCERS):
            self._producers.append(self._processes.start(f"producer-{number}", command, os.environ))
        self._outcomes = self._stack.enter_context(Outcomes(app, url))
        self._messages = Messages(app)
        self._stack.callback(self._messages.close)
        if not self._watch(lambda: self._board.ready.issuperset(WORKERS), time.monotonic() + _START_SECONDS):
            raise Failed(f"the workers did not get ready in {_START_SECONDS:.0f} s\n{self._tail(WORKERS[0])}")

    def _watch(self, is_over: Callable[[], bool], until: float) -> bool:
        """Follow the journal until the condition holds; False if the time is up before."""
        while time.monotonic() < until:
            self._follow()
            if is_over():
                return True
            self._check_processes()
            self._kill_when_it_hurts()
            self._progress.show()
            time.sleep(_TICK)
        return False

    def _follow(self) -> None:
        fresh = self._reader.fresh()
        self._events += fresh
        self._board.follow(fresh)

    def _is_over(self) -> bool:
        """All was submitted, all has ended, and the broker has nothing that could still be delivered."""
        has_submitted = all(producer.poll() == 0 for producer in self._producers)
        return has_submitted and not self._board.unsettled and self._messages.is_none

    def _check_processes(self) -> None:
        crashed = [
            worker
            for worker, process in self._workers.items()
            if worker != self._victim and process.poll() is not None
        ]
        crashed += [f"producer-{number}" for number, process in enumerate(self._producers) if process.poll()]
        if crashed:
            raise Failed(f"{crashed[0]} has died\n{self._tail(crashed[0])}")

    def _kill_when_it_hurts(self) -> None:
        """Kill a worker inside a body of the slow feed, once a line has formed behind it."""
        enough = _SHARE_BEFORE_KILL * total(self._server.urls)
        if self._victim or len(self._board.submitted) < enough or not self._has_line():
            return
        with turns.quiet() as is_quiet:
            worker = next(iter(self._board.workers_in(self._server.slow_url)), None)
            if is_quiet and worker:
                self._strike(worker)

    def _strike(self, worker: str) -> None:
        """Stop the worker with its children, look whether the moment is right, and kill it or let it go on.

        Not while a message is between the broker and a worker: kombu takes it off the Redis list
        first and notes then that it is unacknowledged, and if it dies in between, the message dies
        with it. That is so with and without locks, and would only blur what is shown here. A task
        that waits by `reschedule` is on its way again and again, one that waits in line is not. For the
        same reason no producer submits before the broker has seen the dead worker's connections close.
        """
        feed, process = self._server.slow_url, self._workers[worker]
        pid = process.pid
        os.killpg(pid, signal.SIGSTOP)
        if not os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1]):
            return
        known = self._messages.queued_ids()
        if self._reschedules:
            known |= self._messages.unacknowledged_ids()
        self._follow()
        expected = set(self._board.unsettled) if self._reschedules else self._board.undelivered
        if worker not in self._board.workers_in(feed) or expected - known:
            os.killpg(pid, signal.SIGCONT)
            return
        waiting = self._line(feed) if self._is_protected else 0
        journal.write("kill", worker=worker, feed=feed, killed=pid, waiting=waiting)
        os.killpg(pid, signal.SIGKILL)
        self._victim = worker
        self._processes.wait_for_end(process, _DEATH_SECONDS)
        time.sleep(_TICK)
        behind = f", {waiting} waiting behind it" if self._is_protected else ""
        self._progress.tell(f"SIGKILL to {worker} while it imports {name(feed)}{behind}")

    def _has_line(self) -> bool:
        feed = self._server.slow_url
        if not self._board.workers_in(feed):
            return False
        return not self._is_protected or self._line(feed) >= _LINE_BEFORE_KILL

    @property
    def _reschedules(self) -> bool:
        from django.conf import settings

        return bool(settings.CLICKS == "reschedule")

    def _line(self, feed: str) -> int:
        """Return the number of tasks that wait for a feed, to choose the moment of the kill."""
        from feeds.tasks import reimport_feed

        if self._reschedules:
            return self._board.waiting_for(feed)
        waiting = reimport_feed.lock_state(feed).waiting
        return waiting if isinstance(waiting, int) else len(waiting)

    def _tail(self, process: str) -> str:
        return "\n".join(self._processes.log(process).read_text(errors="replace").splitlines()[-15:])


def _sites(feeds: Path | None, urls: list[str]) -> list[server.Site]:
    try:
        mirrored = [server.mirror(url) for url in urls]
    except URLError as error:
        raise Failed(f"the live feed could not be fetched: {error.reason}") from error
    return [*server.sites(feeds or server.DOCUMENTS), *mirrored]


def _worker_command(worker: str) -> list[str]:
    options = ["--hostname", worker, "--concurrency", str(CONCURRENCY), "--pool", "prefork"]
    quiet = ["--loglevel", "INFO", "--without-gossip", "--without-mingle"]
    return [sys.executable, "-m", "celery", "-A", "planet", "worker", "-I", "stage.witness", *options, *quiet]


def _migrate() -> Any:
    """Create the database; return the Celery application."""
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    from planet import celery_app

    return celery_app


def _damage(ran: int) -> Damage:
    """Look into the database for what overlapping imports leave behind."""
    from django.db.models import Count, Sum

    from feeds.models import Entry, Feed

    copies = Entry.objects.values("feed", "guid").annotate(copies=Count("id")).filter(copies__gt=1)
    counted = Feed.objects.aggregate(counted=Sum("imports"))["counted"] or 0
    return Damage(duplicates=sum(row["copies"] - 1 for row in copies), lost_updates=max(0, ran - counted))
