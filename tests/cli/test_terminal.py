"""What the command reads and prints, on a store in the tests' own process."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click
import pytest
from celery.signals import user_preload_options
from hypothesis import example, given
from hypothesis import strategies as st

from celery_exclusive import Exclusive, Unique, WaitingTask
from celery_exclusive.cli.locks import locks
from celery_exclusive.core.claim import Claim
from celery_exclusive.core.key_state import OFFERS_IN_LINE
from celery_exclusive.core.operations import Enqueue, ForceRelease, Release
from celery_exclusive.core.records import SECOND
from celery_exclusive.display import duration, escaped, unescaped
from celery_exclusive.errors import LockHeld
from celery_exclusive.messages.header import HEADER, Header
from celery_exclusive.messages.stored import StoredMessage
from celery_exclusive.options.key_text import absolute_key, without_hash
from tests.cli.conftest import Desk


def message(id: str, key: str) -> bytes:
    headers = {"id": id, "task": "desk.load", HEADER: Header("p", key).write()}
    return StoredMessage(b"[[], {}, {}]", "application/json", "utf-8", headers, {}, "", "desk").dump()


@pytest.mark.proves("locks ls")
def test_ls_has_a_row_for_each_holder_and_one_for_a_line_without(desk: Desk):
    @desk.app.task(name="desk.load", shared=False, exclusive=Exclusive(limit=2))
    def load() -> None: ...

    desk.acquire("x:desk.load", "a/p", limit=2)
    desk.acquire("x:日本", "h/p")
    desk.pass_time(2)
    desk.acquire("x:desk.load", "b/p", limit=2)
    desk.acquire("x:日本", "c/p", message=message("c", "x:日本"))
    desk.store.apply("x:日本", Release("h/p", "token"))
    desk.pass_time(182)
    shown = desk.run("ls")
    assert shown.exit_code == 0
    assert f"locks in {desk.store.url} (exclusive_store), exclusive_prefix cx" in shown.stderr
    assert "the memory of one process" in shown.stderr
    assert shown.stdout.splitlines() == [
        "KEY          ARGS  STATE    HOLDER  WORKER  HELD   WAITING  OLDEST  LIMIT",
        "x:desk.load  -     running  a       -       3m04s  0        -       2",
        "x:desk.load  -     running  b       -       3m02s",
        "x:日本       -     waiting  -       -       -      1        3m01s   1",
    ]
    assert desk.run("ls", "desk.").stdout.count("\n") == 3
    assert desk.run("ls", "nothing").stdout == ""


def test_a_store_whose_name_is_hostile_is_shown_escaped(make_desk: Callable[..., Desk]):
    desk = make_desk(exclusive_store="memory://a\x1b[2J\nb")
    shown = desk.run("ls")
    assert r"locks in memory://a\x1b[2J\x0ab (exclusive_store)" in shown.stderr
    assert all(line.isprintable() for line in shown.stderr.split("\n"))


@pytest.mark.proves("locks ls")
def test_a_task_aside_is_distinguished_in_ls(desk: Desk):
    desk.acquire("x:k", "a/p")
    for id in ("b/p", "c/p"):
        desk.acquire("x:k", id, message=message(id[0], "x:k"))
    desk.store.apply("x:k", Release("a/p", "token"))
    for _ in range(OFFERS_IN_LINE):
        desk.pass_time(700)
        desk.store.reap()
    assert desk.run("ls").stdout.splitlines()[1].endswith("  2 (1 aside)  1h33m   1")
    (lock,) = map(json.loads, desk.run("ls", "--json").stdout.splitlines())
    (in_line,) = lock.pop("line")
    assert (in_line["task_id"], in_line["is_offered"]) == ("c", True)
    assert in_line["age"] == 5600
    expected = {"key": "x:k", "task": None, "state": "waiting", "holders": [], "waiting": 1, "aside": 1}
    assert {name: lock[name] for name in expected} == expected


@pytest.mark.promise(
    "`locks show`, `locks ls --json` and `lock_state()` name the first ten tasks in line: for how long each "
    "has waited, when its window closes, and when it gives up or expires"
)
def test_show_names_the_first_tasks_in_line_and_their_times(desk: Desk):
    @desk.app.task(name="desk.load", shared=False, exclusive=Exclusive())
    def load() -> None: ...

    key = load.lock_state().key
    desk.acquire(key, "a/p")
    desk.pass_time(5)
    desk.acquire(key, "b/p", message=b"", gives_up_in=60 * SECOND)
    desk.store.apply(key, Enqueue("c/p", b"", waits=(90 * SECOND, 600 * SECOND)))
    for number in range(10):
        desk.acquire(key, f"{number}/p", message=b"")
    desk.pass_time(10.5)
    lines = desk.run("show", "desk.load", "--limit", "10").stdout.splitlines()
    assert lines[:5] == [
        f"lock {key}",
        "  running; limit 1; 12 in line, 0 aside",
        "  running: a, for 15s; its lease expires in 9m44s without renewal",
        "  1 in line: b, for 10s; gives up in 49s",
        "  2 in line: c, for 10s; waits for newer calls, not before 1m19s from now",
    ]
    assert lines[-1] == "  and 2 more wait"
    assert len(desk.run("show", "desk.load").stdout.splitlines()) == 3 + 12
    (lock,) = map(json.loads, desk.run("ls", "--json").stdout.splitlines())
    names = ("task_id", "age", "is_offered", "not_before", "ends_in", "gives_up", "place")
    assert [[one[name] for name in names] for one in lock["line"][:2]] == [
        ["b", 10.5, False, None, 49.5, True, 1],
        ["c", 10.5, False, 79.5, None, False, 2],
    ]
    state = load.lock_state()
    assert state.line[0] == WaitingTask("b", 10.5, ends_in=49.5, place=1, gives_up=True)
    assert [task.not_before for task in state.line] == [None, 79.5, *[None] * 8]


ODD = [
    "repo:17",
    "two words",
    "\x1b[31m\x07",
    "a\\x41",
    "a\\",
    "\\Uffffffff",
    "\u202egpj",
    "日本",
    "line\nbreak",
    "-rf",
    "'$(x)'",
]


@pytest.mark.promise(
    "Any key can be shown on a terminal and released as shown or as written",
    name="keys on a terminal",
    broke="no escape; no unescape; no `x=` for texts; texts as written first; short names only",
)
@pytest.mark.parametrize("text", [*ODD, "t" * 300], ids=ascii)
def test_release_takes_a_key_as_ls_shows_it_and_as_its_author_wrote_it(desk: Desk, text: str):
    @desk.app.task(name="desk.load", shared=False, exclusive=Exclusive(key=lambda: text))
    def load() -> None: ...

    key = load.lock_state().key
    decoy = f"x={unescaped(text)}!"
    desk.acquire(decoy, "decoy/p")
    for written in (None, text):
        desk.acquire(key, "a/p")
        shown = next(line for line in desk.run("ls").stdout.split("\n") if "  a  " in line)
        assert shown.isprintable()
        word = written or shown[: shown.index("  -  ")].rstrip()
        refused = desk.run("release", "--", word)
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert refused.stderr.strip().replace("\n", "").isprintable()
        done = desk.run("release", "--force", "--reason", "a test", "--", word)
        assert (done.exit_code, done.stdout.splitlines()[0]) == (0, f"lock {escaped(key)}")
        assert not desk.store.inspect(key).holders
    assert desk.store.inspect(decoy).holders


@pytest.mark.promise(
    "A string that is called like a task: `locks release` releases nothing unless it is said which",
    broke="the first of both; the string shown as the task's; a string taken that begins with the name",
)
def test_a_text_that_is_called_like_a_task_is_a_lock_of_its_own_and_release_asks_which(desk: Desk):
    @desk.app.task(name="desk.load", shared=False, exclusive=Exclusive())
    def load() -> None: ...

    desk.acquire(load.lock_state().key, "task/p")
    desk.acquire(absolute_key("desk.load"), "text/p")
    rows = [line.split()[:4:3] for line in desk.run("ls", "desk.load").stdout.splitlines()[1:]]
    assert rows == [["x:desk.load", "task"], ["x=desk.load", "text"]]
    refused = desk.run("release", "--force", "--reason", "a test", "desk.load")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "'desk.load' may mean x:desk.load or x=desk.load: name one of them" in refused.stderr
    assert desk.run("release", "--force", "--reason", "a test", "x=desk.load").stdout.startswith(
        "lock x=desk.load\n  released the lease of text"
    )
    assert desk.run("release", "--force", "--reason", "a test", "desk.load").stdout.startswith(
        "lock x:desk.load\n  released the lease of task"
    )
    desk.acquire(longer := absolute_key("desk.load:eu"), "eu/p")
    absent = desk.run("release", "--force", "--reason", "a test", "desk.load")
    assert (absent.exit_code, "no task holds or waits for 'desk.load'" in absent.stderr) == (1, True)
    assert desk.store.inspect(longer).holders


@pytest.mark.proves("keys on a terminal")
def test_a_key_as_ls_shows_it_is_taken_before_a_text_that_is_written_so(desk: Desk):
    keys = [absolute_key(text) for text in ("a\\", "a\\\\", "x=a")] + [absolute_key("a")]
    for key in keys:
        desk.acquire(key, "a/p")
    for key in keys:
        assert (
            desk.run("release", "--force", "--reason", "a test", escaped(key)).stdout.splitlines()[0]
            == f"lock {escaped(key)}"
        )


@pytest.mark.proves("keys on a terminal")
@pytest.mark.parametrize(
    "name", ["desk.load", "desk." + "n" * 300, "desk.näch\\t\n", "desk~" + "0" * 32], ids=ascii
)
def test_ls_finds_the_task_of_a_key_and_the_keys_of_a_name_however_long(desk: Desk, name: str):
    @desk.app.task(name=name, shared=False, exclusive=Exclusive("n"), unique=Unique(key=name))
    def load(n: int) -> None: ...

    one = load.lock_state(1).key
    shared = absolute_key(name, "u")
    for key in (one, shared, "x:other", "x=other"):
        desk.acquire(key, "a/p")
    for prefix in (name, escaped(name), escaped(name)[:100]):
        locks = [json.loads(line) for line in desk.run("ls", "--json", prefix).stdout.splitlines()]
        assert [(lock["key"], lock["task"]) for lock in locks] == [(shared, None), (one, name)]
    for key in (one, shared):
        for word in (key, key[2:]):
            assert f"\n{escaped(key)} " in desk.run("ls", escaped(word)).stdout
            assert desk.run("release", "--force", "--reason", "a test", escaped(word)).stdout.startswith(
                f"lock {escaped(key)}\n"
            )
            desk.acquire(key, "a/p")


@pytest.mark.proves("keys on a terminal")
@pytest.mark.parametrize("name", ["desk.load", "desk." + "n" * 300, "desk.näch\\t\n"], ids=ascii)
def test_the_name_of_a_task_means_its_only_key_with_arguments_however_long(desk: Desk, name: str):
    @desk.app.task(name=name, shared=False, exclusive=Exclusive("n"))
    def load(n: int) -> None: ...

    key = load.lock_state(1).key
    for word in (name, escaped(name), escaped(without_hash(key)[2:])):
        desk.acquire(key, "a/p")
        done = desk.run("release", "--force", "--reason", "a test", word)
        assert done.stdout.startswith(f"lock {escaped(key)}\n"), word


@pytest.mark.proves("keys on a terminal")
@given(st.text())
@example("\\x41\\\\")
def test_an_escaped_key_is_printable_and_can_be_read_back(text: str):
    assert escaped(text).isprintable()
    assert unescaped(escaped(text)) == text


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.9, "0s"), (59.9, "59s"), (60, "1m00s"), (184, "3m04s"), (7500, "2h05m"), (273_600, "3d04h")],
)
def test_durations_are_short_and_rounded_down(seconds: float, shown: str):
    assert duration(seconds) == shown


@pytest.mark.promise(
    "A line whose offer was lost goes on by `locks release`, without force",
    broke="nothing done when the key has no holder",
)
def test_a_line_whose_offer_was_lost_goes_on_by_release_without_force(desk: Desk):
    desk.acquire("x:k", "a/p")
    desk.acquire("x:k", "b/p", message=message("b", "x:k"))
    desk.store.apply("x:k", Release("a/p", "token"))  # and what this wakes is not published
    early = desk.run("release", "k")
    assert (early.exit_code, early.stdout) == (0, "lock x:k\n  it had no holder\n  1 in line for this key\n")
    desk.pass_time(6)
    done = desk.run("release", "k")
    assert done.stdout.endswith("  it had no holder\n  1 in line for this key, the lock is offered to b\n")
    with desk.app.connection_for_read() as connection:
        queue = connection.SimpleQueue("desk")
        assert queue.get(timeout=10).headers["id"] == "b"
        queue.close()


@pytest.mark.proves("errors of the command")
def test_releasing_a_free_key_is_an_error_that_suggests_the_key_that_was_meant(desk: Desk):
    desk.acquire("x:repo:17", "a/p")
    for word in ("repo:71", "x:repo:71"):
        refused = desk.run("release", word)
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert f"did you mean '{word[:-2]}17'?" in refused.stderr


@pytest.mark.proves("errors of the command")
def test_wrong_usage_ends_with_2(desk: Desk):
    assert desk.run("release").exit_code == 2
    assert desk.run("ls", "--jsn").exit_code == 2
    assert desk.run("list").exit_code == 2


@pytest.mark.promise(
    "`celery locks` accepts the options that the app adds to all commands",
    broke="without `handle_preload_options`",
)
def test_an_app_may_have_options_for_all_commands(desk: Desk, monkeypatch: pytest.MonkeyPatch):
    zone = click.Option(["--zone"])
    desk.app.user_options["preload"].add(zone)
    monkeypatch.setattr(locks, "params", [*locks.params, zone])  # as `celery` does
    given: list[dict[str, str]] = []
    take = user_preload_options.connect(lambda options, **_: given.append(options), weak=False)
    try:
        assert desk.run("--zone", "north", "ls").exit_code == 0
    finally:
        user_preload_options.disconnect(take)
    assert given == [{"zone": "north"}]


TROUBLES: dict[str, tuple[dict[str, Any], str]] = {
    "an app without install": ({"installed": False}, "celery_exclusive.install(app)"),
    "a wrong setting": ({"exclusive_tll": 3}, "did you mean 'exclusive_ttl'?"),
    "no store": ({"exclusive_store": None, "broker_url": "pyamqp://"}, "exclusive_store"),
}


@pytest.mark.proves("errors of the command")
@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_mistake_in_the_app_is_reported_in_one_line(make_desk: Callable[..., Desk], trouble: str):
    conf, hint = TROUBLES[trouble]
    done = make_desk(**conf).run("ls")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    assert hint in done.stderr


@pytest.mark.proves("errors of the command")
def test_tasks_that_cannot_be_imported_do_not_keep_an_operator_from_looking(make_desk: Callable[..., Desk]):
    desk = make_desk(imports=["no_such_module"])
    desk.acquire("x:k", "a/p")
    done = desk.run("ls")
    assert (done.exit_code, "x:k" in done.stdout) == (0, True)
    assert "Warning: not all tasks could be imported" in done.stderr
    assert "no_such_module" in done.stderr


@pytest.mark.promise(
    "`task.release_lock` does the same as `locks release` from code",
    broke="always forces; only the first holder",
)
def test_release_lock_does_the_same_from_code(desk: Desk):
    @desk.app.task(name="desk.load", shared=False, exclusive=Exclusive("url", limit=2))
    def load(url: str, force: bool = False) -> None: ...

    key = load.lock_state("u").key
    assert load.release_lock("u") == ()
    for id in ("a/p", "b/p"):
        desk.acquire(key, id, limit=2)
    desk.pass_time(3)
    with pytest.raises(LockHeld, match=r"held by a for 3\.0s and 1 more") as refusal:
        load.release_lock("u")
    assert (refusal.value.key, refusal.value.holder) == (key, "a")
    assert load.lock_state("u").is_running
    broken = load.release_lock("u", force=True)
    assert [holder.task_id for holder in broken] == ["a", "b"]
    assert (broken[0].age, broken[0].remaining) == (3.0, 597.0)
    assert not load.lock_state("u").is_running
    assert load.release_lock("u", force=True) == ()


@pytest.mark.promise(
    "`locks ls` distinguishes queued and running; a queued key needs no force; `locks release` says what "
    "becomes of a queued task, and of a period",
    broke="begun when it is published; a period shown as a queued task",
)
def test_releasing_a_unique_key_needs_force_only_while_its_task_runs(desk: Desk):
    @desk.app.task(name="desk.send", shared=False, unique=Unique("url"))
    def send(url: str) -> None: ...

    @desk.app.task(name="desk.seldom", shared=False, unique=Unique(period=60))
    def seldom() -> None: ...

    assert "desk.seldom" in desk.app.tasks
    period = seldom.delay()
    desk.pass_time(40)
    assert " period " in desk.run("ls", "desk.seldom").stdout
    ended = desk.run("release", period.key)
    assert ended.exit_code == 0
    assert "its period has ended; if its task has not run yet, it runs all the same" in ended.stdout
    assert "its message" not in ended.stdout
    queued, runs = send.delay("q"), send.delay("r")
    start = Claim(runs.key, f"{runs.id}/p", "token", 0)
    desk.store.apply(runs.key, ForceRelease(desk.store.inspect(runs.key).holders[0].id))
    desk.store.apply(runs.key, start.acquire_alone(30 * SECOND, "running"))
    rows = {row.split()[0]: row.split()[2:4] for row in desk.run("ls", "desk.send").stdout.splitlines()[1:]}
    assert rows == {queued.key: ["queued", queued.id], runs.key: ["running", runs.id]}
    unnamed = desk.run("release", "desk.send")
    assert "'desk.send' has 2 keys; name one, as `locks ls desk.send` lists them" in unnamed.stderr
    refused = desk.run("release", runs.key)
    assert refused.exit_code == 1
    assert f"held by {runs.id}" in refused.stderr
    given_back = desk.run("release", queued.key)
    assert given_back.exit_code == 0
    assert "if its message is not lost, its task runs all the same" in given_back.stdout
    assert send.delay("q").outcome == "published"
    (broken,) = send.release_lock("q")
    assert broken.task_id != queued.id
    with pytest.raises(LockHeld):
        send.release_lock("r")
    assert send.release_lock("r", force=True)[0].task_id == runs.id
    assert desk.run("ls").stdout == ""
