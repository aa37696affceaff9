"""A copy of the repository, to change and to test in."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.mutation.mutants import Mutant

REPOSITORY = Path(__file__).parents[2]
PACKAGE = Path("src", "celery_exclusive")
VERDICTS = {0: "passed", 1: "failed", 2: "not collected", 4: "not collected"}
"""By the exit code of pytest: 2 or 4 if the tests cannot be imported or found."""


class Copy:
    """The copy in this folder, which must not exist."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        leave_out = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache")
        shutil.copytree(REPOSITORY, folder, ignore=leave_out)
        (folder / ".venv").symlink_to((REPOSITORY / ".venv").resolve())

    def trace(self) -> Path:
        """Let each process note the lines that it passes, and return the folder where it does."""
        shutil.copy(self.root / "tests/mutation/lines.py", self.root / "src/sitecustomize.py")
        found = self.root / "lines-of-tests"
        found.mkdir()
        return found

    def test(self, *words: str, timeout: float | None = None, **environment: str) -> str:
        """Run pytest: "passed", "failed", "not collected", "timed out", or else "error"."""
        path = os.pathsep.join([str(self.root / "src"), str(self.root)])
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return VERDICTS.get(process.wait(timeout), "error")
        except subprocess.TimeoutExpired:
            return "timed out"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    @contextmanager
    def changed(self, mutant: Mutant) -> Iterator[None]:
        """Let the copy have this mutation."""
        file = self.root / PACKAGE / mutant.path
        before = file.read_bytes()
        file.write_text(mutant.text)
        try:
            yield
        finally:
            file.write_bytes(before)
