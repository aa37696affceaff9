"""Headers in the keys of calls: whoever adds them to a message, its key is made of those that are sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import pytest
from celery import Celery
from celery.signals import after_task_publish, before_task_publish
from kombu import Producer
from kombu.exceptions import OperationalError

from celery_exclusive import DuplicateTask, Exclusive, OptionError, Unique, install
from celery_exclusive.compat.singleton import Singleton
from celery_exclusive.stores.memory import MemoryStore

pytestmark = pytest.mark.proves("key headers")

TENANT = "_schema_name"
NAME = "feeds.load"
ROUTE: dict[str, Any] = {}
"""What the router of the app answers."""


@pytest.fixture
def app(make_app: Callable[..., Celery]) -> Celery:
    return install(make_app(exclusive_key_headers=(TENANT,), task_routes=[lambda *_, **__: {**ROUTE}]))


@pytest.fixture
def store(app: Celery) -> MemoryStore:
    store: MemoryStore = app._celery_exclusive.store  # type: ignore[attr-defined]
    return store


@pytest.fixture
def sent_headers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Our header of each message that kombu is given."""
    seen: list[Any] = []
    publish = Producer._publish

    def see(producer: Any, *args: Any, **options: Any) -> Any:
        sent = signature(publish).bind(producer, *args, **options).arguments
        seen.append(sent["headers"]["exclusive"])
        return publish(producer, *args, **options)

    monkeypatch.setattr(Producer, "_publish", see)
    return seen


@contextmanager
def receiving(receiver: Callable[..., Any], signal: Any = before_task_publish) -> Iterator[None]:
    signal.connect(receiver, weak=False)
    try:
        yield
    finally:
        signal.disconnect(receiver)


@contextmanager
def adding(tenant: str | None) -> Iterator[None]:
    """Let a receiver of `before_task_publish` name the tenant, as many projects do."""

    def add(headers: dict[str, Any], **_: Any) -> None:
        if tenant is not None:
            headers[TENANT] = tenant

    with receiving(add):
        yield


def declare(app: Any, name: str = NAME, **options: Any) -> Any:
    @app.task(name=name, shared=False, **(options or {"unique": Unique()}))
    def load(url: str, n: int = 0) -> None: ...

    app.finalize()
    return app.tasks[name]


def by_call(task: Any, tenant: str | None, **options: Any) -> Any:
    headers = {} if tenant is None else {"headers": {TENANT: tenant, "other": 1}}
    return task.apply_async(("a",), **headers, **options)


def by_receiver(task: Any, tenant: str | None, **options: Any) -> Any:
    with adding(tenant):
        return task.apply_async(("a",), headers={"other": 1}, **options)


def by_route(task: Any, tenant: str | None, **options: Any) -> Any:
    ROUTE["headers"] = tenant and {TENANT: tenant}
    try:
        return task.apply_async(("a",), **options)
    finally:
        del ROUTE["headers"]


def by_name(task: Any, tenant: str | None, **options: Any) -> Any:
    with adding(tenant):
        return task.app.send_task(NAME, ("a",), **options)


ways = pytest.mark.parametrize("publish", [by_call, by_receiver, by_name])


@pytest.mark.parametrize("publish", [by_call, by_receiver, by_route, by_name])
def test_the_same_call_of_another_tenant_is_another_call(app: Celery, publish: Any) -> None:
    task = declare(app)
    tenants = ("acme", "acme", "zeta", None, None, "zeta")
    calls = [publish(task, tenant) for tenant in tenants]
    outcomes = [call.outcome for call in calls]
    assert outcomes == ["published", "skipped", "published", "published", "skipped", "skipped"]
    assert [call.existing_id for call in calls if call.existing_id] == [calls[n].id for n in (0, 3, 2)]
    for tenant, call in zip(tenants, calls, strict=True):
        state = task.lock_state("a", headers={} if tenant is None else {TENANT: tenant})
        assert state.unique_holder.task_id == call.id
        assert state.key == call.key


def test_a_duplicate_that_a_receiver_completes_is_not_sent(app: Celery) -> None:
    task, sent = declare(app), list[str]()
    with receiving(lambda headers, **_: sent.append(headers["id"]), after_task_publish):
        calls = [by_receiver(task, tenant) for tenant in ("acme", "acme", "zeta")]
    assert sent == [calls[0].id, calls[2].id]
    task.unique = Unique(on_conflict="raise")
    with pytest.raises(DuplicateTask, match=calls[0].id):
        by_receiver(task, "acme")


@ways
def test_a_member_of_a_canvas_is_sent_as_a_duplicate_of_its_tenants_call(
    app: Celery, sent_headers: list[Any], publish: Any
) -> None:
    task = declare(app)
    first = publish(task, "acme")
    assert publish(task, "acme", link=task.si("b")).outcome == "published"
    assert publish(task, "zeta", link=task.si("b")).outcome == "published"
    assert [headers.get("duplicate_of") for headers in sent_headers] == [None, first.id, None]


@ways
def test_a_call_that_is_not_sent_leaves_the_key_of_its_tenant_free(
    app: Celery, monkeypatch: pytest.MonkeyPatch, publish: Any
) -> None:
    task = declare(app)
    with monkeypatch.context() as patch:
        patch.setattr(Producer, "_publish", _refuse)
        with pytest.raises(OperationalError):
            publish(task, "acme", retry=False)
    assert task.lock_state("a", headers={TENANT: "acme"}).unique_holder is None


def _refuse(*_: Any, **__: Any) -> None:
    raise OperationalError("no broker")


@ways
def test_an_ordered_call_takes_its_place_behind_the_calls_of_its_tenant(app: Celery, publish: Any) -> None:
    task = declare(app, exclusive=Exclusive(order="published"))
    for tenant in ("acme", "acme", "zeta"):
        publish(task, tenant)
    waiting = [task.lock_state("a", headers={TENANT: tenant}).waiting for tenant in ("acme", "zeta")]
    assert waiting == [2, 1]  # the first of each is its turn


def test_the_event_of_a_message_is_published_beside_it(app: Celery) -> None:
    app.conf.task_send_sent_event = True
    task = declare(app)
    assert by_receiver(task, "acme").outcome == "published"
    assert by_receiver(task, "acme").outcome == "skipped"


def test_a_receiver_is_called_before_the_key_only_where_that_has_headers(make_app: Any) -> None:
    app, seen = install(make_app()), list[str]()
    task = declare(app)
    with receiving(lambda headers, **_: seen.append(headers["id"])):
        calls = [task.delay("a") for _ in range(2)]
    assert seen == [calls[0].id]


def test_a_function_is_given_the_headers_that_a_receiver_adds(make_app: Any) -> None:
    app, seen = install(make_app()), list[dict[str, Any]]()

    def by_tenant(url: str, n: int = 0, *, headers: dict[str, Any]) -> str:
        seen.append(headers)
        return f"{headers.get(TENANT)}:{url}"

    task = declare(app, unique=Unique(key=by_tenant))
    calls = [by_receiver(task, tenant) for tenant in ("acme", "acme", "zeta")]
    assert [call.outcome for call in calls] == ["published", "skipped", "published"]
    assert [call.key for call in calls] == ["u=acme:a", "u=acme:a", "u=zeta:a"]
    assert seen == [{TENANT: tenant, "other": 1} for tenant in ("acme", "acme", "zeta")]


@pytest.mark.promise(
    "A look at a key that has headers names them, wrong names are refused, and a function gets the headers "
    "of the user alone",
    name="looks at key headers",
)
@pytest.mark.parametrize("verb", ["lock_state", "release_lock"])
def test_a_look_at_a_key_that_has_headers_needs_to_know_them(app: Celery, verb: str) -> None:
    task = declare(app)
    with pytest.raises(OptionError, match=rf"{verb}\(\.\.\., headers={{'{TENANT}': \.\.\.}}\)"):
        getattr(task, verb)("a")
    by_call(task, "acme")
    task.release_lock("a", headers={TENANT: "zeta"})
    assert task.lock_state("a", headers={TENANT: "acme", "other": 2}).is_queued
    task.release_lock("a", headers={TENANT: "acme"})
    assert not task.lock_state("a", headers={TENANT: "acme"}).is_queued


def test_an_argument_called_headers_is_an_argument_where_keys_have_none(make_app: Any) -> None:
    app = install(make_app())

    @app.task(name=NAME, shared=False, unique=Unique())
    def fetch(url: str, headers: Any = None) -> None: ...

    fetch.delay("a", headers={"accept": "json"})
    assert fetch.lock_state("a", headers={"accept": "json"}).is_queued
    assert not fetch.lock_state("a").is_queued


def test_a_recipes_duplicate_of_a_tenant_is_its_own_error(app: Celery) -> None:
    with pytest.warns(match="celery_exclusive"):
        task = declare(app, base=Singleton, raise_on_duplicate=True)
    first = by_call(task, "acme")
    with pytest.raises(Singleton.duplicate_error) as raised:
        by_call(task, "acme")
    assert raised.value.existing_id == first.id
    assert 0 < raised.value.remaining <= 86400
    task.release_lock(("a",), headers={TENANT: "acme"})
    assert by_call(task, "acme").id != first.id
