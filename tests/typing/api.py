"""The documented spellings, as code with annotations: a type checker finds nothing in it, and it runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

from celery import Celery, chain, group
from typing_extensions import assert_type

from celery_exclusive import (
    Debounce,
    DuplicateTask,
    Exclusive,
    Lease,
    LockHeld,
    LockState,
    NoLease,
    Task,
    Unique,
    install,
    lock,
    locks,
    shared_task,
)
from celery_exclusive.signals import LockOutcome, lock_outcome
from celery_exclusive.testing.lock_store import LockStore
from celery_exclusive.typing import App, Result, Signature

app = install(Celery("feeds", broker="memory://"))
app.conf.exclusive_store = "memory://"
app.conf.task_annotations = {"thirdparty.tasks.send": {"exclusive": Exclusive("user_id")}}


@app.task
def plain(number: int) -> str:
    return str(number)


@app.task(exclusive=Exclusive("feed_url", on_conflict="skip"))
def import_feed(feed_url: str, *, full: bool = False) -> int:
    return len(feed_url)


@app.task(unique=Unique("doc_id", until="started"), exclusive=Exclusive("doc_id", limit=4), acks_late=True)
def reindex(doc_id: int) -> None: ...


def feed(feed_url: str) -> str:
    return f"feed:{feed_url}"


@app.task(exclusive=Exclusive(key=feed), unique=None, name="feeds.refresh")
def refresh(feed_url: str) -> None: ...


@app.task(bind=True, exclusive=Exclusive(key="repo:{project_id}"), autoretry_for=(TimeoutError,))
def sync(self: Task, project_id: int) -> int:
    assert_type(self.lease, Lease)
    self.lease.check()
    if self.request.retries:
        raise self.retry(countdown=3)
    return self.lease.fence


@shared_task
def plain_shared(number: int) -> str:
    return str(number)


@shared_task(unique=Debounce("doc_id", wait=timedelta(seconds=5), max_wait=60))
def render(doc_id: int, text: str) -> bytes:
    return text.encode()


@shared_task(bind=True, exclusive=Exclusive())
def rebuild(self: Task, number: int) -> int:
    return getattr(self, "lease", None) is None


class Refreshed(Task):
    abstract = True
    exclusive = Exclusive("feed_url", ttl=60)


@app.task(base=Refreshed, bind=True, unique=Unique())
def with_base(self: Refreshed, feed_url: str) -> None:
    assert_type(self.lease, Lease)


class FeedImporter(Task):
    name = "feeds.import"
    unique = Unique("feed_url")

    def run(self, feed_url: str) -> int:
        return self.lease.fence


feed_importer = app.register_task(FeedImporter())


class OwnApp(App):
    """Where `install(app)` stands alone, and the class is not Celery's."""


own_app = OwnApp("own", broker="memory://")
install(own_app)


@own_app.task(exclusive=Exclusive())
def of_own_app(number: int) -> str:
    return str(number)


@lock_outcome.connect
def count(outcome: LockOutcome, **_: Any) -> None:
    assert_type(outcome.lock_key, str)


@lock_outcome.connect(sender="feeds.refresh")
def count_refreshes(outcome: LockOutcome, **_: Any) -> None:
    assert_type(outcome.task_name, str | None)


def calls() -> Result[int]:
    call = import_feed.delay("https://planet.example/rss", full=True)
    assert_type(call, Result[int])
    assert_type(call.id, str)
    assert_type(call.outcome, Literal["published", "skipped", "updated"])
    assert_type(call.existing_id, str | None)
    assert_type(call.key, str | None)
    assert call.result["skipped"]
    assert_type(render.delay(17, "text").outcome, Literal["published", "skipped", "updated"])
    assert_type(sync.delay(17), Result[int])
    assert_type(rebuild.delay(17), Result[int])
    assert_type(plain.delay(17), Result[str])
    assert_type(plain_shared.delay(17), Result[str])
    assert_type(import_feed("a direct call"), int)
    assert_type(sync(17), int)
    assert_type(of_own_app.delay(17), Result[str])
    assert_type(feed_importer.delay("url").outcome, Literal["published", "skipped", "updated"])
    assert_type(with_base.lock_state("url"), LockState)
    assert_type(handed_around(app, plain, import_feed.s("url")), Result[str])
    import_feed.delay_on_commit("url", full=True)
    import_feed.apply_async_on_commit(("url",), exclusive=None)
    import_feed.apply_async(("url",), exclusive=None, countdown=3)
    import_feed.apply_async(("url",), {"full": True}, "import-7", unique=None)
    reindex.apply_async(kwargs={"doc_id": 7}, exclusive=Exclusive("doc_id", limit=2), declare=[])
    reindex.apply_async([7], unique=Debounce("doc_id", wait=1, max_wait=9), exclusive=None)
    try:
        return import_feed.apply_async(("url",))
    except DuplicateTask as duplicate:
        assert_type(duplicate.existing_id, str)
        raise


def signatures() -> None:
    assert_type(import_feed.s("url"), Signature[int])
    assert_type(import_feed.s("url").set(exclusive=None, queue="slow").delay(), Result[int])
    assert_type(reindex.si(7).set(unique=None).apply_async(), Result[None])
    import_feed.signature(("url",), exclusive=None)
    chain(import_feed.s("url"), reindex.s()).apply_async()
    group(import_feed.s(url) for url in ("a", "b")).apply_async()


def states() -> None:
    state = import_feed.lock_state("url")
    assert_type(state, LockState)
    assert_type(state.holders[0].task_id, str)
    assert_type(state.is_running, bool)
    rebuild.lock_state(17, headers={"_schema_name": "blue"})
    import_feed.release_lock("url", force=True, reason="web3 is dead")
    assert_type(import_feed.restart("url", wait=5).not_ended, tuple[str, ...])
    assert_type(locks.why("an id").sentence, str)
    assert_type([key.waiting for key in locks.keys(app=app)], list[int])
    if not locks.cancel("an id", reason="the tenant has gone"):
        locks.waiting(import_feed, ("url",))


def blocks() -> None:
    try:
        with lock("repo:17", wait=0) as lease:
            assert_type(lease, Lease)
            assert_type(lease.fence, int)
        with lock("api", limit=None, rate=("5/s", "500/m"), cost=3, part="acme"):
            rebuild(17)
    except LockHeld as held:
        print(held)
    guard = lock("repo:17", ttl=5, wait=None, limit=4, until_commit=True, reentrant=True, app=app)
    try:
        assert_type(guard.acquire(), bool)
        assert_type(guard.lease, Lease)
    except NoLease:
        guard.release()


async def coroutine() -> None:
    async with lock("repo:17", wait=5) as lease:
        assert_type(lease, Lease)
        await lease.acheck()
    guard = lock("repo:17")
    if await guard.aacquire():
        await guard.arelease()
    assert_type(await guard.alocked(), bool)


def handed_around(app: App, task: Task[[int], str], signature: Signature[int]) -> Result[str]:
    signature.set(exclusive=None).delay()
    app.send_task("feeds.refresh", ("url",), exclusive=None)
    return task.delay(17)


def conflict_is_skipped(lock_store: LockStore) -> None:
    with lock_store.held(import_feed, "url"):
        assert import_feed.delay("url").result["skipped"]
        lock_store.advance(31)
