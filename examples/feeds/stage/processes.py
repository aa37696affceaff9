"""The demo's child processes: started tethered to it, and all of them ended."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_TETHER = Path(__file__).with_name("tether.py")


class Processes:
    """Starts processes, each leader of its own group, with its output in a file of `folder`.

    Start them from the main thread: the tether holds on to the thread that started it.
    """

    def __init__(self, folder: Path, cwd: Path) -> None:
        self._folder = folder
        self._cwd = cwd
        self._started: list[subprocess.Popen[bytes]] = []
        self._signs_of_life: dict[int, int] = {}

    def start(self, name: str, command: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start one; its output goes to `<name>.log`, its standard input is a pipe from us."""
        # The process and all that it forks keep the other end open, until the last of them is dead.
        sign_of_life, kept_open = os.pipe()
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, str(_TETHER), str(os.getpid()), *command],
                cwd=self._cwd,
                env=dict(env),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=[kept_open],
            )
        os.close(kept_open)
        self._started.append(process)
        self._signs_of_life[process.pid] = sign_of_life
        return process

    def wait_for_end(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        """Wait until the process and all that it forked are dead, for so long at most."""
        select.select([self._signs_of_life[process.pid]], [], [], seconds)

    def log(self, name: str) -> Path:
        """Return the path of a process' output."""
        return self._folder / f"{name}.log"

    def stop(self) -> None:
        """End every process and the processes it started, newest first."""
        for process in reversed(self._started):
            # Not yet waited for, so the number still belongs to this process, alive or not.
            if process.returncode is None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
            if process.stdin:
                with suppress(OSError):
                    process.stdin.close()
        for process in self._started:
            _reap(process)
            os.close(self._signs_of_life.pop(process.pid))
        self._started.clear()


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Wait for its end. `Popen.wait` hangs if Ctrl-C came inside a `poll`, between its lock and its `try`."""
    if process.returncode is None:
        with suppress(ChildProcessError):
            process.returncode = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
