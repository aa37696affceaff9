"""Starts the processes of a run: imports once and forks, since a kill every moment makes many starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path

from tests.stress.plan import Plan
from tests.stress.worker import work

ROOT = Path(__file__).parents[2]


class Nursery:
    """The parent of a run's processes, itself a child without threads. What it started ends with it."""

    def __init__(self, plan: Plan) -> None:
        path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.stress.nursery", plan.dump()],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, role: str, seed: str) -> int:
        """Fork a worker or a reaper; return its pid."""
        pid = self._ask("start", role, seed)
        assert pid is not None
        return pid

    def end(self, pid: int, patience: float = 0) -> int | None:
        """Wait for a process to end and return its exit code; kill it and return None if it takes longer."""
        return self._ask("end", pid, patience)

    def close(self) -> None:
        self._process.communicate()

    def _ask(self, *words: object) -> int | None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        answer: int | None = json.loads(self._process.stdout.readline())
        return answer


def main() -> None:
    plan = Plan.load(sys.argv[1])
    if plan.url.startswith("redis"):
        import_module("redis")
    plan.open_store().close()  # imports what it needs
    children: set[int] = set()
    for line in sys.stdin:
        verb, *arguments = json.loads(line)
        answer: int | None
        if verb == "start":
            answer = pid = _fork(plan, *arguments)
            children.add(pid)
        else:
            answer = _end(*arguments)
            children.discard(arguments[0])
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()
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


def _end(pid: int, patience: float) -> int | None:
    deadline = time.monotonic() + patience
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
