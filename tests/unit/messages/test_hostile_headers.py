"""A header that nobody of us wrote: it fails at most its own task, and holds no key for longer than ours."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.app.trace import build_tracer, trace_task_ret
from celery.utils import uuid
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from kombu import Message
from kombu.utils.imports import symbol_by_name
from kombu.utils.json import dumps, loads

from celery_exclusive import Exclusive, Unique, install
from celery_exclusive.core.operations import Acquire, Granted, Release
from celery_exclusive.core.records import SECOND
from celery_exclusive.errors import ExclusiveError
from celery_exclusive.messages.header import DELIVERY, HEADER
from celery_exclusive.options.amounts import LONGEST
from celery_exclusive.worker.other_stores import OtherStores
from celery_exclusive.worker.reading import read
from celery_exclusive.worker.undeclared import Undeclared

DAY = 86400
HUGE = [10**400, -(10**400), 2**63, 1e308, -1e308, float("inf"), float("nan")]
TEXTS = ["", "\0", "\ud800", "x" * 5000, "x:k", "u:k", "finished", "started", "period", "exclusive", "unique"]
deep: Any = []
for _ in range(300):
    deep = [deep] if len(repr(deep)) % 2 else {"a": deep}
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(codec=None), max_size=20),
    st.sampled_from(HUGE + TEXTS),
)
anything = st.recursive(
    scalars | st.just(deep),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
anything.validate()  # it reads this file, which may be another one when the first test begins
NAMES = (
    *("ttl", "limit", "queued_ttl", "period", "until", "on_conflict", "max_waiting", "on_full", "by", "key"),
    *("give_up_after", "on_store_error", "skip_result", "other"),
)
values = st.dictionaries(
    st.sampled_from(["exclusive", "unique", "other"]),
    st.dictionaries(st.sampled_from(NAMES), anything, max_size=3) | anything,
    max_size=2,
)
fields = st.fixed_dictionaries(
    {"v": st.just(1) | anything},
    optional={
        "id": st.just("p") | anything,
        **dict.fromkeys(("exclusive", "switched_off", "duplicate_of", "promoted", "published_by"), anything),
        **dict.fromkeys(("follows", "store", "priority", "redelivered"), anything),
        **dict.fromkeys(("offered", "route", "masked", "auto_delete"), anything),
        **dict.fromkeys(("tries", "since", "rejections", "sig", "other"), anything),
        "unique": st.tuples(st.just("u:k"), st.sampled_from(["finished", "started", "period"])) | anything,
        "values": values | anything,
    },
)


@pytest.fixture(params=["memory", "sqlite", "signed"])
def shop(request: pytest.FixtureRequest, make_app: Callable[..., Celery], tmp_path: Path) -> Iterator[Celery]:
    conf: dict[str, Any] = {"exclusive_store_wait": 0.1}
    if request.param == "sqlite":
        conf["exclusive_store"] = f"sqlite:///{tmp_path}/locks.db"
    if request.param == "signed":
        conf["exclusive_secret"] = "a secret of the shop"
    app = install(make_app(**conf))
    options: dict[str, dict[str, Any]] = {
        "wait": {"exclusive": Exclusive("n")},
        "again": {"exclusive": Exclusive("n", on_conflict="reschedule", give_up_after=9)},
        "once": {"unique": Unique("n"), "exclusive": Exclusive("n", on_conflict="skip")},
        "period": {"unique": Unique("n", period=60)},
        "plain": {},
    }
    for name, declared in options.items():
        app.task(name=name, shared=False, **declared)(work)
    app.finalize()
    app.amqp.queues.select(["celery"])
    for name in options:
        app.tasks[name].__trace__ = build_tracer(name, app.tasks[name], app=app)
    yield app
    app._celery_exclusive.courier.close()  # type: ignore[attr-defined]
    app._celery_exclusive.store.close()  # type: ignore[attr-defined]


def work(n: int) -> int:
    return n


@pytest.fixture
def ran(shop: Celery, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bodies that have run, by their argument."""
    known: list[int] = []

    def run(n: int) -> None:
        known.append(n)

    for name in ("wait", "once"):
        monkeypatch.setattr(shop.tasks[name], "run", run)
    return known


@contextmanager
def held(store: Any, keys: list[str]) -> Iterator[None]:
    """While somebody else has these locks; what an earlier message left in their lines is gone."""
    for key in keys:
        store.forget(key)
        answer = store.apply(key, Acquire("holder/1", "t", 30 * SECOND)).answer
        assert isinstance(answer, Granted), answer
    yield
    for key in keys:
        store.apply(key, Release("holder/1", "t"))


def message(name: str, body: Any = "[[1], {}, {}]", **changes: Any) -> Any:
    """A message of a publisher without this library."""
    fields = {
        "body": body,
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "headers": {"lang": "py", "task": name, "id": uuid(), "retries": 0},
        "properties": {"priority": 255},
        "delivery_info": {"exchange": "", "routing_key": "celery"},
    }
    return Message(**{**fields, **changes})


def deliver(app: Celery, name: str, header: Any) -> None:
    """What a worker does with a message, from its receipt to its end."""
    came = message(name)
    came.headers[HEADER] = header
    task: Any = app.tasks[name]
    unlocked = Undeclared(app._celery_exclusive)  # type: ignore[attr-defined]
    request = symbol_by_name(task.Request)(came, app=app, task=task, hostname="w")
    unlocked._receive(request)
    unlocked._revoke(task, request)
    delivered = request.request_dict.get(DELIVERY)
    unlocked._refuse(came)
    with suppress(ExclusiveError, TypeError):
        if delivered and (delivery := read(delivered, task, request.request_dict, [1], {})):
            delivery.stored.dump()
    if isinstance(fields := came.headers.get(HEADER), dict):
        OtherStores(app._celery_exclusive, "own").note(came.headers, fields)  # type: ignore[attr-defined]
    task.__trace__(request.id, [1], {}, request.request_dict)


@pytest.mark.promise(
    "Whatever a header says, no code of the worker raises, and without a secret it holds no key for longer "
    "than the task or the settings do",
    name="hostile headers",
    broke="no cap; any int as `tries`; half a surrogate pair as a key; any value as `values`",
)
@pytest.mark.parametrize("name", ["wait", "again", "once", "period", "plain"])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(header=fields | anything, is_held=st.booleans())
@example(header={"v": 1, "id": "p", "tries": -(10**400), "since": 10**400}, is_held=True)
@example(
    header={"v": 1, "id": "p", "values": {"unique": {"period": 1e300}, "exclusive": {"limit": 2**70}}},
    is_held=True,
)
@example(header={"v": 1, "id": "p", "values": {"unique": {"queued_ttl": 10**400}}}, is_held=True)
@example(header={"v": 1, "id": "p", "values": {"exclusive": {"give_up_after": 10**400}}}, is_held=True)
@example(header={"v": 1, "id": "p", "values": {"exclusive": [], "unique": 5}}, is_held=True)
@example(header={"v": 1, "id": "p", "exclusive": "\ud800", "unique": ["\ud800", "finished"]}, is_held=True)
@example(
    header={"v": 1, "id": "p", "unique": ["u:k", []], "switched_off": [[]], "priority": 10**9}, is_held=True
)
@example(header={"v": 1, "id": "p", "promoted": "e", "priority": deep}, is_held=True)
@example(header=deep, is_held=True)
def test_no_header_makes_the_worker_raise_or_hold_a_key_for_longer_than_a_day(
    shop: Celery, name: str, header: Any, is_held: bool
) -> None:
    try:
        arrived = loads(dumps(header))
    except (ValueError, RecursionError):  # nothing that could arrive
        return
    store = shop._celery_exclusive.store  # type: ignore[attr-defined]
    task: Any = shop.tasks[name]
    keys = [task.lock_state(1).key, "x:k"] if is_held and getattr(task, "exclusive", None) else []
    with held(store, keys):
        deliver(shop, name, arrived)
    for key in list(store.scan()):
        for holder in store.inspect(key).holders:
            assert holder.remaining <= DAY * SECOND


@pytest.mark.proves("hostile headers")
@pytest.mark.parametrize("name", ["ttl", "queued_ttl", "period"])
def test_without_a_secret_no_header_makes_a_time_longer_than_the_task_or_the_settings(
    shop: Celery, name: str
) -> None:
    services = shop._celery_exclusive  # type: ignore[attr-defined]
    given = services.unique(shop.tasks["once"], {"unique": {name: LONGEST}})
    longest = {"ttl": 30, "queued_ttl": DAY, "period": DAY}[name]
    assert getattr(given, name) == (LONGEST if services.signer.is_on else longest)
    short = services.unique(shop.tasks["once"], {"unique": {name: 9}})
    assert getattr(short, name) == 9


def test_a_time_that_the_task_declares_may_be_given_by_a_call_too(make_app: Callable[..., Celery]) -> None:
    app = install(make_app())
    task = app.task(name="rare", shared=False, unique=Unique(period=9 * DAY))(work)
    app.finalize()
    given = app._celery_exclusive.unique(task, {"unique": {"period": 8 * DAY}})  # type: ignore[attr-defined]
    assert given.period == 8 * DAY


def test_a_deeply_nested_header_is_what_a_message_can_bring() -> None:
    assert json.loads(json.dumps(deep)) == deep


@pytest.mark.promise(
    "A message body cannot replace the delivery or the task id in the child's request, so it does not run "
    "without its lock",
    broke="a delivery whose name is a string; a request with the id that the body says",
)
@pytest.mark.parametrize("name", ["once", "wait"])
@pytest.mark.parametrize(
    "said",
    [{"exclusive_delivery": None}, {"exclusive_delivery": {"a": 1}}, {"id": "another"}, {"is_eager": True}],
)
def test_no_body_of_a_message_makes_its_task_run_beside_the_holder(
    shop: Celery, name: str, said: dict[str, Any], ran: list[int]
) -> None:
    """Celery adds what stands in the body beside the arguments to the request that the child gets."""
    task: Any = shop.tasks[name]
    body = json.dumps([[1], {}, said])
    made = symbol_by_name(task.Request)(message(name, body), app=shop, task=task, hostname="w")
    with held(shop._celery_exclusive.store, [task.lock_state(1).key]):  # type: ignore[attr-defined]
        trace_task_ret(name, made.id, made.request_dict, body, "application/json", "utf-8", app=shop)
    assert not ran


@pytest.mark.promise(
    "A message that cannot be read fails, and the consumer goes on",
    broke="an error while the request is made",
)
@pytest.mark.parametrize(
    "broken",
    [
        {"delivery_info": {"sqs_message": 5}},
        {"delivery_info": {"sqs_message": {"Attributes": {"ApproximateReceiveCount": "x"}}}},
        {"delivery_info": {"pgmq_message": {"read_ct": "x"}}},
        {"body": [[1], {}, {}], "content_type": "application/data", "content_encoding": "binary"},
    ],
)
def test_a_message_that_cannot_be_read_fails_and_the_consumer_goes_on(
    shop: Celery, broken: dict[str, Any], ran: list[int]
) -> None:
    task: Any = shop.tasks["wait"]
    came = message("wait", **broken)
    made = symbol_by_name(task.Request)(came, app=shop, task=task, hostname="w")
    task.__trace__(made.id, [1], {}, pickle.loads(pickle.dumps(made.request_dict)))
    assert not ran
