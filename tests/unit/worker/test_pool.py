"""Which pools a worker with locks may have."""

from __future__ import annotations

from typing import Any

import pytest
from celery.concurrency.base import BasePool
from celery.concurrency.prefork import TaskPool as Prefork
from celery.concurrency.solo import TaskPool as Solo
from celery.concurrency.thread import TaskPool as Threads

from celery_exclusive.errors import OptionError
from celery_exclusive.worker.pool import kind_of

KINDS = {"prefork": Prefork, "solo": Solo, "threads": Threads}


@pytest.mark.parametrize("kind", KINDS)
def test_a_pool_that_inherits_from_one_of_celery_s_is_of_its_kind(kind: str) -> None:
    own = type("Own", (KINDS[kind],), {})
    assert kind_of(KINDS[kind]) == kind_of(own) == kind_of(type("Owner", (own,), {})) == kind


def test_a_pool_that_inherits_from_gevent_s_is_of_its_kind() -> None:
    gevent: Any = pytest.importorskip("celery.concurrency.gevent")
    assert kind_of(type("Own", (gevent.TaskPool,), {})) == "gevent"


@pytest.mark.parametrize("own", [type("Prefork", (BasePool,), {}), type("Own", (Solo,), {"is_green": True})])
def test_a_pool_of_no_such_kind_is_refused_with_those_that_are(own: Any) -> None:
    with pytest.raises(OptionError, match=f"{own.__name__}: use --pool=gevent, threads, prefork or solo"):
        kind_of(own)
