"""A Django project with the databases that a test gives it; each command is a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from tests.django.databases import sqlite
from tests.django.nursery import PATH, PROJECT, Nursery

_nursery = cache(Nursery)
"""Return the nursery of this test process."""


class Shop:
    """The project `shop`, with these settings besides its own.

    shop = Shop(DATABASES={"default": sqlite(tmp_path / "shop.db")})
    shop.manage("migrate")
    """

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "shop.settings",
            "PYTHONPATH": PATH,
            "SHOP": json.dumps(self.settings, default=str),
        }

    def manage(self, *command: str, **environment: str) -> str:
        """Return what a command prints, which has to succeed."""
        done = self.run("manage.py", *command, **environment)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run `python COMMAND` to its end; what it writes is in `stdout`."""
        everything = {**self.environment, **environment}
        if "PYTHONPATH" not in environment:
            return _nursery().run(command, everything)
        return subprocess.run(
            [sys.executable, *command],
            env=everything,
            cwd=PROJECT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def check(self, *command: str, **environment: str) -> list[str]:
        """Return the ids of our messages, of a check of the settings and this database."""
        self.said = self.run("manage.py", "check", *command, **environment).stdout
        assert "Traceback" not in self.said, self.said
        return re.findall(r"\(celery_exclusive\.(\w+)\)", self.said)


def with_file(folder: Path, **settings: Any) -> Shop:
    """Have the locks in a SQLite file of their own."""
    databases = {"default": sqlite(folder / "shop.db"), "locks": sqlite(folder / "locks.db")}
    router = "shop.routers.LocksApart"
    return Shop(
        **{
            "DATABASES": databases,
            "DATABASE_ROUTERS": [router],
            "CELERY_EXCLUSIVE_STORE": "django://locks",
            **settings,
        }
    )
