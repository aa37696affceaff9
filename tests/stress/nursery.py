"""Starts the processes of a run: imports once and forks, since a kill every moment makes many starts."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path

from tests import nursery
from tests.stress.plan import Plan
from tests.stress.worker import work

ROOT = Path(__file__).parents[2]


class Nursery(nursery.Nursery):
    """The parent of a run's processes, itself a child without threads. What it started ends with it."""

    def __init__(self, plan: Plan) -> None:
        path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "tests.stress.nursery", plan.dump()]
        super().__init__(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path})

    def start(self, role: str, seed: str) -> int:
        """Fork a worker or a reaper; return its pid."""
        return int(self.ask("start", role, seed))

    def end(self, pid: int, seconds: float = 0) -> int | None:
        """Wait for a process to end and return its exit code; kill it and return None if it takes longer."""
        code: int | None = self.ask("end", pid, seconds)
        return code

    def close(self) -> None:
        self._process.communicate()


def main() -> None:
    plan = Plan.load(sys.argv[1])
    if plan.url.startswith("redis"):
        import_module("redis")
    plan.open_store().close()  # imports what it needs
    children: set[int] = set()
    for verb, *arguments in nursery.questions():
        found: int | None
        if verb == "start":
            found = pid = _fork(plan, *arguments)
            children.add(pid)
        else:
            found = _end(*arguments)
            children.discard(arguments[0])
        nursery.answer(found)
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _fork(plan: Plan, role: str, seed: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.close(0)
        work(plan, role, seed)
        code = 0
    except BaseException:  # noqa: BLE001 - nothing of the nursery may go on in the child
        traceback.print_exc()
    os._exit(code)


def _end(pid: int, seconds: float) -> int | None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


if __name__ == "__main__":
    main()
