"""`locks drop` and `locks put`: what they accept, refuse, save and publish, without a worker."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult
from celery.signals import task_revoked
from click.testing import Result
from redis.exceptions import ConnectionError  # noqa: A004 - as redis-py calls it

from celery_exclusive import Debounce, Exclusive, Unique, locks
from celery_exclusive.core.claim import LAST_CHANCE
from celery_exclusive.core.operations import Enqueue, Release, Remove, Stale
from celery_exclusive.operate import dropping
from celery_exclusive.operate.patience import NoAnswer
from celery_exclusive.operate.saved import SavedFile
from tests.cli.conftest import Desk

pytestmark = pytest.mark.proves("dropped from the line")

KEY = "x:desk.work"
HOUR = 3_600


@pytest.fixture
def desk(make_desk: Callable[..., Desk]) -> Desk:
    """An app whose calls take their places when they are published; another task holds the key."""
    desk = make_desk(result_backend="cache+memory://")
    desk.store._store.clock = lambda: desk.now
    add_tasks(desk)
    desk.acquire(KEY, "holder/1")
    return desk


def add_tasks(desk: Desk) -> None:
    options: dict[str, dict[str, Any]] = {
        "desk.work": {"exclusive": Exclusive(order="published")},
        "desk.once": {
            "exclusive": Exclusive(key="shared", order="published"),
            "unique": Unique("n"),
        },
        "desk.late": {"unique": Debounce("n", wait=60, max_wait=600)},
    }
    for name, chosen in options.items():
        desk.app.task(name=name, shared=False, **chosen)(work)


def work(n: int) -> int:
    return n


def call(desk: Desk, n: int, name: str = "desk.work", **options: Any) -> AsyncResult[Any]:
    result: AsyncResult[Any] = desk.app.tasks[name].apply_async((n,), **options)
    return result


def drop(desk: Desk, *words: str, file: Path | None = None) -> Result:
    to = ("--to", str(file)) if file else ()
    return desk.run("drop", *words, *to, "--yes")


def waiting(desk: Desk, key: str = KEY) -> list[str]:
    return [place.waiting.id.partition("/")[0] for place in desk.store.line(key).places]


def records(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def as_json(done: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_dropped_tasks_end_as_revoked_and_are_saved_whole(desk: Desk, tmp_path: Path) -> None:
    results = [call(desk, n) for n in range(3)]
    file = tmp_path / "line.jsonl"
    done = drop(desk, "desk.work", file=file)
    assert done.exit_code == 0, done.output
    assert f"dropped 3 tasks, saved in {file}" in done.stdout
    assert waiting(desk) == []
    assert [result.state for result in results] == ["REVOKED"] * 3
    with pytest.raises(TaskRevokedError, match="dropped from the line of its lock"):
        results[0].get(timeout=5)
    saved = [record for record in records(file) if "saved" in record]
    assert [record["saved"].partition("/")[0] for record in saved] == [result.id for result in results]
    assert all(result.id in record["message"] for result, record in zip(results, saved, strict=True))
    assert file.stat().st_mode & 0o077 == 0, "it has arguments of tasks"
    file.chmod(0o644)
    call(desk, 3)
    assert drop(desk, "desk.work", file=file).exit_code == 0
    assert file.stat().st_mode & 0o077 == 0
    assert desk.store.inspect(KEY).holders[0].id == "holder/1"


def test_put_publishes_tasks_with_their_ids_in_their_order_and_results_wait_again(
    desk: Desk, tmp_path: Path
) -> None:
    results = [call(desk, n) for n in range(3)]
    drop(desk, KEY, file=tmp_path / "f")
    newer = call(desk, 9)
    done = desk.run("put", str(tmp_path / "f"))
    assert done.exit_code == 0, done.output
    assert "3 tasks put" in done.stdout
    assert waiting(desk) == [newer.id, *(result.id for result in results)]
    assert [desk.app.AsyncResult(result.id).state for result in results] == ["PENDING"] * 3


def test_a_second_put_puts_no_task_twice(desk: Desk, tmp_path: Path) -> None:
    call(desk, 1)
    file = str(tmp_path / "f")
    drop(desk, KEY, file=tmp_path / "f")
    assert as_json(desk.run("put", file, "--json"))["put"] == 1
    assert as_json(desk.run("put", file, "--json"))["before"] == 1
    lines = (tmp_path / "f").read_text().splitlines(keepends=True)
    (tmp_path / "f").write_text("".join(lines[:-1]))  # the command was killed before it noted that
    again = as_json(desk.run("put", file, "--json"))
    assert (again["put"] + again["known"], len(waiting(desk))) == (1, 1)
    assert as_json(desk.run("put", file, "--again", "--json"))["put"] == 1
    assert len(waiting(desk)) == 2


def test_keys_without_a_line_are_not_read(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        desk.acquire(f"x:idle:{number}", "holder/1")
    call(desk, 1)
    store, read = desk.store._store, list[str]()
    line, states = store.line, store.inspect_all
    monkeypatch.setattr(store, "line", lambda key, *page: read.append(key) or line(key, *page))
    monkeypatch.setattr(store, "inspect_all", lambda keys: read.extend(keys) or states(keys))
    for words in ("ls --waiting", "ls --sort waiting --top 1"):
        done = desk.run(*words.split())
        assert (done.exit_code, KEY in done.stdout or "1 " in done.stdout) == (0, True), done.output
    assert {*read} == {KEY}
    read.clear()
    monkeypatch.setattr(store, "inspect_all", states)
    assert "1 " in desk.run("drop", "--task", "desk.work", "--dry-run").stdout
    assert {*read} == {KEY}


@pytest.mark.promise(
    "A part of the dropped tasks is put, and the same command puts the next part, until none is left",
    broke="the limit is ignored; tasks that were put before count; `--again` is accepted beside it",
)
def test_put_with_a_limit_puts_the_tasks_in_parts(desk: Desk, tmp_path: Path) -> None:
    results = [call(desk, n) for n in range(5)]
    file = str(tmp_path / "f")
    drop(desk, KEY, file=tmp_path / "f")
    done = desk.run("put", file, "--limit", "2")
    assert (done.exit_code, done.stdout.splitlines()) == (
        0,
        ["2 tasks put", "3 remain in the file: the same command puts the next ones"],
    )
    assert waiting(desk) == [result.id for result in results[:2]]
    refused = desk.run("put", file, "--limit", "2", "--again")
    assert (refused.exit_code, "takes no --limit" in refused.stderr) == (2, True)
    parts = [as_json(desk.run("put", file, "--limit", "2", "--json"))["put"] for _ in range(3)]
    assert parts == [2, 1, 0]
    assert waiting(desk) == [result.id for result in results]


def test_a_line_moves_to_another_store(desk: Desk, make_desk: Callable[..., Desk], tmp_path: Path) -> None:
    results = [call(desk, n) for n in range(2)]
    drop(desk, KEY, file=tmp_path / "f")
    other = make_desk(exclusive_prefix="other")
    add_tasks(other)
    other.acquire(KEY, "holder/1")
    done = other.run("put", str(tmp_path / "f"))
    assert done.exit_code == 0, done.output
    assert waiting(other) == [result.id for result in results]


@pytest.mark.promise(
    "A late copy of a dropped message does not run beside its task that was put into another store",
    broke="`put` does not make the old message obsolete in the new store: the copy joins the line there",
)
def test_a_late_copy_of_a_task_that_was_put_into_another_store_does_not_run(
    desk: Desk, make_desk: Callable[..., Desk], tmp_path: Path
) -> None:
    result = call(desk, 1)
    drop(desk, KEY, file=tmp_path / "f")
    (saved,) = (record["saved"] for record in records(tmp_path / "f") if "saved" in record)
    other = make_desk(result_backend="cache+memory://")
    add_tasks(other)
    other.acquire(KEY, "holder/1")
    other.acquire(KEY, saved, promoted="of the old store", message=b"a copy that comes before")
    assert waiting(other) == [result.id]
    assert as_json(other.run("put", str(tmp_path / "f"), "--json"))["put"] == 1
    for redelivered in (False, True):
        copy = other.acquire(KEY, saved, promoted="of the old store", redelivered=redelivered, message=b"")
        assert copy.answer == Stale()
    assert waiting(other) == [result.id]


def test_a_unique_key_is_free_after_a_drop_and_taken_by_put_unless_it_is_held(
    desk: Desk, tmp_path: Path
) -> None:
    desk.acquire("x=shared", "holder/2")
    first, second = (call(desk, n, "desk.once") for n in (1, 2))
    assert call(desk, 1, "desk.once").outcome == "skipped"
    drop(desk, "shared", file=tmp_path / "f")
    newer = call(desk, 1, "desk.once")
    assert newer.outcome == "published"
    done = desk.run("put", str(tmp_path / "f"))
    assert done.exit_code == 1
    assert "1 skipped, since their unique keys are held" in done.stdout
    assert f"task {first.id} was skipped: {newer.id} holds its unique key u:desk.once:" in done.stderr
    assert waiting(desk, "x=shared") == [newer.id, second.id]
    assert (first.state, desk.app.AsyncResult(second.id).state) == ("REVOKED", "PENDING")
    assert call(desk, 2, "desk.once").outcome == "skipped"


def test_a_window_of_calls_is_dropped_and_put(desk: Desk, tmp_path: Path) -> None:
    first = call(desk, 1, "desk.late")
    done = drop(desk, "--task", "desk.late", file=tmp_path / "f")
    assert done.exit_code == 0, done.output
    assert first.state == "REVOKED"
    key = first.key
    assert waiting(desk, key) == []
    assert desk.run("put", str(tmp_path / "f")).exit_code == 0
    assert waiting(desk, key) == [first.id]
    assert [wake.id.partition("/")[0] for wake in desk.store.reap().wake] == [first.id]


def test_a_window_that_newer_calls_have_opened_is_not_replaced_by_put(desk: Desk, tmp_path: Path) -> None:
    call(desk, 1, "desk.late")
    drop(desk, "--task", "desk.late", file=tmp_path / "f")
    newer = call(desk, 1, "desk.late")
    done = desk.run("put", str(tmp_path / "f"))
    assert (done.exit_code, newer.id in done.stderr) == (1, True)
    assert waiting(desk, newer.key) == [newer.id]


def test_tasks_are_chosen_by_their_name_age_and_ids(desk: Desk, tmp_path: Path) -> None:
    for key in ("x=shared", KEY):
        desk.acquire(key, "holder/2", limit=2)
    old = [call(desk, n) for n in range(2)]
    other = call(desk, 1, "desk.once")
    desk.pass_time(HOUR + 1)
    new = call(desk, 3)

    def chosen(*words: str, answer: str = "") -> set[str]:
        done = desk.run("drop", *words, "--dry-run", answer=answer)
        assert done.exit_code == 0, done.output
        return {result.id for result in (*old, other, new) if result.id in done.stdout}

    everything = {result.id for result in (*old, new)}
    assert chosen(KEY) == chosen("--task", "desk.work") == everything
    assert chosen("--task", "desk.once") == {other.id}
    assert chosen(KEY, "--older-than", "1h") == {result.id for result in old}
    ids = f"{old[1].id}\n\n{other.id}\nunknown\n"
    assert chosen("--ids", "-", answer=ids) == {old[1].id, other.id}
    assert chosen(KEY, "--ids", "-", answer=ids) == {old[1].id}
    (tmp_path / "ids").write_bytes(b"\xff\n" + ids.encode())
    assert chosen("--ids", str(tmp_path / "ids")) == {old[1].id, other.id}
    assert len(waiting(desk)) == 3, "a dry run changes nothing"


def test_the_name_of_no_task_is_a_problem(desk: Desk) -> None:
    call(desk, 1)
    done = desk.run("drop", "--task", "desk.wrk", "--discard", "--yes")
    assert (done.exit_code, "no task 'desk.wrk': did you mean 'desk.work'?" in done.stderr) == (1, True)
    none = desk.run("drop", "--task", "desk.once", "--discard", "--yes")
    assert (none.exit_code, "no task" in none.stderr) == (0, False)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "name a KEY, or a --task, or --ids"),
        ((KEY, "--task", "desk.work"), "not both"),
        ((KEY, "--yes"), "name a file with --to"),
        ((KEY, "--yes", "--to", "f", "--discard"), "one of them"),
        ((KEY, "--discard"), "say --yes, or --dry-run"),
        ((KEY, "--older-than", "soon"), "write 30s, 5m, 2h or 1d"),
    ],
)
def test_wrong_usage_is_refused_with_the_fix(desk: Desk, words: tuple[str, ...], problem: str) -> None:
    call(desk, 1)
    done = desk.run("drop", *words)
    assert (done.exit_code, problem in done.stderr) == (2, True), done.stderr
    assert len(waiting(desk)) == 1


@pytest.mark.promise(
    "On a terminal `locks drop` drops nothing before the number of the tasks is typed. With --json its "
    "output is one JSON object all the same",
    broke="any answer accepted; the question in the output",
)
@pytest.mark.parametrize(("answer", "code", "left"), [("3", 1, 2), ("y", 1, 2), ("", 1, 2), ("2", 0, 0)])
def test_tasks_are_dropped_when_their_number_is_typed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, left: int
) -> None:
    ids = [call(desk, n).id for n in range(2)]
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True)
    done = desk.run("drop", KEY, "--discard", "--json", answer=f"{answer}\n")
    assert (done.exit_code, len(waiting(desk))) == (code, left), done.output
    assert all(id in done.stderr for id in ids)
    assert [json.loads(line)["dropped"] for line in done.stdout.splitlines()] == [2] * (not left)


@pytest.mark.promise(
    "`locks drop` and `put` say in one line that a file, the result backend or the broker does not work. "
    "While the result backend does not answer, no task leaves its line",
    name="drop without backend",
    broke="a traceback; a device gets the rights of the file; discarded tasks without a result",
)
@pytest.mark.parametrize("to", ["pipe", "none/f"])
def test_a_file_that_keeps_nothing_is_refused(desk: Desk, tmp_path: Path, to: str) -> None:
    call(desk, 1)
    os.mkfifo(tmp_path / "pipe", 0o644)
    done = drop(desk, KEY, file=tmp_path / to)
    assert (done.exit_code, str(tmp_path / to) in done.stderr) == (1, True), done.output
    assert done.stderr.splitlines()[-1].startswith("Error: ")
    assert len(waiting(desk)) == 1
    assert (tmp_path / "pipe").stat().st_mode & 0o777 == 0o644


@pytest.mark.proves("drop without backend")
def test_no_task_leaves_its_line_while_the_result_backend_is_down(
    desk: Desk, make_desk: Callable[..., Desk], tmp_path: Path
) -> None:
    result = call(desk, 1)
    blind = make_desk(exclusive_store=desk.store.url, result_backend="redis://127.0.0.1:1")
    for words in (("--discard",), ("--to", str(tmp_path / "f"))):
        done = blind.run("drop", KEY, "--yes", *words)
        assert (done.exit_code, "mend that, and start the same command again" in done.stderr) == (1, True)
    with pytest.raises(ConnectionError, match=r"127\.0\.0\.1:1"):
        locks.cancel(result.id, app=blind.app)
    assert waiting(desk) == [result.id]


@pytest.mark.proves("drop without backend")
def test_a_drop_whose_result_backend_falls_silent_leaves_its_line_in_the_log(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    result = call(desk, 1)

    def end_as_revoked(*_: object) -> str:
        raise NoAnswer("result backend did not answer within 5 s")

    monkeypatch.setattr(dropping, "end_as_revoked", end_as_revoked)
    assert desk.run("drop", KEY, "--discard", "--yes").exit_code == 3
    assert f"task {result.id} was dropped" in caplog.text


def test_discarded_tasks_end_as_revoked(desk: Desk) -> None:
    result = call(desk, 1)
    assert as_json(desk.run("drop", KEY, "--discard", "--yes", "--json"))["dropped"] == 1
    assert result.state == "REVOKED"


def test_a_task_whose_turn_has_come_meanwhile_is_not_dropped_and_not_put(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = [call(desk, n) for n in range(2)]
    apply, begun = desk.store._store.apply, []

    def begin_first(key: str, operation: Any) -> Any:
        if type(operation).__name__ == "Drop" and not begun:
            begun.append(operation.id)
            apply(KEY, Release("holder/1", "token"))
            desk.acquire(KEY, operation.id, promoted=desk.store.epoch())
        return apply(key, operation)

    monkeypatch.setattr(desk.store._store, "apply", begin_first)
    done = drop(desk, KEY, file=tmp_path / "f")
    assert "1 had left the line before" in done.stdout
    assert [result.state for result in results] == ["PENDING", "REVOKED"]
    put = as_json(desk.run("put", str(tmp_path / "f"), "--json"))
    assert (put["left"], put["put"]) == (1, 1)


@pytest.mark.promise(
    "A `locks drop` that dies at any point leaves each message in its file, in its line, or in both. The "
    "same command again completes it and ends each task once; `put` puts none that may still wait or run",
    name="killed drop",
    broke="a message removed before it was saved; the token of the file not kept: tasks never ended",
)
@pytest.mark.parametrize("survives", range(10))
def test_a_drop_that_dies_is_completed_by_the_same_command(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survives: int
) -> None:
    """The process dies before one of its steps: a line of the file, a removal, or an end."""
    results, file = [call(desk, n) for n in range(2)], tmp_path / "f"
    ids, ended = {result.id for result in results}, list[str]()
    steps = count()

    def mortal(step: Callable[..., Any]) -> Callable[..., Any]:
        def take(*args: Any, **kwargs: Any) -> Any:
            if next(steps) == survives:
                raise KeyboardInterrupt
            return step(*args, **kwargs)

        return take

    @task_revoked.connect(weak=False)
    def note(request: Any, **_: Any) -> None:
        ended.append(request.id)

    try:
        with monkeypatch.context() as patch:
            patch.setattr(SavedFile, "_write", mortal(SavedFile._write))
            patch.setattr(desk.store._store, "apply", mortal(desk.store._store.apply))
            patch.setattr(dropping, "end_as_revoked", mortal(dropping.end_as_revoked))
            assert drop(desk, KEY, file=file).exit_code == (1 if survives < 9 else 0)
        saved = [record["saved"].partition("/")[0] for record in records(file) if "saved" in record]
        assert {*waiting(desk), *saved} == ids
        if survives:
            early = as_json(desk.run("put", str(file), "--json"))
            assert early["put"] == len(ended) - (survives in (5, 8)), "those that the file says were ended"
        assert drop(desk, "--task", "desk.work", file=file).exit_code == 0
        assert sorted({*ended}) == sorted(ids)
    finally:
        task_revoked.disconnect(note)
    assert waiting(desk) == []


@pytest.mark.promise(
    "`locks put` refuses the file of another version, another program or another namespace's secret, and "
    "skips a damaged line: it names the line, and puts all others",
    broke="the version not looked at; one damaged line ends the command",
)
@pytest.mark.parametrize(
    ("head", "problem"),
    [
        ('{"dropped_by_celery_exclusive": 2, "token": "t", "prefix": "cx"}', "has version 2"),
        ('{"v": 1}', "is no file of dropped tasks"),
        ("no JSON", "is no file of dropped tasks"),
        ("[" * 10_000, "is no file of dropped tasks"),
        ("", "is no file of dropped tasks"),
    ],
)
def test_a_file_of_another_version_or_program_is_refused(
    desk: Desk, tmp_path: Path, head: str, problem: str
) -> None:
    result = call(desk, 1)
    drop(desk, KEY, file=tmp_path / "f")
    _, *others = (tmp_path / "f").read_text().splitlines()
    foreign = tmp_path / "foreign"
    foreign.write_text("\n".join([head, *others, ""]))
    before = foreign.read_text()
    for done in (desk.run("put", str(foreign)), drop(desk, "--task", "desk.work", file=foreign)):
        assert (done.exit_code, problem in done.stderr) == (1, True), done.stderr
    assert foreign.read_text() == before
    assert (result.state, waiting(desk)) == ("REVOKED", [])


DAMAGED = [
    "no JSON",
    "[1]",
    '"text"',
    "{}",
    '{"saved": "a/1"}',
    '{"saved": "a/1", "key": "x:desk.work", "base64": "%"}',
    '{"saved": 1, "key": "x:desk.work", "message": "{}"}',
    '{"saved": "a/1", "key": 3, "message": "{}"}',
]
UNREADABLE = [
    "",
    "{}",
    "[]",
    "7",
    "\x1b[2J",
    '{"v": 9}',
    '{"v": 1, "body": 1, "coding": "text", "headers": 1}',
    '{"v": 1, "body": "", "coding": "text", "headers": {"exclusive": {}}, "more": 1}',
    '{"properties": {}, "body": "", "headers": {}}',
]


def test_damaged_lines_and_messages_are_named_and_all_others_are_put(desk: Desk, tmp_path: Path) -> None:
    result, file = call(desk, 1), tmp_path / "f"
    drop(desk, KEY, file=file)
    with file.open("a") as lines:
        for line in DAMAGED:
            lines.write(f"{line}\n")
        for number, message in enumerate(UNREADABLE):
            saved = {"saved": f"unreadable {number}/1", "key": KEY, "message": message}
            lines.write(f"{json.dumps(saved)}\n{json.dumps({'ended': saved['saved']})}\n")
    done = desk.run("put", str(file), "--json")
    assert done.exit_code == 1
    found = as_json(done)
    assert (found["put"], found["damaged"]) == (1, len(DAMAGED) + len(UNREADABLE)), found
    assert f"line 4 of {file} is damaged" in found["problems"]
    assert waiting(desk) == [result.id]


@pytest.mark.promise(
    "A waiting task whose stored message is damaged in any part ends as REVOKED all the same, with its "
    "unique key if its header can be read, and keeps no other task from being dropped or put",
    broke="a message without mapping in its body, or with a number as `expires`, ends the command each time",
)
@pytest.mark.parametrize("body", ["[[1], {}, 1]", "[1", "7"])
def test_a_damaged_body_keeps_no_other_task_in_the_line(desk: Desk, tmp_path: Path, body: str) -> None:
    desk.acquire("x=shared", "holder/2")
    first, second = (call(desk, n, "desk.once") for n in (1, 2))
    place, _ = desk.store.line("x=shared").places
    damaged = json.dumps({**json.loads(place.message), "body": body, "coding": "text"})
    desk.store._store._memory.keys["x=shared"].messages[place.waiting.id] = damaged.encode()
    done = drop(desk, "shared", file=tmp_path / "f")
    assert (done.exit_code, f"task {first.id}: its message cannot be read" in done.stderr) == (1, True)
    assert [first.state, second.state] == ["REVOKED"] * 2
    assert call(desk, 1, "desk.once").outcome == "published"


@pytest.mark.proves("bystanders of a task that kills its worker")
@pytest.mark.parametrize("leaves_meanwhile", [False, True])
def test_a_task_that_waits_for_its_last_chance_is_dropped_once(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaves_meanwhile: bool
) -> None:
    result = call(desk, 1)
    (place,) = desk.store.line(KEY).places
    desk.store.apply(KEY, Remove(place.waiting.id, ending="aside"))
    desk.acquire(LAST_CHANCE, "suspect/1")
    desk.acquire(LAST_CHANCE, place.waiting.id, message=place.message)
    assert f"place 1 of 1 for {LAST_CHANCE}" in desk.run("why", result.id).stdout
    revoked = list[str]()

    @task_revoked.connect
    def note(request: Any, **_: Any) -> None:
        revoked.append(request.id)

    def save(self: SavedFile, tasks: Any) -> None:
        save_as_before(self, tasks)
        for key in (KEY, LAST_CHANCE) if revoked else ():  # as a worker that meets the end of the other place
            desk.store.apply(key, Remove(place.waiting.id, ending="open"))

    save_as_before = SavedFile.save
    if leaves_meanwhile:
        monkeypatch.setattr(SavedFile, "save", save)
    assert "dropped 1 tasks" in drop(desk, "--task", "desk.work", file=tmp_path / "f").stdout
    task_revoked.disconnect(note)
    assert revoked == [result.id]
    assert waiting(desk) == waiting(desk, LAST_CHANCE) == []
    assert desk.run("put", str(tmp_path / "f")).exit_code == 0
    assert waiting(desk) == [result.id]


def test_a_task_whose_message_is_not_signed_ends_as_revoked_and_frees_its_unique_key(
    make_desk: Callable[..., Desk], tmp_path: Path
) -> None:
    conf = {"result_backend": "cache+memory://", "exclusive_store": "memory://unsigned"}
    publisher = make_desk(**conf)
    desk = make_desk(**conf, exclusive_secret="a secret of 16 or more")
    for each in (publisher, desk):
        add_tasks(each)
    desk.acquire("x=shared", "holder/2")
    result = call(publisher, 1, "desk.once")
    desk.store.apply("x=shared", Remove(desk.store.line("x=shared").places[0].waiting.id, ending="aside"))
    done = desk.run("why", result.id)
    assert ": no exclusive_secret of this app has signed its message" in done.stdout
    desk.store.apply("x=shared", Release("holder/2", "token"))
    assert "publishes them" in desk.run("why", "shared").stdout
    done = drop(desk, "shared", file=tmp_path / "f")
    assert "no exclusive_secret of this app has signed it" in done.stderr
    assert desk.app.AsyncResult(result.id).state == "REVOKED"
    assert call(desk, 1, "desk.once").outcome == "published"


@pytest.mark.parametrize(
    "damage", [{"headers": {"expires": 5}}, {"headers": {"expires": "soon"}}, {"properties": 1}]
)
def test_a_damaged_message_keeps_no_other_task_in_the_file(
    desk: Desk, tmp_path: Path, damage: dict[str, Any]
) -> None:
    first, second = (call(desk, n) for n in (1, 2))
    drop(desk, KEY, file=tmp_path / "f")
    desk.store.apply(KEY, Release("holder/1", "token"))
    lines = records(tmp_path / "f")
    message = json.loads(lines[1]["message"])
    for name, value in damage.items():
        message[name] = {**message[name], **value} if isinstance(value, dict) else value
    lines[1]["message"] = json.dumps(message)
    (tmp_path / "f").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    done = desk.run("put", str(tmp_path / "f"), "--json")
    found = as_json(done)
    assert (found["put"], found["damaged"], done.exit_code) == (1, 1, 1), found
    assert found["problems"][0].startswith(f"task {first.id} cannot be put: ")
    assert desk.app.AsyncResult(second.id).state == "PENDING"


def test_a_message_that_no_secret_of_the_app_has_signed_is_not_put(
    make_desk: Callable[..., Desk], tmp_path: Path
) -> None:
    file = str(tmp_path / "f")
    stranger, owner = (
        make_desk(result_backend="cache+memory://", exclusive_prefix=prefix, exclusive_secret=secret)
        for prefix, secret in (("one", "a secret of 16 or more"), ("two", "another of 16 or more"))
    )
    for desk in (stranger, owner):
        add_tasks(desk)
        desk.acquire(KEY, "holder/1")
    call(stranger, 1)
    drop(stranger, KEY, file=tmp_path / "f")
    done = owner.run("put", file)
    assert (done.exit_code, "no exclusive_secret of this app has signed it" in done.stderr) == (1, True)
    assert waiting(owner) == []
    heir = make_desk(exclusive_secret=["another of 16 or more", "a secret of 16 or more"])
    add_tasks(heir)
    heir.acquire(KEY, "holder/1")
    assert as_json(heir.run("put", file, "--json"))["put"] == 1
    assert len(waiting(heir)) == 1


def test_poison_in_a_line_is_dropped_and_its_result_says_so(desk: Desk, tmp_path: Path) -> None:
    poison = ["poison/1", "no message/1"]
    desk.store._store.apply(KEY, Enqueue("poison/1", b'\xff{"not": "ours"}'))
    desk.store._store.apply(KEY, Enqueue("no message/1", b""))
    done = drop(desk, KEY, file=tmp_path / "f")
    assert done.exit_code == 1
    assert "task poison: its message cannot be read" in done.stderr
    assert waiting(desk) == []
    assert [desk.app.AsyncResult(id.partition("/")[0]).state for id in poison] == ["REVOKED"] * 2
    assert as_json(desk.run("put", str(tmp_path / "f"), "--json"))["damaged"] == 2


def test_two_commands_do_not_use_one_file_at_the_same_time(desk: Desk, tmp_path: Path) -> None:
    call(desk, 1)
    with SavedFile(tmp_path / "f", "cx"):
        done = drop(desk, KEY, file=tmp_path / "f")
        assert (done.exit_code, "another process uses" in done.stderr) == (1, True)
    assert len(waiting(desk)) == 1


@pytest.mark.promise(
    "A long line is dropped and put with one request of the store per task, and two more per page of 250. No "
    "removal of a task publishes another one",
    broke="a drop offers the next in line: 20,000 messages are published; all pages read again for each task",
    figure="by hand, Redis, on a busy machine with two cores: 20,000 dropped in 31 s, put in 25 s",
)
def test_a_long_line_is_dropped_and_put_with_one_request_per_task(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = 1_000
    for n in range(many):
        call(desk, n)
    inner, asked = desk.store._store, list[str]()
    for verb in ("apply", "line"):
        monkeypatch.setattr(inner, verb, counted(getattr(inner, verb), verb, asked))
    assert as_json(desk.run("drop", KEY, "--to", str(tmp_path / "f"), "--yes", "--json"))["dropped"] == many
    assert (asked.count("apply"), asked.count("line")) == (many, 2 * many // 250)
    asked.clear()
    assert as_json(desk.run("put", str(tmp_path / "f"), "--json"))["put"] == many
    assert (asked.count("apply"), asked.count("line")) == (many, 0)


def counted(verb: Callable[..., Any], name: str, asked: list[str]) -> Callable[..., Any]:
    def ask(*args: Any, **kwargs: Any) -> Any:
        asked.append(name)
        return verb(*args, **kwargs)

    return ask
