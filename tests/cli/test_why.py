"""`celery -A proj locks why`: the sentence, the reason and the next step of each state."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args
from uuid import uuid4

import pytest
from celery.exceptions import TaskRevokedError

from celery_exclusive import Debounce, DuplicateTask, Exclusive, LockHeld, Unique
from celery_exclusive.core.claim import LAST_CHANCE, worker_mark
from celery_exclusive.core.key_state import OFFERS_IN_LINE
from celery_exclusive.core.operations import Acquire, AcquireAlone, Enqueue, Release
from celery_exclusive.core.records import SECOND
from celery_exclusive.errors import FULL
from celery_exclusive.messages.header import HEADER, Header
from celery_exclusive.messages.stored import StoredMessage
from celery_exclusive.options.key_text import absolute_key
from celery_exclusive.reasons import Reason
from celery_exclusive.stores.workers import WorkerRecord
from tests.cli.conftest import Desk
from tests.servers import RedisServer

TASK = "desk.load"
WORKER = WorkerRecord(0x1A2B, "celery@web1", 4711, "web1", "0.1.0", 1_800_000_000)
TOKEN = f"{worker_mark(WORKER.number)}0123456789ab"
HOSTILE = ["\x1b[31m", "a\nb", "'$(x)'", "-rf", "\u202e", "a\\x41", "日本", "%s{0}", "<b>", "/"]


def message(id: str, key: str, args: str = "('u',)", kwargs: str = "{}", **header: Any) -> bytes:
    headers = {"id": id, "task": TASK, "argsrepr": args, "kwargsrepr": kwargs}
    headers[HEADER] = Header("p", key, **header).write()  # type: ignore[assignment]
    return StoredMessage(b"[[], {}, {}]", "application/json", "utf-8", headers, {}, "", "feeds").dump()


@pytest.fixture
def desk(make_desk: Callable[..., Desk]) -> Desk:
    desk = make_desk(result_backend="cache+memory://", task_store_errors_even_if_ignored=True)
    desk.app.backend.client.cache.clear()  # which all apps of this process share
    desk.store._store.clock = lambda: desk.now

    @desk.app.task(name=TASK, shared=False, exclusive=Exclusive("url"))
    def load(url: str, full: bool = False) -> None: ...

    @desk.app.task(name="desk.once", shared=False, unique=Unique("url"))
    def once(url: str) -> None: ...

    desk.store.keep_namespace("broker", 60 * SECOND, WORKER)
    return desk


def key_of(desk: Desk, url: str = "u", task: str = TASK) -> str:
    return str(desk.app.tasks[task].lock_state(url).key)


def hold(desk: Desk, key: str, id: str = "a", ttl: int = 30, **options: Any) -> None:
    desk.store.apply(key, Acquire(f"{id}/p", TOKEN, ttl * SECOND, **options))


def park(desk: Desk, key: str, *ids: str, **options: Any) -> None:
    for id in ids:
        desk.store.apply(key, Acquire(f"{id}/p", TOKEN, SECOND, message=message(id, key), **options))


def why(desk: Desk, *words: str, code: int = 0) -> tuple[str | None, str]:
    """Return the reason and the sentence."""
    done = desk.run("why", "--json", "--", *words)
    assert (done.exit_code, done.stdout.count("\n")) == (code, 1), done.output
    answer = json.loads(done.stdout)
    assert answer["sentence"].isprintable()
    assert answer["reason"] is None or answer["reason"] in get_args(Reason)
    assert answer["is_trouble"] is (code != 0)
    shown = desk.run("why", "--", *words)
    assert shown.exit_code == code
    step = [f"next: {answer['next_step']}"] * bool(answer["next_step"])
    assert without_seconds(*shown.stdout.splitlines()) == without_seconds(answer["sentence"], *step)
    return answer["reason"], answer["sentence"]


def without_seconds(*lines: str) -> list[str]:
    """Return the lines of an answer that may be a second older than another one."""
    return [re.sub(r"\d[\d.hm]* ?s\b", "... s", line) for line in lines]


@pytest.mark.promise(
    "`locks why` takes the id of a task, a key in every spelling, or a task with arguments, and answers with "
    "a reason of the closed list, one sentence with its numbers, and a command to type: for each state of a "
    "waiting task, of a holder, of a key, and of a task that has ended",
    name="locks why",
    broke=(
        "the place of the first ten for all; the unique key of a waiting task before its lock; the renewal "
        "without the task's ttl; a signed message shown without its secret; "
        "a line without a worker that is no trouble"
    ),
)
def test_a_waiting_task_is_told_its_place_its_holder_and_the_holders_worker(desk: Desk) -> None:
    key = key_of(desk)
    hold(desk, key)
    desk.pass_time(10)
    park(desk, key, "b", "c", "d")
    desk.pass_time(12)
    expected = (
        f"WAITING: place 2 of 3 for {key} (url='u'), for 11s; held by a on celery@web1 pid 4711 for 22s, "
        "renewed 22s ago"
    )
    assert why(desk, "c") == ("in_line", expected)
    assert desk.run("why", "c").stdout.splitlines()[1] == f"next: celery -A proj locks show {key}"
    hold(desk, key, "z")
    answer = json.loads(desk.run("why", "d", "--json").stdout)
    assert (answer["waiting"]["place"], answer["key"]["waiting"]) == (3, 3)
    assert answer["key"]["holders"][0]["workers"][0]["nodename"] == "celery@web1"
    assert (answer["waiting"]["task"], answer["waiting"]["args"]) == (TASK, "url='u', full=False")


@pytest.mark.promise(
    "`locks why` says of a child, of its parent and of their key that the parent holds the key for which the "
    "child waits, and that neither ends if the parent waits for the child",
    broke="red before; other holders not looked at; the root left out; a task taken for its own root",
)
def test_a_task_that_holds_the_key_of_its_child_is_named(desk: Desk) -> None:
    key, shared = key_of(desk), key_of(desk, "shared")

    def park_child(key: str, id: str, **headers: str) -> None:
        kept = StoredMessage.load(message(id, key))
        kept = replace(kept, headers={**kept.headers, **headers})
        desk.store.apply(key, Acquire(f"{id}/p", TOKEN, SECOND, message=kept.dump()))

    hold(desk, key, "parent")
    park_child(key, "other", root_id="other")
    park_child(key, "child", parent_id="parent", root_id="root")
    park_child(key, "grandchild", parent_id="between", root_id="parent")
    circle = "; parent holds it and has called {}, which waits for it: if the first waits for the second,"
    for subject, child in {"child": "child", "grandchild": "grandchild", "parent": "grandchild"}.items():
        assert circle.format(child) in why(desk, subject)[1]
    assert circle.format("grandchild") in why(desk, key)[1]
    for holder in ("parent", "other holder"):  # which lets the child in
        hold(desk, shared, holder, limit=2)
    park_child(shared, "its child", parent_id="parent")
    for subject in ("its child", "other holder", shared):
        assert "neither" not in why(desk, subject)[1]


@pytest.mark.parametrize("words", [["-A", "my app"], ["--app", "my app"], ["--app=my app"]])
def test_the_next_step_names_the_app_that_was_typed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    key = key_of(desk)
    hold(desk, key)
    park(desk, key, "waits")
    monkeypatch.setattr(sys, "argv", ["celery", *words, "locks", "why", "waits"])
    assert desk.run("why", "waits").stdout.splitlines()[1] == f"next: celery -A 'my app' locks show {key}"


@pytest.mark.proves("locks why")
def test_a_task_far_behind_in_line_is_found_with_its_place(desk: Desk) -> None:
    key = key_of(desk)
    hold(desk, key)
    park(desk, key, *(f"t{number}" for number in range(600)))
    reason, sentence = why(desk, "t555")
    assert reason == "in_line"
    assert sentence.startswith(f"WAITING: place 556 of 600 for {key}")


@pytest.mark.proves("locks why")
def test_a_deadline_of_a_wait_and_the_deaths_of_workers_are_told(desk: Desk) -> None:
    key = key_of(desk)
    hold(desk, key)
    park(desk, key, "b", gives_up_in=60 * SECOND)
    park(desk, key, "c", expires_in=90 * SECOND)
    assert why(desk, "b")[1].endswith("; it gives up in 1m00s")
    assert why(desk, "c")[1].endswith("; it expires in 1m30s")


@pytest.mark.proves("locks why")
def test_a_holder_that_runs_is_told_with_its_worker_and_its_line(desk: Desk) -> None:
    key = key_of(desk)
    hold(desk, key)
    desk.pass_time(4)
    expected = f"RUNNING on celery@web1 pid 4711, for 4s: it holds {key}, renewed 4s ago"
    assert why(desk, "a") == ("running", expected)
    park(desk, key, "b")
    with_line = f"{key} (url='u'), renewed 4s ago; 1 wait, the first of them for 0s"
    assert why(desk, "a")[1] == f"RUNNING on celery@web1 pid 4711, for 4s: it holds {with_line}"


@pytest.mark.proves("locks why")
def test_each_of_more_than_ten_holders_is_told_that_it_runs(desk: Desk) -> None:
    key = key_of(desk)
    for number in range(15):
        kept = message(f"t{number}", key, deaths=number)
        hold(desk, key, f"t{number}", limit=15, message=kept, recovers=True, at_once=True)
    for number in range(15):
        reason, sentence = why(desk, f"t{number}")
        assert (reason, sentence.startswith("RUNNING on celery@web1 pid 4711, for 0s: ")) == ("running", True)
        deaths = f"; workers that ran it have died: {number}" * bool(number)
        assert sentence.partition("; workers")[1:] == deaths.partition("; workers")[1:]


@pytest.mark.promise(
    "`locks why` of a task, or of its key, says that its result is newer than what the store knows: a worker "
    "that uses no locks, or others, has run it. An older result changes no answer",
    broke="red before: QUEUED, exit 0; the times not compared; the result of a renewed run or a period asked",
)
def test_a_result_that_is_newer_than_what_the_store_knows_is_told(desk: Desk) -> None:
    key = key_of(desk, task="desk.once")
    backend: Any = desk.app.backend
    desk.store.apply(key, AcquireAlone("a/p", "p", 600 * SECOND, phase="queued"))
    desk.pass_time(300)  # the result is not older than that, on a machine of any speed
    backend.store_result("a", None, "FAILURE")
    meta = json.loads(backend.get(name := backend.get_key_for_task("a")))
    backend.set(name, json.dumps({**meta, "date_done": "2026-01-01T00:00:00"}))
    for subject in ("a", key):
        assert why(desk, subject)[0] == "queued"
    backend.forget("a")
    backend.store_result("a", None, "SUCCESS")
    reason, sentence = why(desk, "a", code=1)
    assert (reason, sentence.startswith("FINISHED at 20"), f"QUEUED: {key}" in sentence) == (
        "finished",
        True,
        True,
    )
    reason, sentence = why(desk, key, code=1)
    assert sentence.startswith(f"QUEUED: {key} is held by a, ")
    assert ". But a has ended: FINISHED at 20" in sentence
    assert "exclusive_prefix" in sentence
    desk.store.apply(key, AcquireAlone("b/p", "p", 600 * SECOND, phase="period", inherits=("a/p", "p")))
    backend.store_result("b", None, "SUCCESS")
    assert why(desk, key)[0] == "duplicate"


@pytest.mark.promise(
    "`locks why` sees no trouble where workers cannot be asked which queues they consume: the broker has no "
    "fanout, or workers live, and have no remote control. Unless the store knows the queue of a message, "
    "the answer names the usual one as such",
    broke="red before: no worker has answered, exit 1; the usual queue as the one of the message",
)
@pytest.mark.filterwarnings("ignore:The ``noload``")  # in kombu
def test_no_worker_that_can_be_asked_is_no_trouble_while_workers_live(
    make_desk: Callable[..., Desk], redis_url: str, tmp_path: Path
) -> None:
    def queued(broker: str) -> Desk:
        desk = make_desk(broker_url=broker)
        desk.store._store.clock = lambda: desk.now

        @desk.app.task(name="desk.once", shared=False, unique=Unique("url"))
        def once(url: str) -> None: ...

        key = key_of(desk, task="desk.once")
        desk.store.apply(key, AcquireAlone("a/p", "p", 600 * SECOND, phase="queued"))
        return desk

    assert "queue" not in why(queued(f"sqla+sqlite:///{tmp_path}/broker.db"), "a")[1]
    desk = queued(redis_url)
    sentence = why(desk, "a", code=1)[1]
    assert sentence.endswith(
        ". But no worker has answered within a second: is there one for its usual queue celery?"
    )
    park(desk, key_of(desk, task="desk.once"), "b")
    assert why(desk, "a", code=1)[1].endswith("is there one for queue feeds?")
    desk.store.keep_namespace("broker", 60 * SECOND, WORKER)
    sentence = why(desk, "a")[1]
    assert sentence.endswith(". Workers live, but none has said within a second which queues it consumes")


@pytest.mark.proves("locks why")
def test_a_line_that_takes_no_more_calls_is_full(desk: Desk) -> None:
    @desk.app.task(name="desk.few", shared=False, exclusive=Exclusive("url", max_waiting=2))
    def few(url: str) -> None: ...

    key = key_of(desk, task="desk.few")
    hold(desk, key)
    park(desk, key, "b")
    assert why(desk, key)[0] == "held"
    park(desk, key, "c")
    for words in ([key], ["desk.few", "u"]):
        reason, sentence = why(desk, *words)
        assert reason == "full"
        assert sentence.startswith(f"FULL: {key} (url='u') is held by a ")
        assert sentence.endswith(": its line takes no more calls (max_waiting=2)")


@pytest.mark.promise(
    "With `--json` each command of `locks` prints its errors as JSON objects, too, on stdout",
    broke="red before: text on stderr; errors of usage as text",
)
@pytest.mark.parametrize(
    "words", [("why", TASK), ("show", "none"), ("ls", "--nonsense"), ("drop",), ("put", "/none")]
)
def test_an_error_is_an_object_of_json_too(desk: Desk, words: tuple[str, ...]) -> None:
    for url in "uv":
        hold(desk, key_of(desk, url))
    plain, done = desk.run(*words), desk.run(*words, "--json")
    error = json.loads(done.stdout)
    assert (done.exit_code, error["exit_code"]) == (plain.exit_code, plain.exit_code)
    assert error["error"] in plain.stderr.replace("\n", " ")
    assert plain.stdout == ""


@pytest.mark.proves("locks why")
def test_a_dead_holder_that_a_worker_recovers_is_trouble(desk: Desk) -> None:
    key = key_of(desk)
    hold(desk, key, message=message("a", key), recovers=True, at_once=True)
    park(desk, key, "b")
    desk.pass_time(31)
    reason, sentence = why(desk, "a", code=1)
    assert reason == "running"
    assert sentence.startswith("RUNNING, but its lease has expired: celery@web1 pid 4711 has died")
    assert "whose lease has expired" in why(desk, "b", code=1)[1]
    assert "  dead  " in desk.run("ls").stdout
    assert "\n  dead: a on celery@web1" in desk.run("show", key).stdout


@pytest.mark.proves("locks why")
def test_a_lock_of_a_process_is_a_holder_without_a_worker(desk: Desk) -> None:
    key = absolute_key("repo:17")
    desk.store.apply(key, Acquire("lock:web1:812/p", "0" * 16, 30 * SECOND))
    assert why(desk, "lock:web1:812") == (
        "running",
        "RUNNING, for 0s: it holds x=repo:17, its lease lasts 30s without a renewal",
    )


@pytest.mark.proves("locks why")
def test_a_key_that_is_held_for_a_message_is_queued(desk: Desk) -> None:
    key = key_of(desk, task="desk.once")
    desk.store.apply(key, AcquireAlone("a/p", "p", 600 * SECOND, phase="queued"))
    desk.pass_time(60)
    expected = (
        f"QUEUED: {key} is held for its message, for 1m00s, and no worker has begun it; without a run the "
        "key is free in 9m00s"
    )
    assert why(desk, "a") == ("queued", expected)
    assert why(desk, key)[0] == "queued"


@pytest.mark.proves("locks why")
def test_a_task_that_waits_for_its_lock_and_holds_its_unique_key_is_told_its_place(desk: Desk) -> None:
    key, own = key_of(desk), key_of(desk, task="desk.once")
    desk.store.apply(own, AcquireAlone("b/p", "p", 600 * SECOND, phase="queued"))
    hold(desk, key)
    park(desk, key, "b")
    assert why(desk, "b")[0] == "in_line"


@pytest.mark.proves("locks why")
def test_a_retry_that_keeps_its_lock_and_waits_for_its_unique_key_is_told_its_place(desk: Desk) -> None:
    key, own = key_of(desk), key_of(desk, task="desk.once")
    desk.store.apply(key, AcquireAlone("b/p", "p", 600 * SECOND, phase="again"))
    hold(desk, own)
    park(desk, own, "b")
    reason, sentence = why(desk, "b")
    assert (reason, f"for {own}" in sentence) == ("in_line", True)


@pytest.mark.proves("locks why")
@pytest.mark.parametrize("own", ["x=a.lock", "x=z.lock", "u=a.key"])
def test_a_run_that_has_its_last_chance_is_told_its_own_key_and_its_deaths(desk: Desk, own: str) -> None:
    hold(desk, own, recovers=True, at_once=True, message=message("a", own, deaths=2))
    hold(desk, LAST_CHANCE)
    reason, sentence = why(desk, "a")
    assert (reason, f"it holds {own}" in sentence) == ("running", True)
    assert "workers that ran it have died: 2" in sentence


@pytest.mark.proves("locks why")
def test_an_offered_task_is_told_the_queue_of_its_message(desk: Desk) -> None:
    key = key_of(desk)
    hold(desk, key)
    park(desk, key, "b")
    desk.store.apply(key, Release("a/p", TOKEN))
    reason, sentence = why(desk, "b")
    assert reason == "offered"
    assert "so its message is in queue feeds or on the way to a worker, and none has begun it" in sentence
    assert why(desk, key)[0] == "offered"


@pytest.mark.proves("locks why")
def test_a_task_that_has_its_place_since_it_was_published_is_queued(desk: Desk) -> None:
    key = key_of(desk)
    desk.store.apply(key, Enqueue("b/p", message("b", key)))
    expected = (
        f"QUEUED: {key} (url='u') is offered to it since it was published, for 0s: its message is in queue "
        "feeds, and no worker has begun it"
    )
    assert why(desk, "b") == ("queued", expected)


@pytest.mark.proves("locks why")
def test_a_task_whose_offers_no_worker_accepts_is_aside_and_trouble(desk: Desk) -> None:
    key = key_of(desk)
    hold(desk, key)
    park(desk, key, "b", "c")
    desk.store.apply(key, Release("a/p", TOKEN))
    for _ in range(OFFERS_IN_LINE):
        desk.pass_time(700)
        desk.store.reap()
    reason, sentence = why(desk, "b", code=1)
    assert reason == "aside"
    assert "no worker accepted its offers" in sentence
    hold(desk, key, "c", promoted=desk.store.epoch())
    desk.store.apply(key, Release("c/p", TOKEN))
    assert why(desk, "b", code=1)[1].startswith(f"ASIDE in the line of {key} (url='u'), for ")
    assert f"{key}  url='u'  aside " in desk.run("ls").stdout
    assert f"1 tasks are aside, as for {key}: no worker accepts" in desk.run("doctor").stdout


@pytest.mark.proves("locks why")
def test_a_line_of_a_free_key_that_no_worker_offers_is_trouble_after_a_minute(desk: Desk) -> None:
    key = key_of(desk)
    hold(desk, key, ttl=1)
    park(desk, key, "b", "c")
    desk.pass_time(30)
    assert why(desk, "b")[1].endswith("no task holds it")
    desk.pass_time(31)
    for subject in ("b", "c", key):
        reason, sentence = why(desk, subject, code=1)
        assert reason == "in_line"
        assert sentence.endswith("no task holds it: is there a worker for its queue that knows its task?")


@pytest.mark.proves("locks why")
def test_a_task_whose_wait_is_over_is_told_so(desk: Desk) -> None:
    key = key_of(desk)
    hold(desk, key, ttl=600)
    park(desk, key, "b", gives_up_in=5 * SECOND)
    park(desk, key, "old", replaces=True)
    park(desk, key, "new", replaces=True)
    desk.pass_time(6)
    desk.store.reap()
    assert why(desk, "b")[0] == "given_up"
    assert "it has given up" in why(desk, "b")[1]
    assert why(desk, "old")[0] == "replaced"
    assert "the newer task new has taken its place" in why(desk, "old")[1]


@pytest.mark.proves("locks why")
def test_a_window_of_calls_is_told_when_it_closes(desk: Desk) -> None:
    @desk.app.task(name="desk.save", shared=False, unique=Debounce("url", wait=90, max_wait=600))
    def save(url: str) -> None: ...

    key = str(save.lock_state("u").key)  # type: ignore[attr-defined]
    kept = message("b", key).replace(TASK.encode(), b"desk.save")
    desk.store.apply(key, Enqueue("b/p", kept, waits=(90 * SECOND, 600 * SECOND)))
    expected = f"NOT BEFORE 1m30s from now: it waits for newer calls of {key} (url='u'), for 0s"
    assert why(desk, "b") == ("not_before", expected)


@pytest.mark.proves("locks why")
@pytest.mark.parametrize("spelling", ["{key}", "{short}", TASK])
def test_a_key_is_taken_in_every_spelling(desk: Desk, spelling: str) -> None:
    key = key_of(desk)
    hold(desk, key)
    park(desk, key, "b")
    holder = "a on celery@web1 pid 4711 for 0s, renewed 0s ago"
    expected = f"HELD: {key} (url='u') is held by {holder}; 1 wait, the first of them for 0s"
    assert why(desk, spelling.format(key=key, short=key[2:])) == ("held", expected)


@pytest.mark.proves("locks why")
@pytest.mark.parametrize("spelling", ["x=shared", "shared"])
def test_a_key_that_tasks_share_and_none_holds_is_free(desk: Desk, spelling: str) -> None:
    @desk.app.task(name="desk.shared", shared=False, exclusive=Exclusive(key="shared"))
    def shared() -> None: ...

    expected = "FREE: no task holds or waits for x=shared: a call of it can run now"
    assert why(desk, spelling) == (None, expected)


@pytest.mark.proves("locks why")
def test_the_arguments_of_a_call_lead_to_its_key(desk: Desk) -> None:
    key = key_of(desk, "https://planet.example/rss?a=b")
    assert why(desk, TASK, "https://planet.example/rss?a=b") == (
        None,
        f"FREE: no task holds or waits for {key}: a call of it can run now",
    )
    hold(desk, key)
    assert why(desk, TASK, "https://planet.example/rss?a=b", "full=true")[0] == "held"
    assert why(desk, TASK, "url=https://planet.example/rss?a=b")[0] == "held"
    hold(desk, key_of(desk, 17))  # type: ignore[arg-type]
    assert why(desk, TASK, "17")[0] == "held"
    assert why(desk, TASK, '"17"')[0] is None
    wrong = desk.run("why", TASK, "a", "nothing=1")
    assert (wrong.exit_code, "why() takes the arguments of a call" in wrong.stderr) == (2, True)
    unknown = desk.run("why", "desk.laod", "a")
    assert (unknown.exit_code, f"did you mean '{TASK}'?" in unknown.stderr) == (1, True)


@pytest.mark.proves("locks why")
def test_a_name_that_means_several_keys_is_refused(desk: Desk) -> None:
    assert why(desk, TASK)[0] is None
    for url in "uv":
        hold(desk, key_of(desk, url))
    refused = desk.run("why", TASK)
    assert (refused.exit_code, "has 2 keys; name one" in refused.stderr) == (1, True)


HELD = LockHeld("task t found lock x=r held by a", "x=r", "a")
DUPLICATE = DuplicateTask("task t did not run: unique key u=r is held by a", "u=r", "a")
FULL_LINE = LockHeld(
    f"task t cannot wait in the line of lock x=r: 3 waiting already, {FULL}; ...", "x=r", "a"
)
RESULTS: dict[str, tuple[str, Any, str, str]] = {
    "skipped": ("SUCCESS", {"skipped": {"key": "x=r", "existing_id": "a"}}, "held", "SKIPPED at {}: x=r was"),
    "duplicate": (
        "SUCCESS",
        {"skipped": {"key": "u=r"}},
        "duplicate",
        "SKIPPED at {}: u=r was held by another",
    ),
    "failed": ("FAILURE", HELD, "held", "FAILED at {}: LockHeld: task t found lock"),
    "refused": ("FAILURE", DUPLICATE, "duplicate", "FAILED at {}: DuplicateTask: task t did not run"),
    "finished": ("SUCCESS", {"skipped": 3}, "finished", "FINISHED at {}: its state is SUCCESS"),
    "raised": (
        "FAILURE",
        ValueError("secret"),
        "finished",
        "FINISHED at {}: its state is FAILURE, with Value",
    ),
    "full": ("FAILURE", FULL_LINE, "full", "FAILED at {}: LockHeld: task t cannot wait"),
    "revoked": ("REVOKED", TaskRevokedError("revoked"), "revoked", "REVOKED at {}: its state is REVOKED"),
    "expired": ("REVOKED", TaskRevokedError("expired"), "expired", "EXPIRED at {}: its state is REVOKED"),
}


@pytest.mark.proves("locks why")
@pytest.mark.parametrize("name", RESULTS)
def test_a_task_that_has_ended_is_told_from_the_result_backend(desk: Desk, name: str) -> None:
    state, result, expected, begin = RESULTS[name]
    id = str(uuid4())
    desk.app.backend.store_result(id, result, state)
    at = f"{desk.app.backend.get_task_meta(id)['date_done'][:19].replace('T', ' ')} UTC"
    reason, sentence = why(desk, id)
    assert reason == expected
    assert sentence.startswith(begin.format(at))
    assert "secret" not in sentence
    if expected == "finished":
        step = f"celery -A proj result {'--traceback ' if state == 'FAILURE' else ''}{id}"
        assert json.loads(desk.run("why", "--json", id).stdout)["next_step"] == step
    elif state == "REVOKED":  # of which `celery result` raises the error
        assert json.loads(desk.run("why", "--json", id).stdout)["next_step"] == ""


@pytest.mark.proves("locks why")
@pytest.mark.parametrize(
    ("on_conflict", "expected", "said"),
    [("latest", "replaced", "has taken its place"), ("supersede", "superseded", "has superseded it")],
)
def test_a_task_that_was_skipped_for_a_newer_one_names_that(
    desk: Desk, on_conflict: Any, expected: str, said: str
) -> None:
    @desk.app.task(name="newest", shared=False, exclusive=Exclusive(on_conflict=on_conflict))
    def newest() -> None: ...

    skipped = {"skipped": {"key": newest.lock_state().key, "existing_id": "newer"}}
    desk.app.backend.store_result("older", skipped, "SUCCESS")
    reason, sentence = why(desk, "older")
    assert reason == expected
    assert f"the newer task newer {said} at x:newest" in sentence


@pytest.mark.proves("locks why")
def test_a_task_that_runs_is_told_though_the_backend_has_an_older_result(desk: Desk) -> None:
    hold(desk, key_of(desk))
    desk.app.backend.store_result("a", None, "FAILURE")
    assert why(desk, "a")[0] == "running"


@pytest.mark.proves("locks why")
def test_an_unknown_id_is_told_where_it_may_be(desk: Desk) -> None:
    reason, sentence = why(desk, "no-such-id", code=1)
    assert reason == "not_ours"
    assert sentence.startswith(
        f"NOT KNOWN here: no-such-id neither holds nor waits for a key in {desk.store.url}"
    )
    for hint in ("may be in a queue", "has no options", "another store or exclusive_prefix", "was dropped"):
        assert hint in sentence
    answer = json.loads(desk.run("why", "--json", "desk.laod").stdout)
    assert f"there is no task 'desk.laod': did you mean {TASK!r}? As an id, desk.laod" in answer["sentence"]
    assert answer["next_step"] == f"celery -A proj locks why {TASK}"


@pytest.mark.promise(
    "`locks why ID` of an unknown task names a damaged key, which may have it, and leads to its repair",
    broke="the damaged keys left out, as before",
)
def test_an_unknown_id_may_be_in_damaged_data(
    make_desk: Callable[..., Desk], redis_server: RedisServer, redis_url: str
) -> None:
    desk = make_desk(exclusive_store=redis_url)
    hold(desk, "x:fine")
    with redis_server.client() as client:
        client.hset("cx2:{0}:l:x:odd one", mapping={"": "no numbers"})
    reason, sentence = why(desk, "b", code=1)
    assert (reason, "Lock x:odd one has damaged data, which may name this task. Its" in sentence) == (
        "not_ours",
        True,
    )
    step = shlex.split(json.loads(desk.run("why", "--json", "b").stdout)["next_step"])
    assert step == ["celery", "-A", "proj", "locks", "why", "x:odd one"]
    assert "locks release --force" in desk.run(*step[4:]).stderr
    assert why(desk, "a")[0] == "running"


@pytest.mark.proves("locks why")
def test_a_store_that_does_not_answer_is_the_answer(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk(exclusive_store="redis://:secret@127.0.0.1:1/0")
    done = desk.run("why", "a", "--json")
    assert done.exit_code == 3
    assert "secret" not in done.output
    answer = json.loads(done.stdout)
    assert (answer["reason"], answer["next_step"]) == ("store_down", "celery -A proj locks doctor")
    assert answer["sentence"].startswith("STORE DOWN: store redis://:**@127.0.0.1:1/0 does not answer")


@pytest.mark.proves("locks why")
@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_hostile_ids_keys_and_arguments_are_only_text(desk: Desk, text: str) -> None:
    key = absolute_key(text)
    hold(desk, key, text)
    park(desk, key, f"b{text}")
    desk.store.apply(key, Acquire("c/p", TOKEN, SECOND, message=message("c", key, repr((text,)), text)))
    for word in (text, f"b{text}", "c", key):
        done = desk.run("why", "--", word)
        assert done.exit_code == 0, done.output
        assert all(line.isprintable() for line in done.stdout.splitlines())
        step = done.stdout.splitlines()[1].removeprefix("next: ")
        assert shlex.split(step)[:3] == ["celery", "-A", "proj"]
    for words in (("ls",), ("show", "--", key)):
        shown = desk.run(*words)
        assert (shown.exit_code, shown.stdout.replace("\n", "").isprintable()) == (0, True)
