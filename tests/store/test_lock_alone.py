"""Apps that use `lock()` alone, without a worker that looks after the store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_exclusive import install, lock
from celery_exclusive.local import acquisition
from celery_exclusive.stores.sql import store as sql_store
from celery_exclusive.stores.sql import transaction
from celery_exclusive.stores.sql.server import ServerTransaction


@pytest.fixture(params=["sqlite", "postgres", "maria"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Celery]:
    app = Celery("feeds", broker="memory://", set_as_current=False)
    is_file = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/locks" if is_file else request.getfixturevalue(f"{request.param}_url")
    app.conf.exclusive_store = url
    yield install(app)
    app.close()


@pytest.mark.promise(
    "Apps that use `lock()` alone leave no more rows in a database than a sweep deletes: one that was full "
    "is followed by the next, not a minute later",
    broke="red before, on SQLite, PostgreSQL and MariaDB: 5,000 rows a minute, and the others stayed",
)
def test_the_rows_of_ended_locks_are_deleted_as_fast_as_they_come(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once in a minute would delete so many rows, and leave the others for ever."""
    monkeypatch.setattr(acquisition, "_SWEEPS", 0)
    monkeypatch.setattr(transaction, "_ENDED_AT_ONCE", 5)
    monkeypatch.setattr(sql_store, "_PARTS_OF_SWEEP", 1)
    monkeypatch.setattr(ServerTransaction, "kept_ended", 0)

    def use_locks(name: str, count: int) -> None:
        for number in range(count):
            with lock(f"{name} {number}", app=app):
                pass

    def rows() -> int:
        store: Any = app._celery_exclusive.store  # type: ignore[attr-defined]
        return len(store.transact(lambda it: it._all("SELECT key FROM exclusive2_lock")))

    use_locks("quiet", 20)
    assert rows() == 20
    monkeypatch.setattr(acquisition, "_SWEEPS", 1)
    use_locks("busy", 6)
    assert rows() < 5
