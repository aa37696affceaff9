"""What Celery really sends, whoever has added it to a call: keys and places go by that."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

import pytest
from celery import Celery
from celery.signals import before_task_publish

from celery_exclusive import Unique, install
from celery_exclusive.stores.memory import MemoryStore
from tests.worker.versions import needs_celery

pytestmark = pytest.mark.promise(
    "Key and message follow what Celery really sends: `expires` at the task, in an annotation, by an app's "
    "own `send_task` or as a property of the message; what a router adds; through which producer or "
    "connection",
    name="as Celery sends it",
    broke=(
        "red before: a key held for `queued_ttl`, a header of a route that was lost, a place that was not "
        "taken"
    ),
)

QUEUED_TTL = 1000
EXPIRES = 40
Message = dict[str, Any]


class ExpiringApp(Celery):
    """An app whose own `send_task` adds to each call, as many projects have one."""

    def send_task(self, name: str, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        options["expires"] = EXPIRES
        options["headers"] = {**(options.get("headers") or {}), "added": "by the app"}
        return super().send_task(name, args, kwargs, **options)


class Turns:
    """A router that sends each call to the next queue, and adds a header."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def __call__(self, name: str, args: Any, kwargs: Any, options: Message, task: Any = None) -> Message:
        self.asked.append({"name": name, "args": args, "kwargs": kwargs, "task": task, **options})
        return {"queue": f"queue-{len(self.asked)}", "headers": {"routed": len(self.asked)}}


@pytest.fixture
def messages() -> Iterator[list[Message]]:
    """Each message that is published, as Celery describes it."""
    seen: list[Message] = []

    def see(**message: Any) -> None:
        seen.append(message)

    before_task_publish.connect(see, weak=False)
    yield seen
    before_task_publish.disconnect(see)


def declare(app: Any, name: str = "feeds.load", **options: Any) -> Any:
    @app.task(name=name, shared=False, **{"unique": Unique(queued_ttl=QUEUED_TTL), **options})
    def load(url: str) -> None: ...

    app.finalize()
    return app.tasks[name]


def assert_held_as_long_as_its_message_lasts(task: Any, messages: list[Message]) -> None:
    (message,), remaining = messages, task.lock_state("a").unique_holder.remaining
    lasts: float = QUEUED_TTL
    if message["headers"]["expires"]:
        moment = datetime.fromisoformat(message["headers"]["expires"])
        lasts = (moment - datetime.now(timezone.utc)).total_seconds()
    assert lasts - 20 < remaining < lasts + 1


@pytest.mark.parametrize(
    ("declared", "called"),
    [
        ({"expires": EXPIRES}, {}),
        ({"expires": EXPIRES}, {"expires": None}),
        ({"expires": 10 * EXPIRES}, {"expires": EXPIRES}),
        ({}, {"expires": EXPIRES}),
    ],
    ids=str,
)
@pytest.mark.parametrize("where", ["at the task", "in an annotation"])
@pytest.mark.parametrize("how", ["by its task", "by its name", "by a signature"])
def test_a_unique_key_is_held_as_long_as_its_message_lasts(
    make_app: Callable[..., Celery],
    messages: list[Message],
    declared: Message,
    called: Message,
    where: str,
    how: str,
) -> None:
    annotations = {"feeds.load": declared} if where == "in an annotation" else {}
    app = install(make_app(task_annotations=annotations))
    task = declare(app, **({} if annotations else declared))
    if how == "by its task":
        task.apply_async(("a",), **called)
    elif how == "by its name":
        app.send_task(task.name, ("a",), **called)
    else:
        app.signature(task.name, ("a",)).apply_async(**called)
    assert_held_as_long_as_its_message_lasts(task, messages)


def test_a_unique_key_goes_by_what_the_send_task_of_a_subclass_adds(
    make_app: Callable[..., Celery], messages: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.unit.conftest.Celery", ExpiringApp)
    app = install(make_app())
    task = declare(app)
    first = task.delay("a")
    assert_held_as_long_as_its_message_lasts(task, messages)
    assert messages[0]["headers"]["added"] == "by the app"
    assert task.delay("a").existing_id == first.id
    assert app.send_task(task.name, ("a",)).outcome == "skipped"


def test_an_installed_app_is_of_its_class_and_is_copied_as_one_of_it(
    make_app: Callable[..., Celery], monkeypatch: pytest.MonkeyPatch
) -> None:
    for cls in (Celery, ExpiringApp):
        monkeypatch.setattr("tests.unit.conftest.Celery", cls)
        app = make_app()
        shown = repr(app)
        assert repr(install(app)) == shown
        assert isinstance(app, cls)
        copy = pickle.loads(pickle.dumps(app))
        assert type(copy) is cls
        assert copy.main == "feeds"
        copy.close()


def test_a_router_is_asked_once_and_what_it_adds_is_sent(
    make_app: Callable[..., Celery], messages: list[Message]
) -> None:
    ours, plain = Turns(), Turns()
    for router, option in ((ours, Unique()), (plain, None)):
        app = install(make_app(task_routes=router))
        task = declare(app, unique=option)
        task.apply_async(("a",), priority=3)
        app.send_task(task.name, ("b",), {}, 60, route_name="other")
        task.apply_async(("c",), headers={"routed": "by the call"}, queue="mine", router=app.amqp.router)
    assert len(ours.asked) == 3
    for asked in (*ours.asked, *plain.asked):
        asked["task"] = asked["task"] and asked["task"].name
        asked["queue"] = str(asked.get("queue"))
    assert ours.asked == plain.asked
    sent = [(each["routing_key"], each["headers"]["routed"]) for each in messages]
    assert sent[:3] == sent[3:] == [("queue-1", 1), ("queue-2", 2), ("mine", "by the call")]
    assert ["exclusive" in each["headers"] for each in messages] == [True] * 3 + [False] * 3


def test_an_expires_in_a_route_is_an_error_of_celerys_and_leaves_the_key_free(
    make_app: Callable[..., Celery], store: MemoryStore
) -> None:
    app = install(make_app(task_routes={"feeds.load": {"expires": EXPIRES}}))
    task = declare(app)
    with pytest.raises(TypeError, match="multiple values for argument 'expires'"):
        task.delay("a")
    assert task.lock_state("a").unique_holder is None


@needs_celery("5.7", "options of its task that a call by name has")
def test_a_call_by_name_is_sent_with_the_options_of_its_task_as_in_celery(
    make_app: Callable[..., Celery], messages: list[Message]
) -> None:
    sent = []
    for option in (Unique(), None):
        app = install(make_app())
        task = declare(app, unique=option, time_limit=30, expires=EXPIRES)
        app.send_task(task.name, ("a",))
        app.send_task(task.name, ("b",), time_limit=None, expires=None)
        headers = [message["headers"] for message in messages]
        sent.append([(header["timelimit"], bool(header["expires"])) for header in headers])
        messages.clear()
    assert sent[0] == sent[1] == [([30, None], True), ([None, None], False)]
