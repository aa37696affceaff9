"""Rates, costs and holds of code that runs at once: eager calls, `apply()`, `lock()`."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery, Task

from celery_exclusive import Exclusive, ExclusiveError, LockHeld, OptionError, Unique, install, lock, notices
from celery_exclusive.core.operations import Hold, SetLimit
from celery_exclusive.core.records import SECOND
from celery_exclusive.testing.lock_store import LockStore


@pytest.fixture
def app() -> Celery:
    app = install(Celery("eager", broker="memory://", set_as_current=False))
    app.conf.update(exclusive_store=f"memory://{uuid4()}")
    return app


def test_no_eager_call_meets_a_rate_or_a_hold(app: Celery) -> None:
    app.conf.task_always_eager = True

    @app.task(bind=True, exclusive=Exclusive("key", limit=2, rate="1/h", cost=2), shared=False)
    def call(self: Task, key: str) -> str:
        self.lease.hold(30)  # type: ignore[attr-defined]
        return key

    assert [call.delay("k").get() for _ in range(3)] == ["k", "k", "k"]


@pytest.mark.promise(
    "A unique key has no rate and no hold: `lease.hold()` there is refused, and skips no call",
    broke="the hold closed the unique key: the next call was skipped as a duplicate of no task",
)
def test_a_unique_key_is_not_held_back(app: Celery) -> None:
    @app.task(bind=True, unique=Unique("key"), shared=False)
    def call(self: Task, key: str) -> None:
        self.lease.hold(30)  # type: ignore[attr-defined]

    for _ in range(2):
        with pytest.raises(OptionError, match="is a unique key"):
            call.apply(("k",)).get()


def test_a_lock_that_is_closed_counts_as_held(app: Celery) -> None:
    free = lock("k", app=app, wait=0)
    assert not free.locked()
    app._celery_exclusive.store.apply("x=k", SetLimit(0))  # type: ignore[attr-defined]
    assert free.locked()
    with pytest.raises(LockHeld, match="paused by an operator") as held, free:
        pass
    assert held.value.reason == "paused"


@pytest.mark.promise(
    "Code that holds a lock waits for it to open, and raises no error, if it is closed, and not full",
    broke="red before: held by the very code that waits for it",
)
def test_a_lock_within_itself_waits_until_a_hold_is_over(app: Celery) -> None:
    store = app._celery_exclusive.store  # type: ignore[attr-defined]
    with lock("k", limit=2, app=app):
        store.apply("x=k", Hold("", "", SECOND // 20))
        with lock("k", limit=2, app=app):
            assert store.inspect("x=k").terms.opens_at == 0
    with lock("k", app=app):
        store.apply("x=k", Hold("", "", SECOND))
        with pytest.raises(ExclusiveError, match="by the very code that waits for it"), lock("k", app=app):
            pass


@pytest.mark.promise(
    "`apply()` takes a slot of its part: it waits if the part is full, and one of another part runs",
    broke="the part left out of the claim: red",
)
def test_a_call_of_apply_waits_for_a_slot_of_its_part(app: Celery, lock_store: LockStore) -> None:
    @app.task(exclusive=Exclusive(key="api", limit=None, per=Exclusive("tenant", limit=1)), shared=False)
    def call(tenant: str) -> str:
        return tenant

    with lock_store.held(call, "acme"):
        assert call.apply(("zeta",)).get() == "zeta"
        with pytest.raises(LockHeld, match="at its limit for this part") as held:
            call.apply(("acme",))
        assert (held.value.reason, held.value.retry_after) == ("part", None)
    assert call.apply(("acme",)).get() == "acme"


@pytest.mark.promise(
    "`lock(part=)`, also in a coroutine, needs room in its part, and takes it from the tasks of that",
    broke="the part left out of the claim; a lock with terms of its own, weight 1",
)
def test_a_lock_counts_in_its_part(app: Celery, lock_store: LockStore) -> None:
    @app.task(exclusive=Exclusive(key="api", limit=None, per=Exclusive("tenant", limit=2)), shared=False)
    def call(tenant: str) -> str:
        return tenant

    acme, zeta = (lock("api", limit=None, part=part, wait=0, app=app) for part in ("acme", "zeta"))
    with lock_store.held(call, "acme"), acme, zeta:
        with pytest.raises(LockHeld, match="at its limit for this part") as held:
            call.apply(("acme",))
        assert held.value.reason == "part"
        assert not acme.acquire()
        assert not asyncio.run(acme.aacquire())
    with acme, lock_store.held(call, "acme"):
        assert call.apply(("zeta",)).get() == "zeta"
        with pytest.raises(LockHeld):
            call.apply(("acme",))


@pytest.mark.parametrize("given", [{"part": "acme"}, {"cost": 2}, {"rate": "5/s"}])
def test_a_lock_with_a_part_or_a_rate_needs_a_store_that_keeps_it(
    app: Celery, memcached_url: str, given: dict[str, Any]
) -> None:
    app.conf.exclusive_store = memcached_url
    with pytest.raises(OptionError, match="keeps no rates, costs, parts"):
        lock("api", limit=None, app=app, **given).acquire()


@pytest.mark.promise(
    "A `lock(part=)` without `wait=`, in code that has a slot of that part, says in the log that it may wait "
    "for itself",
    broke="only the holders of the whole key looked at: red",
)
def test_a_lock_in_its_own_part_is_told_of_beside_another_tenant(
    app: Celery, lock_store: LockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Told(BaseException): ...

    def tell(key: str) -> None:
        raise Told(key)

    @app.task(exclusive=Exclusive(key="api", limit=None, per=Exclusive("tenant", limit=1)), shared=False)
    def call(tenant: str) -> None:
        with lock("api", limit=None, part=tenant, app=app):
            pass

    monkeypatch.setattr(notices, "may_wait_for_itself", tell)
    with lock_store.held(call, "zeta"), pytest.raises(Told, match="x=api"):
        call.apply(("acme",))
