"""Where broker and store are one Redis database, one call acquires a unique key and sends its message.

Where they are two, the store works on the request while the message is made.
"""

from __future__ import annotations

import copy
import json
import os
import re
import signal
import sys
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import wraps
from types import MethodType
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
import redis
from celery import Celery, _state, chain, chord, group, signature
from celery.signals import after_task_publish, before_task_publish, task_sent
from kombu import Exchange, Producer, Queue
from kombu.transport.redis import Channel

from celery_exclusive import (
    Debounce,
    DuplicateTask,
    Exclusive,
    OptionError,
    StoreUnavailable,
    Unique,
    install,
)
from celery_exclusive.core.claim import Claim
from celery_exclusive.core.operations import Acquire
from celery_exclusive.publishing import asking
from celery_exclusive.publishing.publisher import PUBLISHER
from celery_exclusive.run import Run, UniqueLease, within
from celery_exclusive.stores.redis.store import RedisStore
from tests.proxy import Proxy
from tests.servers import RedisServer
from tests.worker.journal import eventually
from tests.worker.lab import disconnect

BY_CLIENTS = ("evalsha", "eval", "lpush", "rpush", "sadd", "ping", "smembers", "publish")
STEP = 9
"""Of every so many calls of functions, one is where the publisher dies."""


@pytest.fixture
def make_app() -> Iterator[Callable[..., Celery]]:
    apps, finalizers = [], set(_state._on_app_finalizers)

    def make(url: str, **conf: Any) -> Celery:
        app = install(Celery("feeds", broker=url, set_as_current=False))
        app.conf.update({"exclusive_store": url, **conf})
        apps.append(app)

        @app.task(name="feeds.load", shared=False, unique=Unique("url"))
        def load(url: str) -> None: ...

        @app.task(name="feeds.rank", shared=False, exclusive=Exclusive("url", order="published"))
        def rank(url: str) -> None: ...

        @app.task(name="feeds.both", shared=False, unique=Unique("url"), exclusive=Exclusive("url"))
        def both(url: str) -> None: ...

        @app.task(name="feeds.settle", shared=False, unique=Debounce("url", wait=60, max_wait=60))
        def settle(url: str) -> None: ...

        app.finalize()
        return app

    yield make
    for app in apps:
        app._celery_exclusive.releaser.drain()
        disconnect(app)
        app.close()
    _state._on_app_finalizers &= finalizers


@pytest.fixture
def pushes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each call that was to acquire and push: whether the server has answered, and did not refuse."""
    seen: list[bool] = []
    acquire_and_push = RedisStore.acquire_and_push

    def see(*args: Any) -> Any:
        reply = acquire_and_push(*args)
        seen.append(reply is not None)
        return reply

    monkeypatch.setattr(RedisStore, "acquire_and_push", see)
    return seen


def load(app: Celery) -> Any:
    return app.tasks["feeds.load"]


def rank(app: Celery) -> Any:
    """A task whose calls take their places in line."""
    return app.tasks["feeds.rank"]


def settle(app: Celery) -> Any:
    """A task whose calls wait in a window."""
    return app.tasks["feeds.settle"]


def in_line(app: Celery, url: str = "a") -> int:
    return int(rank(app).lock_state(url).waiting)


def lists(server: RedisServer) -> dict[bytes, list[bytes]]:
    with server.client() as client:
        return {name: client.lrange(name, 0, -1) for name in client.scan_iter(_type="list")}


def messages(server: RedisServer) -> int:
    return sum(map(len, lists(server).values()))


def commands(server: RedisServer, call: Callable[[], object]) -> Counter[str]:
    """Return the commands that clients and scripts have sent to publish."""
    with server.client() as client:
        client.config_resetstat()
        call()
        stats = client.info("commandstats")
    return Counter(
        {name: stats[f"cmdstat_{name}"]["calls"] for name in BY_CLIENTS if f"cmdstat_{name}" in stats}
    )


def holder(app: Celery, url: str = "a") -> Any:
    return load(app).lock_state(url).unique_holder


def holder_of(app: Celery, key: str) -> str:
    (owner,) = app._celery_exclusive.store.inspect(key).holders
    return str(owner.id.partition("/")[0])


@pytest.mark.promise(
    "With `replicas=` a unique call sends its message only when its key is confirmed: one that fails, and "
    "is called again, leaves none",
    broke="red before: the message went in the call that was then refused",
)
def test_a_call_whose_lease_no_replica_confirms_sends_nothing(
    make_app: Any, redis_url: str, redis_server: RedisServer
) -> None:
    """Its caller gets an error and calls again: each message would run."""
    app = make_app(redis_url, exclusive_store=f"{redis_url}?replicas=1&socket_timeout=4")
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="0 of 1 replicas confirmed it"):
            load(app).delay("a")
    assert messages(redis_server) == 0
    eventually(lambda: holder(app) is None, "the release of what was granted")


@pytest.mark.proves("one command")
@pytest.mark.parametrize(
    ("transport_options", "options", "conf"),
    [
        ({}, {}, {}),
        ({}, {"priority": 0}, {}),
        ({}, {"priority": 5}, {}),
        ({}, {"priority": 9}, {}),
        ({"priority_steps": list(range(10))}, {"priority": 7}, {}),
        ({"priority_steps": [0, 4], "sep": ":"}, {"priority": 4}, {}),
        ({"global_keyprefix": "broker-é:"}, {"priority": 3}, {}),
        ({"global_keyprefix": "broker:"}, {}, {}),
        ({}, {"compression": "zlib"}, {}),
        ({}, {"serializer": "pickle"}, {"accept_content": ["pickle"]}),
        ({}, {"queue": "queue-ü"}, {}),
        ({}, {"countdown": 60, "expires": 90, "headers": {"own": "häder"}}, {}),
        ({}, {}, {"task_send_sent_event": True}),
        ({"body_encoding": None}, {}, {}),
    ],
    ids=str,
)
def test_a_pushed_message_is_byte_for_byte_the_message_that_kombu_pushes(
    make_app: Any,
    redis_url: str,
    redis_server: RedisServer,
    pushes: list[bool],
    monkeypatch: pytest.MonkeyPatch,
    transport_options: dict[str, Any],
    options: dict[str, Any],
    conf: dict[str, Any],
) -> None:
    app = make_app(redis_url, broker_transport_options=transport_options, **conf)
    prepared: list[tuple[str, Any]] = []
    prepare = Channel._inplace_augment_message

    def see(channel: Any, message: Any, exchange: str, routing_key: str) -> None:
        prepare(channel, message, exchange, routing_key)
        if not exchange:
            prepared.append((routing_key, copy.deepcopy(message)))

    monkeypatch.setattr(Channel, "_inplace_augment_message", see)
    assert load(app).apply_async(("ä",), **options).outcome == "published"
    assert pushes == [True]
    ours = lists(redis_server)
    redis_server.refresh()
    ((queue, message),) = prepared
    with app.connection_for_write() as connection:
        connection.default_channel._put(queue, message)
    assert ours == lists(redis_server)
    assert messages(redis_server) == 1


@pytest.mark.promise(
    "Where broker and store are one Redis database, key and message go in one command, byte for byte what "
    "kombu pushes (priorities, steps, separator, prefix, compression, kombu 5.4 to 5.7). A publisher that "
    "is killed at any moment leaves both or neither",
    name="one command",
    broke="acquired and pushed in two commands; the prefix left out",
)
def test_a_publish_is_one_command_and_a_duplicate_is_none_more_and_is_not_sent(
    make_app: Any, redis_url: str, redis_server: RedisServer
) -> None:
    app = make_app(redis_url)
    load(app).delay("warm up")
    load(app).lock_state("warm up")

    def sent(url: str) -> Counter[str]:
        return +commands(redis_server, lambda: load(app).delay(url))

    assert sent("a") == Counter(evalsha=1, lpush=1)  # the push is one of the script
    assert sent("a") == Counter(evalsha=1)  # made, and not sent
    assert sent("a") == Counter()  # only looked at, without a script
    with redis_server.client() as client:
        stats = client.info("commandstats")
        assert [stats[f"cmdstat_{name}"]["calls"] for name in ("time", "hgetall")] == [1, 1]
    assert sent("b") == Counter(evalsha=1, lpush=1)  # looked at, and sent
    assert sent("c") == Counter(evalsha=1, lpush=1)
    assert messages(redis_server) == 4


@pytest.mark.proves("refused at once")
def test_a_burst_of_duplicates_of_a_message_in_line_runs_no_script_within_an_offer(
    make_app: Any, redis_url: str, redis_server: RedisServer
) -> None:
    app = make_app(redis_url, exclusive_offer=600)
    both, publisher = app.tasks["feeds.both"], getattr(app, PUBLISHER)
    first = both.delay("a")

    def sent() -> Counter[str]:
        return +commands(redis_server, lambda: both.delay("a"))

    for _ in range(2):
        assert sent() == Counter(evalsha=1)
        assert sent() == sent() == Counter()  # only looked at
        publisher.waits_behind.clear()  # as after an offer
    assert both.delay("a").existing_id == first.id
    assert both.delay("b").outcome == "published"
    assert messages(redis_server) == 2


@pytest.mark.proves("one command")
def test_a_message_that_kombu_sends_again_acquires_its_key_once(
    make_app: Callable[..., Celery],
    redis_server: RedisServer,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app, put, tries = make_app(redis_url), Channel._put, list[str]()
    load(app).delay("a")

    def fail_once(channel: Any, queue: str, *args: Any, **options: Any) -> Any:
        tries.append(queue)
        if len(tries) == 1:
            raise redis.ConnectionError("lost")
        return put(channel, queue, *args, **options)

    monkeypatch.setattr(Channel, "_put", fail_once)
    seen = commands(redis_server, lambda: load(app).delay("b"))
    assert len(tries) == 2
    assert seen["evalsha"] == 1


def test_a_duplicate_gets_the_handle_of_the_task_that_holds_the_key_or_an_error(
    make_app: Any, redis_url: str, redis_server: RedisServer, pushes: list[bool]
) -> None:
    app = make_app(redis_url)
    first = load(app).delay("a")
    assert (first.outcome, first.existing_id) == ("published", None)
    assert holder(app).task_id == first.id
    for _ in range(3):
        other = load(app).delay("a")
        assert (other.outcome, other.existing_id, other.key) == ("skipped", first.id, first.key)
        assert other.id == first.id
    with pytest.raises(DuplicateTask, match=first.id):
        load(app).apply_async(("a",), unique=Unique("url", on_conflict="raise"))
    assert messages(redis_server) == 1
    assert pushes == [True, True]  # the others were known by then


@pytest.mark.promise(
    "A call that follows a refused call of its task is refused, sent as a duplicate, or an error exactly as "
    "any other call: with links, canvases, a retry, an own id, headers, options of the call, within runs, on "
    "an expired lease and without an answer of the store. If it is refused, its message is not made, and the "
    "store runs no script",
    name="refused at once",
    broke="refused before: an own id, a retry, members of canvases, a call within its own run, at the end of "
    "a run, with results by rpc, with a receiver, that may go without its key, with a wrong argument of the "
    "other option; an expired lease counted; a silent store asked again",
    figure="[speed](project/speed.md)",
)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"countdown": 50},
        {"eta": datetime(2100, 1, 1, tzinfo=timezone.utc), "expires": 90},
        {"task_id": "by hand"},
        {"task_id": "first"},
        {"retries": 1},
        {"link": signature("feeds.load", ("linked",))},
        {"link_error": signature("feeds.load", ("linked",))},
        {"chain": [signature("feeds.load", ("next",))]},
        {"group_id": "group"},
        {"chord": signature("feeds.load", ("body",))},
        {"reply_to": "somewhere"},
        {"parent_id": "parent"},
        {"headers": {"own": 1}},
        {"headers": {"celery_beat_task": True}, "unique": Unique("url", on_conflict="raise")},
        {"headers": {"exclusive": {"v": 1, "id": "earlier"}}},
        {"headers": {"exclusive": {"v": 1, "id": "earlier"}}, "retries": 1},
        {"unique": None},
        {"unique": Unique("url", on_conflict="raise")},
        {"unique": Unique("url", on_store_error="allow")},
        {"unique": Unique()},
        {"exclusive": Exclusive(key=lambda url: url + 1)},
        {"exclusive": Exclusive("url", order="published")},
        {"args": ()},
        {"args": (Exception,)},
        {"uniqe": None},
    ],
    ids=lambda options: str(options)[:60],
)
def test_a_call_that_follows_a_refused_one_is_decided_about_as_any_other(
    make_app: Any, redis_url: str, redis_server: RedisServer, options: dict[str, Any]
) -> None:
    app = make_app(redis_url)
    load(app).apply_async(("a",), task_id="first")
    publisher = getattr(app, PUBLISHER)

    def publish() -> tuple[Any, ...]:
        before = {name: len(sent) for name, sent in lists(redis_server).items()}
        called = dict(options)
        try:
            result = load(app).apply_async(called.pop("args", ("a",)), **called)
            outcome: Any = (result.outcome, result.existing_id, result.key, type(result))
        except (DuplicateTask, OptionError, TypeError) as error:
            outcome = (type(error), re.sub("0x[0-9a-f]+", "", str(error)))
        added = {name: sent[: len(sent) - before.get(name, 0)] for name, sent in lists(redis_server).items()}
        headers = [json.loads(each)["headers"]["exclusive"] for sent in added.values() for each in sent]
        return outcome, [{**header, "id": ""} for header in headers]

    publisher.refused_lately.clear()
    as_any_other = publish()
    for _ in range(2):
        load(app).delay("a")
        assert publisher.refused_lately == {"feeds.load": 2}
        assert publish() == as_any_other


@pytest.mark.proves("refused at once")
@pytest.mark.parametrize("is_over", [False, True])
@pytest.mark.parametrize("holds_it", [False, True])
def test_a_call_of_a_run_that_follows_a_refused_one_is_decided_about_as_any_other(
    make_app: Any, redis_url: str, redis_server: RedisServer, is_over: bool, holds_it: bool
) -> None:
    app = make_app(redis_url)
    first = load(app).delay("a")
    publisher = getattr(app, PUBLISHER)

    def publish() -> tuple[Any, ...]:
        run = Run(first.id, body_begun=True, body_over=is_over)
        if holds_it:
            run.unique = UniqueLease(
                Claim(str(first.key), f"{first.id}/1", "token", 1), "finished", may_hold=True
            )
        before = messages(redis_server)
        with within(run):
            try:
                result = load(app).delay("a")
                return result.outcome, result.existing_id, messages(redis_server) - before
            except DuplicateTask as error:
                return str(error), error.existing_id, messages(redis_server) - before

    publisher.refused_lately.clear()
    as_any_other = publish()
    load(app).delay("a")
    assert publisher.refused_lately == {"feeds.load": 2}
    assert publish() == as_any_other


@pytest.mark.proves("refused at once")
def test_a_refused_call_on_a_dropped_connection_is_refused_again(
    make_app: Any, redis_url: str, redis_server: RedisServer
) -> None:
    app = make_app(redis_url)
    first = load(app).delay("a")
    for _ in range(2):
        load(app).delay("a")
        with redis_server.client() as client:
            client.client_kill_filter(_type="normal", skipme=True)
        assert load(app).delay("a").id == first.id
    assert messages(redis_server) == 1


@pytest.mark.proves("refused at once")
def test_a_call_that_follows_a_refused_one_waits_once_for_a_silent_store(
    make_app: Any, redis_url: str, redis_server: RedisServer, proxy: Proxy
) -> None:
    app = far_app(make_app, redis_url, proxy)
    load(app).delay("a")
    load(app).delay("a")
    proxy.withhold(b"HGETALL")
    with pytest.raises(StoreUnavailable, match="does not answer"):
        load(app).delay("a")
    assert len(proxy.met) == 1
    assert messages(redis_server) == 1


@pytest.mark.proves("refused at once")
def test_a_call_that_follows_a_refused_one_may_go_without_its_key_while_the_store_is_away(
    make_app: Any, redis_url: str, redis_server: RedisServer, proxy: Proxy
) -> None:
    app = far_app(make_app, redis_url, proxy)
    load(app).delay("a")
    load(app).delay("a")
    proxy.drop(replies=True)
    option = Unique("url", on_store_error="allow")
    assert load(app).apply_async(("a",), unique=option).outcome == "published"
    assert messages(redis_server) == 2


@pytest.mark.proves("refused at once")
def test_a_call_whose_arguments_do_not_fit_is_left_to_the_worker_also_after_a_refused_one(
    make_app: Any, redis_url: str, redis_server: RedisServer
) -> None:
    app = make_app(redis_url)
    load(app).delay("a")
    load(app).delay("a")
    assert app.send_task("feeds.load", ("a", "and more")).outcome == "published"
    assert app.send_task("feeds.load", ("a",)).outcome == "skipped"
    assert messages(redis_server) == 2


@pytest.mark.proves("refused at once")
def test_a_receiver_adds_a_part_of_the_key_also_after_a_refused_call(
    make_app: Any, redis_url: str, redis_server: RedisServer
) -> None:
    app = make_app(redis_url, exclusive_key_headers=["tenant"])
    load(app).delay("a")
    load(app).delay("a")

    @before_task_publish.connect
    def add(headers: dict[str, Any], **_: Any) -> None:
        headers["tenant"] = "acme"

    try:
        assert load(app).delay("a").outcome == "published"
    finally:
        before_task_publish.disconnect(add)
    assert load(app).delay("a").outcome == "skipped"
    assert load(app).apply_async(("a",), headers={"tenant": "another"}).outcome == "published"
    assert messages(redis_server) == 3


@pytest.mark.proves("refused at once")
def test_a_caller_that_waits_for_a_result_by_rpc_gets_it_also_after_a_refused_call(
    make_app: Any, redis_url: str, redis_server: RedisServer
) -> None:
    app = make_app(redis_url, result_backend="rpc://")
    load(app).delay("a")
    load(app).apply_async(("a",), ignore_result=True)
    assert getattr(app, PUBLISHER).refused_lately == {"feeds.load": 2}
    load(app).delay("a")
    assert messages(redis_server) == 2


@pytest.mark.promise(
    "In one command: a duplicate has no after_task_publish, no event, no subscription, and, if a receiver "
    "is connected, no before_task_publish",
    name="one command, duplicate",
    broke="the subscription stays; sent in one call in spite of a receiver",
)
def test_signals_and_events_of_a_publish_do_not_follow_a_duplicate(
    make_app: Any, redis_url: str, redis_server: RedisServer
) -> None:
    app = make_app(redis_url, result_backend=redis_url, task_send_sent_event=True)
    after: list[str] = []

    def see(sender: str, **_: Any) -> None:
        after.append(sender)

    events: list[str] = []
    app.amqp._event_dispatcher.publish = lambda name, *_, **__: events.append(name)
    with redis_server.client() as client:
        for signal_ in (after_task_publish, task_sent):
            signal_.connect(see)
        first = load(app).delay("a")
        assert after == ["feeds.load"] * 2
        assert events == ["task-sent"]
        load(app).delay("a")
        load(app).delay("a")
        for signal_ in (after_task_publish, task_sent):
            signal_.disconnect(see)
        assert after == ["feeds.load"] * 2
        assert events == ["task-sent"]
        eventually(
            lambda: set(client.pubsub_channels()) <= {f"celery-task-meta-{first.id}".encode()},
            "the end of the subscription to a result that never comes",
        )


@pytest.mark.promise(
    "In one command: Celery's event of a call is sent after its message, and a duplicate has none",
    broke="taken for the message: it never came",
)
def test_the_event_of_a_call_is_sent_after_its_message(
    make_app: Any, redis_url: str, redis_server: RedisServer
) -> None:
    app = make_app(redis_url, task_send_sent_event=True)
    with redis_server.client() as client, client.pubsub() as listener:
        listener.psubscribe("*celeryev*")
        results = [load(app).delay(url) for url in "aab"]
        sent = listener.listen()
        assert next(sent)["type"] == "psubscribe"
        events = [json.loads(b64decode(json.loads(next(sent)["data"])["body"])) for _ in range(2)]
    assert [event["uuid"] for event in events] == [results[0].id, results[2].id]


@pytest.mark.proves("one command, duplicate")
def test_a_receiver_that_sees_a_message_before_it_is_sent_sees_no_duplicate(
    make_app: Any, redis_url: str, pushes: list[bool]
) -> None:
    app = make_app(redis_url)
    before: list[str] = []

    def see(headers: Any, **_: Any) -> None:
        before.append(headers["id"])

    before_task_publish.connect(see)
    try:
        results = [load(app).delay("a") for _ in range(3)]
    finally:
        before_task_publish.disconnect(see)
    assert before == [results[0].id]
    assert not pushes


class Wrapper:
    """What wrapt makes of a method, as some tracers do: an object that looks like the method in all else."""

    def __init__(self, method: Any, traced: Any) -> None:
        self._method, self._traced = method, traced

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def __eq__(self, other: object) -> bool:
        return self._method == other

    def __hash__(self) -> int:
        return hash(self._method)

    def __get__(self, instance: Any, cls: Any) -> Any:
        return MethodType(self._traced, instance) if instance else self


@pytest.mark.promise(
    "A tracer that wraps `Celery.send_task`, `Producer.publish` or what kombu sends a message by, as a "
    "function or as an object, sees each call that is sent, no duplicate and no error, also if it comes "
    "when calls were sent before, with the store in the broker's database or in another",
    broke="red before: `_NotSent` for each duplicate; pushed past the tracer",
)
@pytest.mark.parametrize("is_object", [False, True], ids=["function", "object"])
@pytest.mark.parametrize(
    "method",
    [
        (Celery, "send_task"),
        (Producer, "publish"),
        (Producer, "_publish"),
        (Channel, "basic_publish"),
        (Channel, "_put"),
    ],
    ids=lambda method: method[1],
)
@pytest.mark.parametrize("place", ["one place", "two places"])
def test_a_tracer_around_a_publish_sees_no_duplicate_and_no_error(
    make_app: Any,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    method: tuple[Any, str],
    is_object: bool,
    place: str,
) -> None:
    spans: list[BaseException | None] = []
    original = getattr(*method)

    @wraps(original)
    def traced(*args: Any, **options: Any) -> Any:
        with ExitStack() as span:
            span.push(lambda _, error, __: spans.append(error))
            return original(*args, **options)

    store = redis_url if place == "one place" else redis_url.replace("/0", "/3")
    app = make_app(redis_url, exclusive_store=store)
    load(app).delay("before the tracer comes")
    monkeypatch.setattr(*method, Wrapper(original, traced) if is_object else traced)
    assert load(app).delay("a").outcome == "published"
    assert load(app).delay("a").outcome == "skipped"
    assert spans == [None]


@pytest.mark.proves("one command")
@pytest.mark.parametrize(
    ("task", "is_kept"), [(load, holder), (rank, in_line)], ids=["unique", "in the order of publishing"]
)
def test_a_publisher_that_is_killed_at_any_moment_leaves_a_key_with_its_message_or_neither(
    make_app: Any,
    redis_url: str,
    redis_server: RedisServer,
    task: Callable[[Celery], Any],
    is_kept: Callable[[Celery, str], Any],
) -> None:
    app = make_app(redis_url)
    task(app).delay("warm up")
    outcomes: Counter[bool] = Counter()
    for moment in range(1, 5000, STEP):
        url = f"url {moment}"
        base = messages(redis_server)
        died = _publish_and_die(task(app), url, moment)
        is_sent = messages(redis_server) - base == 2  # one was sent before
        assert bool(is_kept(app, url)) == is_sent, f"killed at its call {moment}"
        outcomes[is_sent] += 1
        if not died:
            break
    assert not died
    assert outcomes[True] > 2  # also right after it was sent
    assert outcomes[False] > 10


def _publish_and_die(task: Any, url: str, moment: int) -> bool:
    """Publish in a process that kills itself at its n-th call of a function; return whether it did."""
    pid = os.fork()
    if not pid:
        count = 0

        def die(_: Any, event: str, __: Any) -> None:
            nonlocal count
            count += event == "call"
            if count == moment:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            task.delay(f"{url} before")  # on connections of its own
            sys.setprofile(die)
            task.delay(url)
            sys.setprofile(None)
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status)


@pytest.fixture
def network(redis_url: str, redis_server: RedisServer) -> Iterator[Proxy]:
    with Proxy(redis_server.port) as network:
        yield network


@pytest.mark.promise(
    "In one command: a lost answer sends nothing twice, an error leaves no key, and a request that arrives "
    "late neither acquires nor pushes",
    name="one command, lost answer",
    broke="pushed for a lease that is there; the lease stored before the push",
)
def test_a_message_whose_answer_is_lost_is_sent_once(
    make_app: Any, network: Proxy, redis_server: RedisServer, pushes: list[bool]
) -> None:
    app = make_app(f"redis://127.0.0.1:{network.port}/0")
    load(app).delay("warm up")
    for number in range(3):
        network.lose(b"\r\nacquire_alone\r\n")
        assert load(app).delay(f"{number}").outcome == "published"
    assert len(network.met) == 3
    assert messages(redis_server) == 4
    assert pushes == [True] * 4


@pytest.mark.proves("one command, lost answer")
def test_a_repetition_finds_its_message_running_already(
    make_app: Any, redis_url: str, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(redis_url)
    acquire_and_push = RedisStore.acquire_and_push

    def again(store: Any, key: str, operation: Any, *rest: Any) -> Any:
        acquire_and_push(store, key, operation, *rest)
        store.apply(key, replace(operation, token="of a delivery", phase="running"))
        return acquire_and_push(store, key, operation, *rest)

    monkeypatch.setattr(RedisStore, "acquire_and_push", again)
    assert load(app).delay("a").outcome == "published"
    assert messages(redis_server) == 1


def impatient_app(make_app: Any, network: Proxy) -> Any:
    """An app that has sent a call through this network, and waits half a second for its store there."""
    url = f"redis://127.0.0.1:{network.port}/0"
    app = make_app(url, exclusive_store=f"{url}?socket_timeout=0.5")
    load(app).delay("warm up")
    return app


@pytest.mark.proves("one command, lost answer")
def test_a_call_that_fails_since_no_answer_comes_leaves_the_key_to_its_message_if_that_was_sent(
    make_app: Any, network: Proxy, redis_server: RedisServer
) -> None:
    app = impatient_app(make_app, network)
    network.lose(b"\r\nacquire_alone\r\n", times=2)
    with pytest.raises(StoreUnavailable, match=r"task feeds.load\[\S+\] may have been sent") as error:
        load(app).delay("lost")
    app._celery_exclusive.releaser.drain()
    assert holder(app, "lost").task_id == error.value.task_id
    assert messages(redis_server) == 2  # it was sent in spite of the error
    network.withhold(b"\r\nacquire_alone\r\n")
    with pytest.raises(StoreUnavailable, match="may have been sent"):
        load(app).delay("late")
    app._celery_exclusive.releaser.drain()
    network.deliver()
    eventually(lambda: not network.is_on_its_way, "the arrival of the request")
    assert holder(app, "late") is None
    assert messages(redis_server) == 2


@pytest.mark.proves("one command, lost answer")
def test_a_member_of_a_canvas_is_sent_once_though_no_answer_comes_or_the_request_arrives_later(
    make_app: Any, network: Proxy, redis_server: RedisServer
) -> None:
    app = impatient_app(make_app, network)
    network.lose(b"\r\nacquire_alone\r\n", times=2)
    assert load(app).apply_async(("lost",), task_id="one", group_id="group").outcome == "published"
    network.withhold(b"\r\nacquire_alone\r\n")
    assert load(app).apply_async(("late",), task_id="other", group_id="group").outcome == "published"
    network.deliver()
    eventually(lambda: not network.is_on_its_way, "the arrival of the request")
    assert len(network.met) == 3
    assert messages(redis_server) == 3
    assert [holder(app, url).task_id for url in ("lost", "late")] == ["one", "other"]


def test_dropped_connections_of_a_producer_are_made_anew(
    make_app: Any, redis_url: str, redis_server: RedisServer, pushes: list[bool]
) -> None:
    app = make_app(redis_url)
    load(app).delay("a")
    with redis_server.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)
    assert load(app).delay("b").outcome == "published"
    assert messages(redis_server) == 2
    assert pushes == [True, True]


def test_the_error_without_a_server_is_the_error_of_the_store(make_app: Any, start_redis: Any) -> None:
    server = start_redis()
    app = make_app(server.url, broker_transport_options={"socket_connect_timeout": 1})
    app.conf.task_publish_retry_policy = {"max_retries": 1, "interval_start": 0, "interval_max": 0}
    server.kill()
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            load(app).delay("a")
    server.start()
    assert load(app).delay("a").outcome == "published"


def test_a_task_that_cannot_be_sent_leaves_the_key_free(make_app: Any, redis_url: str) -> None:
    app = make_app(redis_url)
    with pytest.raises(TypeError):
        load(app).apply_async(("a",), headers={"no": object()})
    assert holder(app) is None


def to_exchange(app: Celery, **options: Any) -> Any:
    exchange = Exchange("news", type=options.pop("type"))
    app.conf.task_queues = [Queue("one", exchange, "key"), Queue("two", exchange, "key")]
    for queue in app.conf.task_queues:
        with app.connection_for_write() as connection:
            queue(connection.default_channel).declare()
    return load(app).apply_async(("a",), exchange="news", routing_key="key", **options)


@pytest.mark.proves("plain way of a unique call")
@pytest.mark.parametrize("kind", ["direct", "topic"])
def test_several_queues_get_their_message_after_the_key_was_acquired(
    make_app: Any, redis_url: str, redis_server: RedisServer, pushes: list[bool], kind: str
) -> None:
    app = make_app(redis_url)
    first = to_exchange(app, type=kind, exchange_type=kind)
    assert holder(app).task_id == first.id
    assert messages(redis_server) == 2
    assert to_exchange(app, type=kind, exchange_type=kind).outcome == "skipped"
    assert messages(redis_server) == 2
    assert not pushes


@pytest.mark.proves("plain way of a unique call")
def test_a_broadcast_acquires_the_key_before(make_app: Any, redis_url: str, pushes: list[bool]) -> None:
    app = make_app(redis_url)
    first = to_exchange(app, type="fanout", exchange_type="fanout")
    assert holder(app).task_id == first.id
    assert to_exchange(app, type="fanout", exchange_type="fanout").outcome == "skipped"
    assert not pushes


@pytest.mark.promise(
    "A sender of the user's in place of Celery's publishes under the unique key, and a mock in place of "
    "`Producer.publish` raises nothing",
    name="sender of the user",
    broke="red before: three messages of one key were sent, and each call raised AttributeError",
)
def test_a_sender_of_the_user_is_called_under_the_key_and_not_for_a_duplicate(
    make_app: Any, redis_url: str, redis_server: RedisServer
) -> None:
    app = make_app(redis_url)
    celerys = app.amqp.send_task_message

    def send(_: Any, *message: Any, **options: Any) -> Any:
        with app.connection_for_write() as connection:
            return celerys(Producer(connection), *message, **options)

    app.amqp.send_task_message = send
    assert [load(app).delay("a").outcome for _ in range(3)] == ["published", "skipped", "skipped"]
    assert messages(redis_server) == 1


@pytest.mark.proves("sender of the user")
def test_a_mock_in_place_of_a_publish_of_kombu_raises_nothing(
    make_app: Any, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, publish = make_app(redis_url), Mock()
    monkeypatch.setattr(Producer, "publish", publish)
    assert load(app).delay("a").outcome == "published"
    assert publish.called


@pytest.mark.promise(
    "A project's test that puts a mock in place of Celery's producer calls a task whose option names no "
    "order as one without options",
    broke="red before: OptionError with an order that the caller never gave",
)
def test_a_mock_in_place_of_the_producer_raises_nothing_unless_an_order_is_given(
    make_app: Any, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(redis_url)
    monkeypatch.setattr(app, "producer_or_acquire", MagicMock())
    assert rank(app).apply_async(("a",), exclusive=Exclusive("url")).outcome == "published"
    with pytest.raises(OptionError, match=r"no kombu\.Producer"):
        rank(app).delay("a")


@pytest.mark.promise(
    "All other calls acquire the key first: a batch of kombu, another database, server, producer or kombu, "
    "several queues, fanout, a queue that expires, a large message, a user without rights on the queue",
    name="plain way of a unique call",
    broke="databases not compared; the connection not looked at",
)
def test_another_database_or_server_or_producer_goes_the_plain_way(
    make_app: Any, redis_url: str, redis_server: RedisServer, pushes: list[bool], store: RedisServer
) -> None:
    for other in (redis_url.replace("/0", "/3"), store.url):
        app = make_app(redis_url, exclusive_store=other)
        assert load(app).delay("a").outcome == "published"
        assert load(app).delay("a").outcome == "skipped"
    assert messages(redis_server) == 2
    app = make_app(redis_url)
    with app.connection_for_write() as connection, app.amqp.Producer(connection) as producer:
        assert load(app).apply_async(("b",), producer=producer).outcome == "published"
        assert load(app).apply_async(("b",), connection=connection).outcome == "skipped"
    assert messages(redis_server) == 3
    assert not pushes


@pytest.mark.promise(
    "In one command: members of groups, chords and chains go the same way, and duplicates among them are "
    "sent as such",
    broke="the group's own producer refused",
)
def test_members_of_canvases_are_sent_in_one_call_and_duplicates_as_duplicates(
    make_app: Any, redis_url: str, redis_server: RedisServer, pushes: list[bool]
) -> None:
    app = make_app(redis_url, result_backend=redis_url)
    group(load(app).si(url) for url in "abc").apply_async()
    assert pushes == [True] * 3
    chord([load(app).si("d"), load(app).si("a")], load(app).si("e")).apply_async()
    chain(load(app).si("f"), load(app).si("g")).apply_async()
    load(app).apply_async(("f",), task_id="by hand")
    sent = [json.loads(message)["headers"] for message in lists(redis_server)[b"celery"]]
    ids = {header["exclusive"]["unique"][0]: header["id"] for header in sent[::-1] if _is_first(header)}
    assert len(ids) == 5
    assert [holder(app, url).task_id for url in "abcdf"] == list(ids.values())
    duplicates = [header["exclusive"].get("duplicate_of") for header in sent if not _is_first(header)]
    assert duplicates == [holder(app, "f").task_id, holder(app, "a").task_id]


def _is_first(header: Any) -> bool:
    return "duplicate_of" not in header["exclusive"]


@pytest.mark.promise(
    'Threads may share a producer, in one command and with `order="published"`',
    name="shared producer",
    broke="one state for both calls: AttributeError, or a message under the id of the other",
)
def test_threads_may_share_a_producer_of_the_pool(
    make_app: Any,
    redis_url: str,
    redis_server: RedisServer,
    pushes: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app, acquire_and_push, urls = make_app(redis_url), RedisStore.acquire_and_push, iter("bc")

    def publish_meanwhile(*args: Any) -> Any:
        if url := next(urls, None):
            with ThreadPoolExecutor(1) as thread:
                thread.submit(publish, url).result(timeout=30)
        return acquire_and_push(*args)

    monkeypatch.setattr(RedisStore, "acquire_and_push", publish_meanwhile)
    with app.producer_pool.acquire() as producer:

        def publish(url: str) -> None:
            first = load(app).apply_async((url,), producer=producer)
            assert holder(app, url).task_id == first.id
            assert load(app).apply_async((url,), producer=producer).outcome == "skipped"

        for url in "ad":
            publish(url)
        assert not {"_call", "_publish", "basic_publish"} & {*vars(producer), *vars(producer.channel)}
    assert messages(redis_server) == 4
    assert pushes.count(True) >= 4  # each in one call


@pytest.mark.proves("plain way of a unique call")
def test_a_producer_that_sends_later_in_batches_acquires_before(
    make_app: Any, redis_url: str, redis_server: RedisServer, pushes: list[bool]
) -> None:
    if not hasattr(Producer, "batch"):
        pytest.skip("no batches in this kombu")
    app = make_app(redis_url)
    with app.producer_pool.acquire() as producer, producer.batch():
        assert load(app).apply_async(("a",), producer=producer).outcome == "published"
        assert load(app).apply_async(("a",), producer=producer).outcome == "skipped"
        assert messages(redis_server) == 0
        assert holder(app)
    assert messages(redis_server) == 1
    assert not pushes


@pytest.mark.promise("The keys of a batch that kombu discards stay held until they are released")
def test_a_batch_that_is_discarded_leaves_its_keys_held_until_they_are_released(
    make_app: Any, redis_url: str, redis_server: RedisServer
) -> None:
    if not hasattr(Producer, "batch"):
        pytest.skip("no batches in this kombu")
    app = make_app(redis_url)
    with app.producer_pool.acquire() as producer, suppress(ZeroDivisionError), producer.batch():
        load(app).apply_async(("a",), producer=producer)
        raise ZeroDivisionError
    assert messages(redis_server) == 0
    assert load(app).delay("a").outcome == "skipped"
    assert load(app).release_lock("a")
    assert load(app).delay("a").outcome == "published"


@pytest.mark.proves("plain way of a unique call")
def test_a_connection_that_leads_elsewhere_than_the_settings_say_goes_the_plain_way(
    make_app: Any, redis_url: str, redis_server: RedisServer, pushes: list[bool], store: RedisServer
) -> None:
    app = make_app(redis_url)
    elsewhere = make_app(store.url)
    app.producer_or_acquire = elsewhere.producer_or_acquire
    assert load(app).delay("a").outcome == "published"
    assert load(app).delay("a").outcome == "skipped"
    assert (messages(redis_server), messages(store)) == (0, 1)
    assert not pushes


@pytest.mark.promise(
    "A call with a connection to another broker than the app's goes there, and takes no place in line here: "
    "from the line it would go to the wrong broker",
    broke="red before: sent to both, or only to the wrong one",
)
def test_a_call_for_another_broker_goes_there_and_takes_no_place(
    make_app: Any, redis_url: str, redis_server: RedisServer, store: RedisServer
) -> None:
    app = make_app(redis_url)
    database = redis_url.replace("/0", "/3")
    for url in (store.url, database, "memory://"):
        with app.connection_for_write(url) as connection:
            for _ in range(2):
                rank(app).apply_async(("a",), connection=connection)
    with redis.Redis.from_url(database) as client:
        assert (messages(store), client.llen("celery")) == (2, 2)
    assert (messages(redis_server), in_line(app)) == (0, 0)
    with app.connection_for_write(redis_url) as connection:
        for _ in range(2):
            rank(app).apply_async(("a",), connection=connection)
    assert (messages(redis_server), in_line(app)) == (1, 2)


@pytest.mark.promise(
    "A call for another broker waits in no line and in no window, also if the store is not on the server of "
    "the app's broker",
    broke="red before: published to the app's own broker when its turn had come",
)
def test_a_call_for_another_broker_waits_in_no_store(
    make_app: Any, redis_url: str, redis_server: RedisServer, store: RedisServer
) -> None:
    app = make_app(redis_url, exclusive_store=store.url)
    database = redis_url.replace("/0", "/3")
    for url, here, there in ((database, 0, 4), (redis_url, 1, 4)):
        with app.connection_for_write(url) as connection:
            for _ in range(2):
                rank(app).apply_async(("a",), connection=connection)
                settle(app).apply_async(("a",), connection=connection)
        with redis.Redis.from_url(database) as client:
            assert (messages(redis_server), client.llen("celery")) == (here, there)
    assert (in_line(app), settle(app).lock_state("a").waiting) == (2, 1)


@pytest.mark.proves("plain way of a unique call")
def test_a_kombu_that_pushes_in_another_way_goes_the_plain_way(
    make_app: Any,
    redis_url: str,
    redis_server: RedisServer,
    pushes: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put = Channel._put

    def other_put(*args: Any, **options: Any) -> None:
        put(*args, **options)

    monkeypatch.setattr(Channel, "_put", other_put)
    app = make_app(redis_url)
    assert load(app).delay("a").outcome == "published"
    assert load(app).delay("a").outcome == "skipped"
    assert messages(redis_server) == 1
    assert not pushes


@pytest.mark.proves("plain way of a unique call")
def test_a_queue_that_expires_is_pushed_to_by_kombu_itself(
    make_app: Any, redis_url: str, redis_server: RedisServer, pushes: list[bool]
) -> None:
    app = make_app(redis_url, task_queues=[Queue("celery", expires=60)])
    first = load(app).delay("a")
    assert holder(app).task_id == first.id
    assert load(app).delay("a").outcome == "skipped"
    assert messages(redis_server) == 1
    with redis_server.client() as client:
        expires = client.pttl("celery") > 0  # only a newer kombu lets it
    assert pushes == ([] if expires else [True, True])


@pytest.mark.proves("plain way of a unique call")
def test_a_large_message_is_sent_without_the_timeout_of_the_store_and_not_for_a_key_that_is_held(
    make_app: Any, redis_url: str, redis_server: RedisServer, pushes: list[bool]
) -> None:
    app = make_app(redis_url)
    large = "x" * asking._LARGE
    first = load(app).apply_async((large,), unique=Unique(key="large"))
    assert holder_of(app, first.key) == first.id
    assert load(app).apply_async((large,), unique=Unique(key="large")).outcome == "skipped"
    assert messages(redis_server) == 1
    assert not pushes
    assert load(app).delay("short").outcome == "published"
    assert pushes == [True]


@pytest.mark.proves("plain way of a unique call")
def test_a_user_without_rights_on_the_queue_acquires_first_and_is_not_asked_again(
    make_app: Any, start_redis: Any, pushes: list[bool], caplog: pytest.LogCaptureFixture
) -> None:
    server = start_redis()
    with server.client() as client:
        client.execute_command("ACL SETUSER locks on >secret ~cx* &* +@all")
    app = make_app(server.url, exclusive_store=server.url.replace("redis://", "redis://locks:secret@"))
    for url in "abc":
        first = load(app).delay(url)
        assert holder(app, url).task_id == first.id
        assert load(app).delay(url).outcome == "skipped"
    assert messages(server) == 3
    assert pushes == [False]
    assert caplog.text.count("refuses to push onto list celery") == 1


@pytest.mark.proves("one command, lost answer")
def test_a_name_that_is_no_list_is_reported_as_by_kombu_and_leaves_no_key(
    make_app: Any, redis_url: str, redis_server: RedisServer
) -> None:
    app = make_app(redis_url, task_publish_retry=False)
    with redis_server.client() as client:
        client.set("celery", "no list")
        with pytest.raises(Exception, match="WRONGTYPE"):
            load(app).delay("a")
        assert holder(app) is None
        client.delete("celery")
    assert load(app).delay("a").outcome == "published"


def test_a_server_behind_a_socket_file_is_the_same_one(
    make_app: Any, start_redis: Any, socket_file: str, pushes: list[bool]
) -> None:
    server = start_redis(unixsocket=socket_file)
    url = f"redis+socket://{socket_file}?virtual_host=2"
    app = make_app(url)
    assert load(app).delay("a").outcome == "published"
    assert load(app).delay("a").outcome == "skipped"
    assert pushes == [True, True]
    with redis.Redis(port=server.port, db=2) as client:
        assert client.llen("celery") == 1


def test_one_server_has_many_names_of_this_machine(make_app: Any, redis_url: str, pushes: list[bool]) -> None:
    app = make_app(redis_url.replace("127.0.0.1", "localhost"), exclusive_store=redis_url)
    assert load(app).delay("a").outcome == "published"
    assert pushes == [True]


def far_app(make_app: Any, redis_url: str, proxy: Proxy, begin: Callable[[], object] = int) -> Any:
    """An app with locks in another Redis, behind this network, and a connection to it.

    It calls `begin` when Celery begins to make a message.
    """
    app = make_app(redis_url, exclusive_store=f"redis://127.0.0.1:{proxy.port}/0?socket_timeout=0.5")
    make = app.amqp.create_task_message
    app.amqp.create_task_message = lambda *args, **options: (begin(), make(*args, **options))[1]
    getattr(app, PUBLISHER).epoch(app._celery_exclusive.store)
    app._celery_exclusive.store.check()  # which has the script then
    return app


@pytest.mark.promise(
    "A store in another Redis works while the message is made, and nothing is sent before it has granted "
    "the key: also after a lost answer, for a duplicate, while the store is away, after an error in "
    "between, and for messages that it wakes",
    name="store works while the message is made",
    figure="[speed](project/speed.md)",
)
def test_another_store_acquires_the_key_while_the_message_is_made(
    make_app: Any, redis_url: str, redis_server: RedisServer, proxy: Proxy
) -> None:
    holders: list[str] = []

    def look() -> None:
        eventually(lambda: holder(app), "the key's holder")
        holders.append(holder(app).task_id)
        assert messages(redis_server) == 0

    app = far_app(make_app, redis_url, proxy, look)
    assert load(app).delay("a").id == holders[0]
    assert messages(redis_server) == 1


@pytest.mark.proves("store works while the message is made")
def test_a_message_is_not_sent_before_another_store_has_answered(
    make_app: Any, redis_url: str, redis_server: RedisServer, proxy: Proxy
) -> None:
    app = far_app(make_app, redis_url, proxy)
    proxy.withhold(b"\r\nacquire_alone\r\n")
    with pytest.raises(StoreUnavailable):
        load(app).delay("a")
    app._celery_exclusive.releaser.drain()
    proxy.deliver()
    eventually(lambda: not proxy.is_on_its_way, "the arrival of the request")
    assert holder(app) is None
    assert messages(redis_server) == 0


@pytest.mark.proves("store works while the message is made")
def test_a_lost_answer_of_another_store_is_asked_for_again(
    make_app: Any, redis_url: str, redis_server: RedisServer, proxy: Proxy
) -> None:
    app = far_app(make_app, redis_url, proxy)
    proxy.lose(b"\r\nacquire_alone\r\n")
    assert load(app).delay("a").id == holder(app).task_id
    assert len(proxy.met) == 1
    proxy.lose(b"\r\nacquire_alone\r\n", times=2)
    with pytest.raises(StoreUnavailable):
        load(app).delay("b")
    eventually(lambda: holder(app, "b") is None, "a free key")
    assert messages(redis_server) == 1


@pytest.mark.proves("store works while the message is made")
def test_a_member_of_a_canvas_does_not_ask_another_store_again(
    make_app: Any, redis_url: str, redis_server: RedisServer, proxy: Proxy
) -> None:
    app = far_app(make_app, redis_url, proxy)
    proxy.lose(b"\r\nacquire_alone\r\n", times=2)
    load(app).apply_async(("a",), group_id="group")
    ((message,),) = lists(redis_server).values()
    assert "unique" not in json.loads(message)["headers"]["exclusive"]


@pytest.mark.proves("store works while the message is made")
def test_a_duplicate_in_another_store_is_made_once_and_never_sent(
    make_app: Any, redis_url: str, redis_server: RedisServer, proxy: Proxy
) -> None:
    made: list[bool] = []
    app = far_app(make_app, redis_url, proxy, lambda: made.append(True))
    first = load(app).delay("a")
    for count in (2, 2, 2):
        other = load(app).delay("a")
        assert (other.id, other.outcome, len(made)) == (first.id, "skipped", count)
    assert load(app).delay("b").outcome == "published"
    assert messages(redis_server) == 2


@pytest.mark.proves("store works while the message is made")
def test_a_call_that_fails_while_another_store_works_leaves_no_key_and_no_connection(
    make_app: Any, redis_url: str, redis_server: RedisServer, proxy: Proxy, store: RedisServer
) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    app = far_app(make_app, redis_url, proxy, fail)
    connection = app._celery_exclusive.store._client.ask("CLIENT", "ID")
    proxy.withhold(b"\r\nacquire_alone\r\n")
    with pytest.raises(ZeroDivisionError) as error:  # its traceback has the call
        load(app).delay("a")
    proxy.deliver()
    eventually(lambda: not proxy.is_on_its_way, "the arrival of the request")
    assert holder(app) is None
    assert messages(redis_server) == 0
    with store.client() as client:
        eventually(
            lambda: str(connection) not in {each["id"] for each in client.client_list()},
            "the end of its connection",
        )
    assert error


@pytest.mark.proves("store works while the message is made")
def test_stored_messages_that_the_answer_of_another_store_names_are_republished(
    make_app: Any, redis_url: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = far_app(make_app, redis_url, proxy)
    key, services = load(app).delay("a").key, app._celery_exclusive
    replies: list[Any] = []
    monkeypatch.setattr(services.courier, "follow_up", lambda reply, *_, **__: replies.append(reply))
    store = services.store._store
    store.forget(key)
    for id in ("holder", "next"):
        store.apply(key, Acquire(id, id, 60_000_000, message=b"message"))
    now = time.time_ns() // 1000
    store.clock = lambda: now + 90_000_000
    load(app).delay("a")
    assert [wake.id for reply in replies for wake in reply.wake] == ["next"]


@pytest.mark.promise(
    'With `order="published"`, where broker and store are one Redis database, a call takes its place and is '
    "sent in one command, and one for a busy key is only stored. A publisher that is killed at any moment "
    "leaves both or neither",
    name="place in one command",
    broke="pushed for an offer that is there; the place stored before the push; taken and pushed in two",
)
def test_a_call_takes_its_place_and_is_sent_in_one_command_and_waits_in_one(
    make_app: Any, redis_url: str, redis_server: RedisServer
) -> None:
    app = make_app(redis_url)
    rank(app).delay("warm up")
    assert +commands(redis_server, lambda: rank(app).delay("a")) == Counter(evalsha=1, lpush=1)
    for _ in range(2):
        assert +commands(redis_server, lambda: rank(app).delay("a")) == Counter(evalsha=1)
    assert (messages(redis_server), in_line(app)) == (2, 3)


@pytest.mark.proves("place in one command")
def test_a_call_whose_answer_is_lost_is_sent_once_and_has_one_place(
    make_app: Any, network: Proxy, redis_server: RedisServer, pushes: list[bool]
) -> None:
    app = make_app(f"redis://127.0.0.1:{network.port}/0")
    rank(app).delay("warm up")
    for number in range(3):
        for _ in range(2):
            network.lose(b"\r\nenqueue\r\n")
            assert rank(app).delay(f"{number}").outcome == "published"
        assert in_line(app, f"{number}") == 2
    assert len(network.met) == 6
    assert messages(redis_server) == 4
    assert pushes == [True] * 7


@pytest.mark.proves("place in one command")
def test_a_call_that_gets_no_answer_gives_its_place_up_and_one_that_arrives_late_takes_none(
    make_app: Any, network: Proxy, redis_server: RedisServer
) -> None:
    app = impatient_app(make_app, network)
    network.lose(b"\r\nenqueue\r\n", times=2)
    with pytest.raises(StoreUnavailable, match=r"task feeds.rank\[\S+\] may have been sent"):
        rank(app).delay("lost")
    network.withhold(b"\r\nenqueue\r\n")
    with pytest.raises(StoreUnavailable, match="may have been sent"):
        rank(app).delay("late")
    app._celery_exclusive.releaser.drain()
    network.deliver()
    eventually(lambda: not network.is_on_its_way, "the arrival of the request")
    assert [in_line(app, url) for url in ("lost", "late")] == [0, 0]
    assert messages(redis_server) == 2  # the first was sent, and its worker drops it


@pytest.mark.proves("place in one command")
@pytest.mark.parametrize(
    "options",
    [{"group_id": "group"}, {"exclusive": Exclusive("url", order="published", on_store_error="allow")}],
    ids=["a member of a canvas", "allowed without a store"],
)
def test_a_call_that_waits_for_its_broker_is_sent_once_and_has_its_place(
    make_app: Any, network: Proxy, redis_server: RedisServer, options: dict[str, Any]
) -> None:
    app = impatient_app(make_app, network)
    network.lose(b"\r\nenqueue\r\n", times=2)
    assert rank(app).apply_async(("lost",), **options).outcome == "published"
    network.withhold(b"\r\nenqueue\r\n")
    assert rank(app).apply_async(("late",), **options).outcome == "published"
    network.deliver()
    eventually(lambda: not network.is_on_its_way, "the arrival of the request")
    assert len(network.met) == 3
    assert messages(redis_server) == 3
    assert [in_line(app, url) for url in ("lost", "late")] == [1, 1]


@pytest.mark.proves("place in one command")
def test_an_interruption_after_the_answer_leaves_the_call_as_it_was_published(
    make_app: Any, redis_url: str, redis_server: RedisServer
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    app = make_app(redis_url, task_send_sent_event=True)
    app.amqp._event_dispatcher.publish = interrupt
    for waiting in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            rank(app).delay("a")
        assert in_line(app) == waiting
    assert messages(redis_server) == 1


@pytest.mark.promise(
    'With `order="published"` all other calls take their place first, and are sent then: a batch of kombu, '
    "a large message, a user without rights on the queue. A name that is no list leaves no place",
    name="plain way into the line",
    broke="sent though the list was refused; not sent after a refusal",
)
def test_a_large_message_takes_its_place_first(
    make_app: Any, redis_url: str, redis_server: RedisServer, pushes: list[bool]
) -> None:
    app, large = make_app(redis_url), "x" * asking._LARGE
    for _ in range(2):
        rank(app).apply_async((large,), exclusive=Exclusive(key="large", order="published"))
    assert messages(redis_server) == 1
    assert len({*app._celery_exclusive.store.places()}) == 2
    assert not pushes


@pytest.mark.proves("plain way into the line")
def test_a_batch_takes_its_places_first(
    make_app: Any, redis_url: str, redis_server: RedisServer, pushes: list[bool]
) -> None:
    if not hasattr(Producer, "batch"):
        pytest.skip("no batches in this kombu")
    app = make_app(redis_url)
    with app.producer_pool.acquire() as producer, producer.batch():
        for _ in range(2):
            rank(app).apply_async(("a",), producer=producer)
        assert (messages(redis_server), in_line(app)) == (0, 2)
    assert messages(redis_server) == 1
    assert not pushes


@pytest.mark.proves("plain way into the line")
def test_a_user_without_rights_on_the_queue_takes_the_place_first(
    make_app: Any, start_redis: Any, pushes: list[bool], caplog: pytest.LogCaptureFixture
) -> None:
    server = start_redis()
    with server.client() as client:
        client.execute_command("ACL SETUSER locks on >secret ~cx* &* +@all")
    app = make_app(server.url, exclusive_store=server.url.replace("redis://", "redis://locks:secret@"))
    for url in "abc":
        for waiting in (1, 2):
            rank(app).delay(url)
            assert in_line(app, url) == waiting
    assert messages(server) == 3
    assert pushes == [False]
    assert caplog.text.count("refuses to push onto list celery") == 1


@pytest.mark.proves("plain way into the line")
@pytest.mark.parametrize("is_retried", [False, True])
def test_a_name_that_is_no_list_leaves_no_place(
    make_app: Any, redis_url: str, redis_server: RedisServer, is_retried: bool
) -> None:
    app = make_app(redis_url, task_publish_retry=is_retried)
    with redis_server.client() as client:
        client.set("celery", "no list")
        with pytest.raises(Exception, match="WRONGTYPE"):
            rank(app).delay("a")
        assert in_line(app) == 0
        client.delete("celery")
    rank(app).delay("a")
    assert (messages(redis_server), in_line(app)) == (1, 1)


@pytest.mark.proves("plain way into the line")
def test_a_push_that_is_refused_and_then_lost_is_tried_again(
    make_app: Any, start_redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_redis()
    with server.client() as client:
        client.execute_command("ACL SETUSER locks on >secret ~cx* &* +@all")
    with Proxy(server.port) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}/0"
        app = make_app(
            url,
            exclusive_store=url.replace("redis://", "redis://locks:secret@"),
            broker_transport_options={"socket_timeout": 0.3},
        )
        proxy.withhold(b"\r\nLPUSH\r\n")
        rank(app).delay("a")
        assert (proxy.met, messages(server), in_line(app)) == ([b"\r\nLPUSH\r\n"], 1, 1)
    assert "refuses to push onto list celery" in caplog.text


@pytest.mark.proves("refused at once")
def test_a_call_after_a_refused_one_has_the_key_of_the_headers_that_its_router_adds(
    make_app: Any, redis_url: str, redis_server: RedisServer
) -> None:
    tenants = iter(["acme", "acme", "beta", "gamma", "gamma"])

    def route(*_: Any, **__: Any) -> dict[str, Any]:
        return {"queue": "celery", "headers": {"tenant": next(tenants)}}

    app = make_app(redis_url, exclusive_key_headers=["tenant"], task_routes=(route,))
    called = [load(app).delay("a") for _ in range(5)]
    assert [each.outcome for each in called] == ["published", "skipped", "published", "published", "skipped"]
    assert len({each.key for each in called}) == 3
    assert messages(redis_server) == 3


@pytest.mark.proves("refused at once")
def test_two_calls_after_a_refused_one_look_first(make_app: Any, redis_url: str) -> None:
    app = make_app(redis_url)
    for url in ("a", "a", "b"):
        load(app).delay(url)
    assert getattr(app, PUBLISHER).refused_lately == {"feeds.load": 1}
    load(app).delay("c")
    assert getattr(app, PUBLISHER).refused_lately == {}


def test_a_message_that_its_producer_forwards_has_no_place_that_it_did_not_get(
    make_app: Any, redis_url: str
) -> None:
    kept = []

    class Outbox(Producer):
        def publish(self, _: Any, **options: Any) -> None:
            kept.append(options["headers"]["exclusive"])

    app = make_app(redis_url)
    with app.connection_for_write() as connection:
        app.tasks["feeds.rank"].apply_async(("a",), producer=Outbox(connection.default_channel))
    assert "offered" not in kept[0]
    assert "promoted" not in kept[0]
