from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result
from kombu import Connection

from celery_exclusive import install
from celery_exclusive.cli.locks import locks
from celery_exclusive.core.operations import Acquire
from celery_exclusive.core.records import SECOND
from celery_exclusive.stores.base import Reply
from tests.worker.conftest import make_lab

__all__ = ["make_lab"]


@dataclass
class Desk:
    """An app with its store in this process, whose clock the test sets, and the command beside it."""

    app: Celery
    now: int = 1_800_000_000 * SECOND

    @property
    def store(self) -> Any:
        return self.app._celery_exclusive.store  # type: ignore[attr-defined]

    def pass_time(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)

    def acquire(self, key: str, id: str, **options: Any) -> Reply:
        """Take a key for ten minutes."""
        reply: Reply = self.store.apply(key, Acquire(id, "token", 600 * SECOND, **options))
        return reply

    def run(self, *words: str, answer: str = "") -> Result:
        """`celery -A this_app locks WORDS`, whose question is answered so."""
        obj = CLIContext(app=self.app, no_color=True, workdir=None)
        return CliRunner().invoke(locks, words, answer, obj=obj, prog_name="celery locks")


@pytest.fixture
def make_desk() -> Iterator[Callable[..., Desk]]:
    """Makes a desk: `make_desk(exclusive_prefix="x")`."""
    apps = []

    def make(*, installed: bool = True, **conf: Any) -> Desk:
        app = Celery("desk", broker="memory://", set_as_current=False)
        apps.append(app)
        app.conf.update({"exclusive_store": f"memory://{uuid4()}", **conf})
        return Desk(install(app) if installed else app)

    yield make
    for app in apps:
        if hasattr(app, "_celery_exclusive"):
            app._celery_exclusive.courier.close()
            if "store" in vars(app._celery_exclusive):  # the test has looked at it, or the command has
                app._celery_exclusive.store.close()
        with Connection("memory://") as connection:  # all tests of this process share it
            connection.SimpleQueue("desk").clear()
        app.close()


@pytest.fixture
def desk(make_desk: Callable[..., Desk]) -> Desk:
    desk = make_desk()
    desk.store._store.clock = lambda: desk.now
    return desk
