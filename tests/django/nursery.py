"""Runs the commands of a Django project: it imports Django and Celery once and forks.

A command is a process of its own, which imports all of the project, our app and its settings.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from tests import nursery
from tests.worker.nursery import DEATH_OF_PARENT, REPOSITORY

PROJECT = Path(__file__).parent / "shop"
PATH = os.pathsep.join(map(str, (PROJECT, REPOSITORY / "src", REPOSITORY)))
MODULES = (
    *("django.core.management", "django.core.management.commands.check", "django.core.handlers.wsgi"),
    *("django.core.management.commands.migrate", "django.core.management.commands.makemigrations"),
    *("django.db.models", "django.db.migrations.executor", "django.db.migrations.autodetector"),
    *(
        "django.db.backends.sqlite3.base",
        "django.forms",
        "django.template",
        "django.urls",
        "django.views.generic",
    ),
    *("celery.app.base", "celery.app.amqp", "celery.app.task", "celery.app.trace", "celery.result", "jinja2"),
    *("celery_exclusive.installer", "celery_exclusive.stores.sql.sqlite", "psycopg", "redis"),
)


class Nursery(nursery.Nursery):
    """The parent of commands, itself a child without threads. It ends with the test process."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", "from tests.django.nursery import main; main()"]
        super().__init__(command, cwd=PROJECT, env={**os.environ, "PYTHONPATH": PATH})

    def run(self, words: tuple[str, ...], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run `python WORDS`, a file of the project or `-c CODE`, to its end."""
        with TemporaryDirectory() as folder:
            said = Path(folder, "said")
            said.touch()
            code = int(self.ask(words, dict(environment), str(said)))
            return subprocess.CompletedProcess(words, code, said.read_text())


def main() -> None:
    """Serve until the test process is gone; in a child, be a command."""
    exec(DEATH_OF_PARENT)
    nursery.read_versions_once()
    for module in MODULES:
        import_module(module)
    words = _serve()
    if words and words[0] == "-c":
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
    elif words:
        runpy.run_path(words[0], run_name="__main__")


def _serve() -> list[str] | None:
    """Return, in a child, the words of its command."""
    for words, environment, said in nursery.questions():
        child = os.fork()
        if not child:
            return _become(words, environment, said)
        nursery.answer(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return None


def _become(words: list[str], environment: dict[str, str], said: str) -> list[str]:
    exec(DEATH_OF_PARENT)
    output = os.open(said, os.O_WRONLY | os.O_APPEND)
    for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), output, output)):
        os.dup2(file, number)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["-c", *words[2:]] if words[0] == "-c" else words
    return words
