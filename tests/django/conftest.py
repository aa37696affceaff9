"""A laboratory for a Django project: besides workers it has a web process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.worker.lab import Lab
from tests.worker.nursery import DEATH_OF_PARENT

PROJECT = Path(__file__).parent / "project"


class DjangoLab(Lab):
    """`start_worker` as ever, and `start_web`, whose answers `ask` returns."""

    _port = ""

    def __init__(self, url: str, folder: Path, **conf: Any) -> None:
        super().__init__(url, folder, conf, module="proj")

    @property
    def environment(self) -> dict[str, str]:
        inherited = super().environment
        return {
            **inherited,
            "C_FORCE_ROOT": "1",  # an instance of a model travels as pickle, which Celery refuses to root
            "DJANGO_SETTINGS_MODULE": "proj.settings",
            "PROJECT_DATABASE": str(self.folder / "project.sqlite3"),
            "PYTHONPATH": os.pathsep.join([inherited["PYTHONPATH"], str(PROJECT)]),
        }

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Let a process of the project come to its end."""
        return subprocess.run(
            [sys.executable, *command],
            env=self.environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def start_web(self) -> None:
        command = [sys.executable, "-c", f"{DEATH_OF_PARENT}; import proj.web"]
        web = subprocess.Popen(
            command,
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._workers.enter_context(web)
        self._workers.callback(web.kill)
        assert web.stdout
        self._port = web.stdout.readline().strip()

    def ask(self, *path: object) -> dict[str, Any]:
        """Return what the web process answers to this path."""
        url = "/".join(["http:/", f"127.0.0.1:{self._port}", *map(str, path)])
        with urllib.request.urlopen(url, timeout=60) as response:
            answer: dict[str, Any] = json.load(response)
        return answer


@pytest.fixture
def make_lab(redis_url: str, tmp_path: Path) -> Iterator[Callable[..., DjangoLab]]:
    """Makes a laboratory with these settings: `make_lab(exclusive_ttl=5)`."""
    with ExitStack() as labs:
        yield lambda **conf: labs.enter_context(DjangoLab(redis_url, tmp_path, **conf))


@pytest.fixture
def lab(make_lab: Callable[..., DjangoLab]) -> DjangoLab:
    """One with late ack, as our README advises."""
    return make_lab(task_acks_late=True, task_reject_on_worker_lost=True)
