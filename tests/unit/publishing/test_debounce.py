"""What a call of a task with `unique=Debounce(...)` puts into the store, and what it sends."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, NamedTuple

import pytest
from celery import Celery, chain, chord, group
from celery.signals import before_task_publish
from kombu import Exchange, Queue
from kombu.exceptions import EncodeError

from celery_exclusive import Debounce, OptionError, StoreUnavailable, Unique, install
from celery_exclusive.core.operations import Acquire, Granted, Release
from celery_exclusive.core.records import SECOND
from celery_exclusive.messages.stored import StoredMessage
from celery_exclusive.publishing.debounced import DebouncedPublish
from celery_exclusive.stores.memory import MemoryStore
from tests.memcached import MemcachedServer
from tests.proxy import Proxy
from tests.servers import RedisServer

NAME = "docs.index"
OPTION = Debounce("doc", wait=5, max_wait=12)


class Sent(NamedTuple):
    """A message of the task: its id, the text that it was called with, our header, and Celery's embed."""

    id: str
    text: str
    header: dict[str, Any]
    embed: dict[str, Any]


class Windows:
    """The windows of an app, by a clock that only the test moves, and the messages that leave them."""

    def __init__(self, app: Celery) -> None:
        self.app, self._now = app, 1_000 * SECOND
        self.store: MemoryStore = app._celery_exclusive.store._store  # type: ignore[attr-defined]
        self.store.clock = lambda: self._now
        self._numbers = count()

    def declare(self, option: Any = OPTION, **more: Any) -> Any:
        @self.app.task(name=NAME, shared=False, unique=option, **more)
        def index(doc: str, text: str = "") -> None: ...

        self.app.finalize()
        return self.app.tasks[NAME]

    def wait(self, seconds: float) -> list[Sent]:
        """Let time pass; return the messages that a sweep publishes then."""
        self._now += round(seconds * SECOND)
        return [_sent(StoredMessage.load(wake.message)) for wake in self.store.reap().wake]

    def begin(self, key: str, sent: Sent) -> None:
        """Let the published message of a window leave it, as its worker does."""
        id, token = f"{sent.id}/{sent.header['id']}", f"{next(self._numbers)}"
        asked = Acquire(id, token, SECOND, promoted=self.store.epoch())
        assert isinstance(self.store.apply(key, asked).answer, Granted)
        self.store.apply(key, Release(id, token, "open"))


def _sent(stored: StoredMessage) -> Sent:
    args, kwargs, embed = json.loads(stored.body)
    return Sent(stored.headers["id"], kwargs.get("text") or args[1], stored.our_header, embed)


@pytest.fixture
def windows(app: Celery) -> Iterator[Windows]:
    windows = Windows(app)
    yield windows
    windows.store.clear()


@pytest.fixture
def queued(app: Celery) -> Callable[[], list[Sent]]:
    """Returns the messages in the queue, and takes them out."""

    def get() -> list[Sent]:
        found = []
        with app.connection_for_read() as connection, connection.SimpleQueue("celery") as queue:
            while len(queue):
                message = queue.get_nowait()
                message.ack()
                args, kwargs, embed = json.loads(message.body)
                text = kwargs.get("text") or args[1]
                found.append(Sent(message.headers["id"], text, message.headers.get("exclusive"), embed))
        return found

    with app.connection_for_read() as connection, connection.SimpleQueue("celery") as left:
        left.clear()  # all tests have one memory:// broker
    return get


def outcome(result: Any) -> tuple[str, str, str | None]:
    return result.id, result.outcome, result.existing_id


@pytest.mark.promise(
    "With `Debounce` a burst of calls runs once, with the newest arguments, under the id of the first call: "
    "`wait` after the last call, and `max_wait` after the first",
    name="debounce",
    broke="each call opens a window; the first arguments stay; max_wait counts from the last call",
)
def test_a_burst_is_one_message_with_the_newest_arguments_and_the_first_id(
    windows: Windows, queued: Callable[[], list[Sent]]
) -> None:
    task = windows.declare()
    first = task.delay("a", "1")
    assert outcome(first) == (first.id, "published", None)
    assert windows.wait(4) == []
    for text in "23":
        later = task.delay("a", text)
        assert outcome(later) == (first.id, "updated", first.id)
        assert later.key == first.key == task.lock_state("a").key
    other = task.delay("b", "other")
    assert other.outcome == "published"
    assert other.id != first.id
    assert windows.wait(4.9) == []
    assert task.lock_state("a").is_queued
    sent = windows.wait(0.2)
    assert {(it.id, it.text) for it in sent} == {(first.id, "3"), (other.id, "other")}
    assert all(it.header["unique"][1] == "window" for it in sent)
    assert queued() == []


@pytest.mark.proves("debounce")
def test_an_endless_burst_runs_after_the_longest_wait(windows: Windows) -> None:
    task = windows.declare()
    first = task.delay("a", "0")
    for text in ("4", "8"):
        assert windows.wait(4) == []
        assert task.delay("a", text).id == first.id
    assert windows.wait(3.9) == []
    assert [(it.id, it.text) for it in windows.wait(0.2)] == [(first.id, "8")]


@pytest.mark.promise(
    "A call after the end of a window, also during its run, opens the next one; no two are open at once",
    name="next window",
    broke="a call joins a message that was published",
)
def test_a_call_after_the_end_of_a_window_opens_the_next_one(windows: Windows) -> None:
    task = windows.declare()
    first = task.delay("a", "1")
    (sent,) = windows.wait(5)
    second = task.delay("a", "2")  # the first is on its way to a worker
    assert outcome(second) == (second.id, "published", None)
    assert second.id != first.id
    windows.begin(first.key, sent)
    assert outcome(task.delay("a", "3")) == (second.id, "updated", second.id)
    (sent,) = windows.wait(5)
    assert (sent.id, sent.text) == (second.id, "3")
    windows.begin(first.key, sent)
    assert task.lock_state("a").waiting == 0
    assert task.delay("a", "4").outcome == "published"


@pytest.mark.proves("next window")
def test_the_next_window_waits_until_the_message_of_the_former_one_has_begun(windows: Windows) -> None:
    task = windows.declare()
    first = task.delay("a", "1")
    (sent,) = windows.wait(5)
    second = task.delay("a", "2")
    assert [it.text for it in windows.wait(6)] == ["1"], "it is offered again"
    assert outcome(task.delay("a", "3")) == (second.id, "updated", second.id)
    windows.begin(first.key, sent)
    assert [(it.id, it.text) for it in windows.wait(5)] == [(second.id, "3")]


@pytest.mark.promise(
    "Calls whose end others await keep their ids in a burst, and end as skipped: members of canvases, calls "
    "with links, and with a `task_id` of their own; their arguments count, and their next steps come once",
    name="awaited calls of a burst",
    broke="the chain goes on from the window, too; a step is in the window's message, and lost with it",
)
@pytest.mark.parametrize("comes", ["first", "later"])
@pytest.mark.parametrize("kind", ["chain", "group", "chord", "link"])
def test_a_call_whose_end_others_await_is_sent_as_a_duplicate_and_its_arguments_count(
    windows: Windows, queued: Callable[[], list[Sent]], kind: str, comes: str
) -> None:
    task = windows.declare()
    before = task.delay("a", "before") if comes == "later" else None
    call = task.si("a", "awaited")
    after = task.si("b", "after")
    if kind == "chain":
        chain(call, after).apply_async(task_id="last")
    elif kind == "group":
        group([call]).apply_async()
    elif kind == "chord":
        chord([call, task.si("c", "x")], after).apply_async()
    else:
        result = task.apply_async(("a", "awaited"), link=after)
        assert result.outcome == "updated" if before else "published"
    own = next(it for it in queued() if it.text == "awaited")
    sent = next(it for it in windows.wait(5) if it.text == "awaited")
    assert own.id != sent.id == own.header["duplicate_of"]
    assert sent.id == before.id if before else sent.id
    assert not any(sent.embed[name] for name in ("chain", "chord", "callbacks", "errbacks"))
    if kind != "group":
        assert any(own.embed[name] for name in ("chain", "chord", "callbacks"))


@pytest.mark.proves("awaited calls of a burst")
def test_a_call_with_its_own_id_opens_a_window_or_is_sent_as_a_duplicate(
    windows: Windows, queued: Callable[[], list[Sent]]
) -> None:
    task = windows.declare()
    first = task.apply_async(("a", "1"), task_id="mine")
    assert outcome(first) == ("mine", "published", None)
    assert outcome(task.apply_async(("a", "2"), task_id="mine")) == ("mine", "updated", "mine")
    assert queued() == [], "its result would be replaced by a skip"
    assert outcome(task.apply_async(("a", "3"), task_id="other")) == ("other", "updated", "mine")
    assert [(it.id, it.header["duplicate_of"]) for it in queued()] == [("other", "mine")]
    assert [(it.id, it.text) for it in windows.wait(5)] == [("mine", "3")]


@pytest.mark.promise(
    "With `rpc://` results each call of a burst is sent to its own caller's queue, and ends as skipped",
    broke="the result goes to the last caller alone",
)
def test_with_rpc_results_each_caller_gets_a_result(
    make_app: Callable[..., Celery], queued: Callable[[], list[Sent]]
) -> None:
    windows = Windows(install(make_app(result_backend="rpc://")))
    task = windows.declare()
    results = [task.delay("a", text) for text in "12"]
    own = queued()
    (sent,) = windows.wait(5)
    assert [it.id for it in own] == [result.id for result in results]
    assert {it.header["duplicate_of"] for it in own} == {sent.id}
    assert sent.text == "2"
    windows.store.clear()


def test_a_call_without_its_option_is_sent_at_once_beside_the_window(
    windows: Windows, queued: Callable[[], list[Sent]]
) -> None:
    task = windows.declare()
    task.delay("a", "1")
    for change in (None, Unique("doc")):
        assert task.apply_async(("a", "2"), unique=change).outcome == "published"
    assert [it.header.get("unique", [0, 0])[1] for it in queued()] == [0, "finished"]
    assert [it.text for it in windows.wait(5)] == ["1"]


def test_a_debounced_call_after_a_refused_one_is_not_refused(app: Celery, windows: Windows) -> None:
    """A message that just leaves its window holds the key for a moment."""
    task = windows.declare()
    app._celery_exclusive_publisher.refused_lately[NAME] = 1  # type: ignore[attr-defined]
    first = task.delay("a", "1")
    (sent,) = windows.wait(5)
    id = f"{sent.id}/{sent.header['id']}"
    windows.store.apply(first.key, Acquire(id, "token", SECOND, promoted=windows.store.epoch()))
    assert task.delay("a", "2").outcome == "published"


def test_a_call_may_give_the_option_and_carry_it_in_a_chain(windows: Windows) -> None:
    task = windows.declare(Unique())
    first = task.apply_async(("a", "1"), unique=OPTION)
    step = task.si("a", "2").set(unique=OPTION)
    assert OPTION.of(**json.loads(json.dumps(OPTION.values))) == OPTION.replace(by=None)
    assert outcome(self_copied(step).apply_async()) == (first.id, "updated", first.id)
    assert [it.text for it in windows.wait(5)] == ["2"]


def self_copied(step: Any) -> Any:
    """A signature as it arrives in a message."""
    from kombu.utils.json import dumps, loads

    return step.app.signature(loads(dumps(step)))


@pytest.mark.parametrize("options", [{"countdown": 3}, {"eta": "2100-01-01T00:00:00"}])
def test_a_call_with_a_time_of_its_own_is_refused_with_the_fix(
    windows: Windows, queued: Callable[[], list[Sent]], options: dict[str, Any]
) -> None:
    task = windows.declare()
    with pytest.raises(
        OptionError, match=rf"task {NAME}: .*unique=Debounce\('doc'.*unique=None in this call"
    ):
        task.apply_async(("a", "1"), **options)
    assert (windows.wait(60), queued()) == ([], [])
    assert task.apply_async(("a", "1"), unique=None, **options).outcome == "published"


def test_a_member_of_a_canvas_with_a_time_of_its_own_runs_at_its_time(
    windows: Windows, queued: Callable[[], list[Sent]]
) -> None:
    """Celery itself publishes it, and no code would get the error."""
    task = windows.declare()
    chain(task.si("a", "1").set(countdown=3), task.si("b", "2")).apply_async()
    (sent,) = queued()
    assert "unique" not in sent.header
    assert windows.wait(60) == []


@pytest.mark.promise(
    "A store that keeps no line refuses `Debounce` where its task is declared, and in a call, by name",
    broke="the call is lost: the store keeps no message",
)
def test_a_store_without_lines_is_refused_by_name(
    make_app: Callable[..., Celery], memcached_server: MemcachedServer
) -> None:
    memcached_server.refresh()
    app = install(make_app(exclusive_store=memcached_server.url))
    fix = "keeps no line, and task docs.index with Debounce.*name a redis://"
    with pytest.raises(OptionError, match=fix):
        Windows.declare(type("Of", (), {"app": app})())  # type: ignore[arg-type]

    @app.task(name="docs.other", shared=False, unique=Unique("doc"))
    def other(doc: str) -> None: ...

    with pytest.raises(OptionError, match=r"keeps no line .*unique=None in this call"):
        other.apply_async(("a",), unique=Debounce("doc", wait=5, max_wait=12))


@pytest.mark.promise(
    "A debounced call whose store does not answer raises, and is sent at once with `on_store_error='allow'`",
    name="debounce without store",
    broke="it is lost",
)
def test_a_call_without_its_store_raises_or_is_sent_at_once(
    make_app: Callable[..., Celery], queued: Callable[[], list[Sent]], caplog: pytest.LogCaptureFixture
) -> None:
    app = install(make_app(exclusive_store="redis://127.0.0.1:1/0"))

    def declare(name: str, option: Debounce) -> Any:
        @app.task(name=name, shared=False, unique=option)
        def index(doc: str, text: str) -> None: ...

        app.finalize()
        return app.tasks[name]

    strict, lax = declare("strict", OPTION), declare("lax", OPTION.replace(on_store_error="allow"))
    with pytest.raises(StoreUnavailable) as error:
        strict.delay("a", "1")
    assert error.value.task_id is None
    assert queued() == []
    result = lax.delay("a", "2")
    assert outcome(result) == (result.id, "published", None)
    chain(strict.si("a", "3"), lax.si("a", "4")).apply_async()
    assert [(it.text, it.header.get("unique")) for it in queued()] == [("2", None), ("3", None)]
    assert f"Task lax[{result.id}] is sent at once, and not at the end of its window" in caplog.text


@pytest.mark.promise(
    "A debounced call without an answer says which task may wait with its arguments, and that to call it "
    "again is safe: that call joins the window",
    broke="its own id, which no task has; its window is removed",
)
def test_a_call_without_an_answer_names_the_window_and_may_be_repeated(
    make_app: Callable[..., Celery], redis_server: RedisServer
) -> None:
    redis_server.refresh()
    with Proxy(redis_server.port) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}/0?socket_timeout=0.5"
        app = install(make_app(exclusive_store=url))

        @app.task(name=NAME, shared=False, unique=Debounce("doc", wait=900, max_wait=900))
        def index(doc: str, text: str) -> None: ...

        assert app.tasks[NAME].delay("other", "0").outcome == "published"
        proxy.lose(b"\r\nenqueue\r\n", times=2)
        with pytest.raises(StoreUnavailable, match=r"may wait in its window .* again is safe") as error:
            app.tasks[NAME].delay("a", "1")
        again = app.tasks[NAME].delay("a", "2")
        assert (again.outcome, again.id) == ("updated", error.value.task_id)


def test_a_call_for_a_fanout_exchange_is_sent_at_once(make_app: Callable[..., Celery]) -> None:
    """A worker could not publish it again for this queue alone."""
    everywhere = Queue("everywhere", Exchange("everywhere", type="fanout"))
    windows = Windows(install(make_app(task_queues=[everywhere], task_default_queue="everywhere")))
    task = windows.declare()
    with windows.app.connection_for_read() as connection, connection.SimpleQueue(everywhere) as queue:
        assert task.delay("a", "1").outcome == "published"
        chain(task.si("a", "2"), task.si("b", "3")).apply_async()
        headers = [queue.get(timeout=5).headers["exclusive"] for _ in "12"]
    assert [header.get("unique") for header in headers] == [None, None]
    assert windows.wait(60) == []


def test_the_queue_is_declared_before_its_message_waits(windows: Windows) -> None:
    """A worker publishes it, and declares no queue."""
    windows.declare().apply_async(("a", "1"), queue="fresh")
    with windows.app.connection_for_read() as connection:
        assert connection.default_channel.queue_declare(queue="fresh", passive=True)


def test_nothing_waits_if_the_message_cannot_be_made(windows: Windows) -> None:
    task = windows.declare(Debounce(wait=5, max_wait=12))
    with pytest.raises(EncodeError):
        task.delay("a", object())
    assert windows.wait(60) == []


@pytest.mark.promise(
    "An interrupted call never removes a window that newer calls have joined",
    broke="the first call gives its window up, and the newer call with it",
)
def test_an_interrupted_first_call_leaves_the_window_to_the_others(
    windows: Windows, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = windows.declare()
    request = DebouncedPublish.request

    def interrupted(publish: Any, *asked: Any, **how: Any) -> Any:
        request(publish, *asked, **how)
        monkeypatch.setattr(DebouncedPublish, "request", request)
        task.delay("a", "2")
        raise KeyboardInterrupt

    monkeypatch.setattr(DebouncedPublish, "request", interrupted)
    with pytest.raises(KeyboardInterrupt):
        task.delay("a", "1")
    assert [it.text for it in windows.wait(5)] == ["2"]


@pytest.mark.promise(
    "A call that finds windows open and closed by others, again and again, is sent in the end",
    broke="it is lost after its last try",
)
def test_a_call_that_meets_a_new_window_each_time_loses_nothing(
    windows: Windows, queued: Callable[[], list[Sent]], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = windows.declare()
    first = task.delay("a", "1")
    request, published = DebouncedPublish.request, [first.id]

    def late(publish: Any, operation: Any, **how: Any) -> Any:
        if operation.id.startswith(f"{published[-1]}/"):  # it has learnt of this window
            (sent,) = windows.wait(5)
            windows.begin(first.key, sent)
        answer = request(publish, operation, **how)
        if operation.id.startswith(f"{published[-1]}/"):
            monkeypatch.setattr(DebouncedPublish, "request", request)
            published.append(task.delay("a", f"{len(published)}").id)
            monkeypatch.setattr(DebouncedPublish, "request", late)
        return answer

    monkeypatch.setattr(DebouncedPublish, "request", late)
    result = task.delay("a", "newest")
    assert len(published) > 2
    assert outcome(result) == (result.id, "published", None)
    assert [(it.id, it.text) for it in queued()] == [(result.id, "newest")]


@pytest.mark.proves("key headers")
def test_a_receiver_may_add_the_headers_of_a_key(make_app: Callable[..., Celery]) -> None:
    windows = Windows(install(make_app(exclusive_key_headers=("tenant",))))
    task, tenant = windows.declare(), ["x"]

    def add(headers: dict[str, Any], **_: Any) -> None:
        headers["tenant"] = tenant[0]

    before_task_publish.connect(add, weak=False)
    try:
        first = task.delay("a", "1")
        assert outcome(task.delay("a", "2")) == (first.id, "updated", first.id)
        tenant[0] = "y"
        other = task.delay("a", "3")
        assert outcome(other) == (other.id, "published", None)
        assert outcome(task.apply_async(("a", "4"), task_id="mine")) == ("mine", "updated", other.id)
    finally:
        before_task_publish.disconnect(add)
    assert {(it.id, it.text) for it in windows.wait(5)} == {(first.id, "2"), (other.id, "4")}
    windows.store.clear()


@pytest.mark.promise(
    "Receivers of `before_task_publish` see the id under which a debounced call waits",
    broke="an id that no task has",
)
def test_receivers_see_the_id_of_the_window(windows: Windows, published: list[dict[str, Any]]) -> None:
    task = windows.declare()
    first = task.delay("a", "1")
    task.delay("a", "2")
    windows.wait(5)
    second = task.delay("a", "3")
    task.delay("a", "4")
    assert [headers["id"] for headers in published] == [first.id, first.id, second.id, second.id]


def test_a_direct_run_needs_no_window(windows: Windows) -> None:
    task = windows.declare()
    task.delay("a", "1")
    runs = [task.apply(("a", "2"))]
    windows.app.conf.task_always_eager = True
    runs.append(task.delay("a", "3"))
    assert [(run.outcome, run.key) for run in runs] == [("published", task.lock_state("a").key)] * 2
    assert [it.text for it in windows.wait(5)] == ["1"]
