"""`locks ls`: what it lists, in which order, and how often; `lock_state().place_of` and `locks` in code."""

from __future__ import annotations

import json
import os
import pickle
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from celery._state import _get_active_apps

from celery_exclusive import Exclusive, OptionError, locks
from celery_exclusive.core.operations import Acquire, Release, Remove
from celery_exclusive.core.records import SECOND
from celery_exclusive.stores.base import open_store
from tests.cli.conftest import Desk
from tests.worker.journal import eventually
from tests.worker.lab import Lab


@pytest.fixture
def busy(desk: Desk) -> Desk:
    """Keys that are held for 1, 2 and 3 minutes, with 1, 3 and 0 tasks in line, and a task of each."""

    @desk.app.task(name="desk.load", shared=False, exclusive=Exclusive("n", limit=2))
    def load(n: int) -> None: ...

    @desk.app.task(name="desk.load_all", shared=False, exclusive=Exclusive())
    def load_all() -> None: ...

    for key, waiting in (("x=c", 0), ("x:desk.load_all", 3), ("x=a", 1)):
        desk.acquire(key, "holder/p")
        for number in range(waiting):
            desk.acquire(key, f"{number}/p", message=b"")
        desk.pass_time(60)
    desk.acquire(load.lock_state(1).key, "holder/p", limit=2)  # type: ignore[attr-defined]
    return desk


@pytest.mark.promise(
    "`celery locks --url STORE` lists and shows the keys of a store without the app, and does nothing else",
    broke="`drop` accepted",
)
def test_the_keys_of_a_store_are_shown_without_the_app(
    make_desk: Callable[..., Desk], tmp_path: Path
) -> None:
    url, apps = f"sqlite:///{tmp_path}/locks.db", list(_get_active_apps())
    with closing(open_store(url, prefix="shop")) as store:
        store.apply("x:k", Acquire("a/p", "token", 600 * SECOND))
        desk = make_desk(installed=False)
        for words in (("ls",), ("show", "x:k")):
            done = desk.run("--url", url, "--prefix", "shop", *words)
            assert (done.exit_code, "running" in done.stdout) == (0, True), done.output
        for words in (("release", "x:k"), ("drop", "x:k"), ("adopt",), ("why", "x:k"), ("doctor",)):
            done = desk.run("--url", url, *words)
            assert (done.exit_code, "--url is for ls and show" in done.output) == (2, True), done.output
        assert store.inspect("x:k").holders
        refused = desk.run("--prefix", "shop", "ls")
        assert (refused.exit_code, "--prefix goes with --url" in refused.output) == (2, True), refused.output
    mistyped = desk.run("--url", f"sqlite:///{tmp_path}/lock.db", "ls")
    assert (mistyped.exit_code, "is it the store of the app?" in mistyped.output) == (3, True), (
        mistyped.output
    )
    assert {*_get_active_apps()} <= {*apps, desk.app}, "shared tasks are given to the others"


def listed(desk: Desk, *words: str) -> list[str]:
    done = desk.run("ls", "--json", *words)
    assert done.exit_code == 0, done.output
    keys = [json.loads(line)["key"] for line in done.stdout.splitlines()]
    table = [line.split()[0] for line in desk.run("ls", *words).stdout.splitlines()[1:]]
    assert table == keys
    return [key.partition(":0")[0] if key.startswith("x:desk.load:") else key for key in keys]


@pytest.mark.promise(
    "`locks ls --task` of a task with `key=` lists the keys that its template can make, and says that it "
    "cannot know the keys that a function makes",
    broke="red before: no lock of the task; a template whose braces match no text; unique keys for locks",
)
def test_the_shared_keys_of_a_task_are_listed(busy: Desk) -> None:
    def body(name: str, part: str) -> None: ...

    def made(name: str, part: str) -> str:
        return f"{name}{part}"

    for task, key in {"desk.sync": "a{name}:{part}.b", "desk.made": made}.items():
        busy.app.task(name=task, shared=False, exclusive=Exclusive(key=key))(body)
    for key in ("x=ax:y.b", "x=a:.b", "x=ax:yxb", "u=ax:y.b", "x=bax:y.b"):
        busy.acquire(key, "holder/p")
    assert listed(busy, "--task", "desk.sync") == ["x=a:.b", "x=ax:y.b"]
    done = busy.run("ls", "--task", "desk.made")
    assert (done.exit_code, "strings that a function makes" in done.stderr) == (0, True)


@pytest.mark.promise(
    "`locks ls` lists the longest lines or waits first, so many keys, the keys of one task, or the ones that "
    "tasks wait for; with --watch again and again until Ctrl-C, in place of the list before on a terminal",
    name="locks ls, chosen",
    broke="--top before --sort; a prefix for the name of a task; no control codes on a terminal; no call but "
    "the first in line read",
)
def test_keys_are_chosen_and_sorted(busy: Desk) -> None:
    everything = listed(busy)
    assert [key[:12] for key in everything] == ["x:desk.load:", "x:desk.load_", "x=a", "x=c"]
    assert listed(busy, "--sort", "waiting")[:2] == ["x:desk.load_all", "x=a"]
    assert listed(busy, "--sort", "waiting", "--top", "1") == ["x:desk.load_all"]
    assert listed(busy, "--sort", "age", "--top", "2") == ["x=c", "x:desk.load_all"]
    assert listed(busy, "--waiting") == ["x:desk.load_all", "x=a"]
    assert listed(busy, "--task", "desk.load_all") == ["x:desk.load_all"]
    assert listed(busy, "--task", "desk.load") == everything[:1]
    assert listed(busy, "--task", "desk.load", "x=") == []
    assert (
        "no lock of task 'desk.laod': did you mean 'desk.load'?"
        in busy.run("ls", "--task", "desk.laod").stderr
    )


@pytest.mark.proves("locks ls, chosen")
def test_a_line_that_moves_on_while_it_is_looked_at_keeps_its_arguments(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    @desk.app.task(name="desk.sync", shared=False, exclusive=Exclusive("tenant", order="published"))
    def sync(tenant: str, n: int) -> None: ...

    key = sync.lock_state("acme", 0).key  # type: ignore[attr-defined]
    desk.acquire(key, "holder/p")
    for n in range(3):
        sync.delay("acme", n)
    first, read = desk.store.line(key).places[0].waiting.id, desk.store.messages_of

    def begin_first(tasks: Any) -> Any:
        desk.store.apply(key, Remove(first, "open"))
        return read(tasks)

    monkeypatch.setattr(desk.store, "messages_of", begin_first)
    (state,) = locks.keys(app=desk.app)
    assert state.args == "tenant='acme'"


@pytest.mark.proves("locks ls, chosen")
@pytest.mark.parametrize("words", [("--top", "0"), ("--sort", "key"), ("--watch", "--json")])
def test_wrong_choices_are_wrong_usage(busy: Desk, words: tuple[str, ...]) -> None:
    assert busy.run("ls", *words).exit_code == 2


@pytest.mark.proves("locks ls, chosen")
@pytest.mark.parametrize("is_terminal", [True, False], ids=["terminal", "pipe"])
def test_the_list_is_watched_until_it_is_interrupted(
    make_lab: Callable[..., Lab], *, is_terminal: bool
) -> None:
    lab = make_lab()
    store = lab.app._celery_exclusive.store
    store.apply("x=first", Acquire("a/p", "token", 600 * SECOND))
    ours, theirs = pty.openpty() if is_terminal else os.pipe()
    watching = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", lab.module, "locks", "ls", "--watch"],
        env={**lab.environment, "LINES": "10", "COLUMNS": "200"},
        cwd=lab.folder,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs)
    shown = b""

    def shows(text: bytes) -> bool:
        nonlocal shown
        shown += os.read(ours, 10_000)
        return text in shown

    try:
        eventually(lambda: shows(b"x=first"), "the first key")
        store.apply("x=first", Release("a/p", "token"))
        store.apply("x=second", Acquire("b/p", "token", 600 * SECOND))
        eventually(lambda: shows(b"x=second"), "the second key")
        watching.send_signal(signal.SIGINT)
        assert watching.wait(30) == 0
    finally:
        watching.kill()
        watching.wait()
        os.close(ours)
    assert (b"\x1b[H\x1b[J" in shown) is is_terminal


@pytest.mark.promise(
    "`celery_exclusive.locks` has the answers of the commands as objects, and `lock_state().place_of(id)` "
    "the place of a task behind the first ten, too",
    name="locks in code",
    broke="the first ten places alone; keys of all tasks; the line of the lock alone",
)
def test_the_answers_are_objects_in_code(busy: Desk) -> None:
    app = busy.app
    task: Any = app.tasks["desk.load_all"]
    assert [key.key for key in locks.keys(task="desk.load_all", app=app)] == ["x:desk.load_all"]
    assert [key.waiting for key in locks.keys("x=", app=app)] == [1, 0]
    assert [(one.place, one.task_id) for one in locks.waiting(task)] == [(1, "0"), (2, "1"), (3, "2")]
    answer = locks.why("2", app=app)
    assert answer.waiting
    assert (answer.reason, answer.waiting.place, answer.key and answer.key.key) == (
        "in_line",
        3,
        "x:desk.load_all",
    )
    with pytest.raises(OptionError, match=r"write \['a'\]"):
        locks.waiting(app.tasks["desk.load"], "a")
    with pytest.raises(OptionError, match="has no locks"):
        locks.keys(app=object())


@pytest.mark.proves("locks in code")
def test_the_place_of_a_task_is_found_behind_the_first_ten(busy: Desk) -> None:
    task: Any = busy.app.tasks["desk.load_all"]
    for number in range(3, 300):
        busy.acquire("x:desk.load_all", f"{number}/p", message=b"")
    state = task.lock_state()
    assert [state.place_of(id) for id in ("0", "9", "299", "nothing")] == [1, 10, 300, None]
    copy = pickle.loads(pickle.dumps(state))
    assert copy == state
    assert (copy.place_of("9"), copy.place_of("299")) == (10, None)
