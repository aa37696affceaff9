"""unique=Debounce(...): a burst of calls runs once, with the newest arguments, whatever happens meanwhile."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.exceptions import TaskRevokedError

from tests.proxy import Proxy
from tests.worker.lab import REPOSITORY, Lab, command, eventually
from tests.worker.stage import Stage, on_stages

SHOP = "tests.worker.shop_debounce"
DEADLINE = 90
MakeLab = Callable[..., Lab]
LATE: dict[str, Any] = {"task_acks_late": True, "task_reject_on_worker_lost": True}


def send(lab: Lab, name: str, tag: str, key: str = "k", **more: Any) -> Any:
    return lab.send(name, key, tag=tag, **more)


def assert_each_call_is_covered(lab: Lab) -> None:
    """Each call is followed by the run of its window, once, with arguments that no later call of it replaced.

    A window that was followed by another is never joined again.
    """
    begun = {event["tag"]: event["at"] for event in lab.journal.events("call")}
    ended = {event["tag"]: event for event in lab.journal.events("called")}
    windows = defaultdict[str, list[str]](list)
    for tag, event in ended.items():
        windows[event["window"]].append(tag)
    runs = {event["id"]: event for event in lab.journal.events("start")}
    assert len(runs) == len(lab.journal.events("start"))
    assert windows.keys() <= runs.keys()
    for window, tags in windows.items():
        run = runs[window]
        assert run["tag"] in begun
        assert all(begun[tag] < run["at"] for tag in tags)
        if run["tag"] in ended:  # else its process was killed
            assert not [tag for tag in tags if begun[tag] > ended[run["tag"]]["at"]], "newer arguments"
    opened = {window: min(ended[tag]["at"] for tag in tags) for window, tags in windows.items()}
    for window, tags in windows.items():
        later = [at for other, at in opened.items() if at > opened[window] and other != window]
        assert not [tag for tag in tags for at in later if begun[tag] > at], "two windows at once"


@pytest.mark.proves("debounce")
@on_stages("prefork", "threads", "gevent", "solo")
def test_a_burst_runs_once_with_the_newest_arguments(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    results = [send(lab, "bounded", f"{n}") for n in range(10)]
    assert {result.id for result in results} == {results[0].id}, "or ten calls took five seconds"
    assert [result.outcome for result in results] == ["published", *["updated"] * 9]
    assert stage.messages_at_the_broker(lab) == 0
    stage.start_worker(lab)
    assert results[0].get(timeout=DEADLINE) == "9"
    assert lab.journal.tags("start") == ["9"]
    stage.assert_nothing_is_left(lab)


@pytest.mark.promise(
    "With `leading` the first call of a burst runs at once, and the last one at its end with the newest "
    "arguments",
    broke="the first call does not ask for the key, or opens a window",
)
@on_stages("prefork", brokers=("redis", "rabbitmq"), lates=(True,))
def test_the_first_call_of_a_burst_runs_at_once_and_the_last_at_its_end(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab)
    first, *others = [send(lab, "leading", f"{n}") for n in range(5)]
    assert first.get(timeout=DEADLINE) == "0"
    assert [result.outcome for result in (first, *others)] == ["published", "published", *["updated"] * 3]
    assert {result.id for result in others} == {others[0].id}, "or five calls took five seconds"
    assert lab.journal.tags("start") == ["0"]
    assert others[0].get(timeout=DEADLINE) == "4"
    assert lab.journal.tags("start") == ["0", "4"]
    assert send(lab, "leading", "next").get(timeout=DEADLINE) == "next"
    stage.assert_nothing_is_left(lab)


@pytest.mark.promise(
    "Windows are kept in every store that keeps lines",
    broke="the message of the first call is published",
)
@pytest.mark.proves("debounce")
@pytest.mark.parametrize(
    "store", ["redis", "sqlite", "postgres", pytest.param("maria", marks=pytest.mark.large)]
)
def test_every_store_with_lines_keeps_windows(
    request: pytest.FixtureRequest, make_lab: MakeLab, tmp_path: Path, store: str
) -> None:
    url = f"sqlite:///{tmp_path}/locks.db" if store == "sqlite" else request.getfixturevalue(f"{store}_url")
    lab = make_lab(module=SHOP, exclusive_store=url, **LATE)
    lab.start_worker()
    for burst in "ab":
        held = send(lab, "both", f"{burst} held", hold=True)
        lab.journal.wait_for("start", tag=f"{burst} held")
        results = [send(lab, "both", f"{burst}{n}") for n in range(5)]
        assert held.id not in {result.id for result in results}
        lab.open(f"{burst} held")
        assert results[-1].get(timeout=DEADLINE) == f"{burst}4"
    assert lab.journal.most_open(key="k") == 1
    eventually(lambda: not lab.task("both").lock_state("k").is_queued, "no window and no line")


@pytest.mark.proves("next window")
@on_stages("prefork", "threads", brokers=("redis",))
def test_a_call_during_the_run_runs_after_it(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab)
    first = send(lab, "both", "a", hold=True)
    lab.journal.wait_for("start", tag="a")
    second = send(lab, "both", "b")
    lab.wait_until_in_line(second.id, "both", "k")
    third = send(lab, "both", "c")
    assert len({first.id, second.id, third.id}) == 3
    lab.open("a")
    assert [result.get(timeout=DEADLINE) for result in (first, second, third)] == ["a", "b", "c"]
    assert lab.journal.most_open(key="k") == 1
    stage.assert_nothing_is_left(lab)


@on_stages("prefork", "threads", brokers=("redis",))
def test_a_window_that_ends_while_its_lock_is_held_is_skipped_as_a_new_call(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab)
    holder = send(lab, "skip", "holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    assert send(lab, "skip", "skipped").get(timeout=DEADLINE)["skipped"]["existing_id"] == holder.id
    lab.open("holder")
    assert holder.get(timeout=DEADLINE) == "holder"
    stage.assert_nothing_is_left(lab)


@on_stages("prefork", "threads", brokers=("redis",))
def test_with_latest_the_run_of_a_newer_window_takes_the_place_of_the_one_that_waits(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab)
    holder = send(lab, "latest", "holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    older = send(lab, "latest", "older")
    lab.wait_until_in_line(older.id, "latest", "k")
    newest = send(lab, "latest", "newest")
    assert newest.id != older.id
    assert older.get(timeout=DEADLINE)["skipped"]["existing_id"] == newest.id
    lab.open("holder")
    assert [result.get(timeout=DEADLINE) for result in (holder, newest)] == ["holder", "newest"]
    assert lab.journal.tags("start") == ["holder", "newest"]
    stage.assert_nothing_is_left(lab)


@pytest.mark.proves("awaited calls of a burst")
@on_stages("prefork", "threads", brokers=("redis",))
def test_chains_groups_and_chords_complete(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab)
    soon, seen = lab.task("soon"), lab.task("seen")
    for before in (False, True):
        plain = send(lab, "soon", "plain") if before else None
        last = chain(soon.si("k", "1"), seen.s("next")).apply_async()
        members = group(soon.si("k", f"{n}") for n in range(3)).apply_async()
        of_chord = chord([soon.si("k", f"{n}") for n in range(3)])(seen.s("body"))
        linked = soon.apply_async(("k", "linked"), link=seen.s("link"))
        assert set(last.get(timeout=DEADLINE)) == {"skipped"}
        assert [set(found) for found in members.get(timeout=DEADLINE)] == [{"skipped"}] * 3
        assert [set(found) for found in of_chord.get(timeout=DEADLINE)] == [{"skipped"}] * 3
        assert set(linked.get(timeout=DEADLINE)) == {"skipped"}
        newest = lab.app.AsyncResult(linked.existing_id)
        assert newest.get(timeout=DEADLINE) == "linked"
        if plain and plain.id != newest.id:  # a slow machine: the burst was longer than its wait
            assert plain.get(timeout=DEADLINE)
    lab.journal.wait_for("seen", 6)
    assert len(lab.journal.events("seen")) == 6, "each step once"
    stage.assert_nothing_is_left(lab)


@pytest.mark.promise(
    "A window's message that a killed worker had fetched, or was running, runs again as the broker or the "
    "store delivers it, and once if it had not begun and no copy of it comes during its run",
    name="killed with a window",
    broke="its redelivery and its next offer both run",
)
@on_stages("prefork", "threads")
def test_the_message_of_a_killed_worker_that_had_not_begun_runs_once(stage: Stage) -> None:
    """RabbitMQ delivers it again. On Redis the next offer comes before the visibility timeout is over."""
    lab = stage.make_lab(SHOP, exclusive_offer=1 if stage.broker == "redis" else 600)
    doomed = stage.start_worker(lab, "doomed", 1)
    send(lab, "both", "busy", key="other", hold=True)
    lab.journal.wait_for("start", tag="busy")
    result = send(lab, "soon", "a")
    eventually(lambda: stage.messages_at_the_broker(lab) >= 1 + stage.late, "the message at the broker")
    doomed.kill()
    stage.start_worker(lab, "w2")
    assert result.get(timeout=DEADLINE) == "a"
    following = send(lab, "soon", "b")
    assert following.id != result.id
    assert following.get(timeout=DEADLINE) == "b"
    assert lab.journal.tags("start", key="k") == ["a", "b"]
    eventually(lambda: not lab.task("soon").lock_state("k").is_queued, "no window")


@pytest.mark.proves("killed with a window")
@on_stages("prefork", "threads", brokers=("rabbitmq",), lates=(True,))
def test_a_copy_that_is_redelivered_after_the_run_of_another_one_does_not_run(stage: Stage) -> None:
    lab = stage.make_lab(SHOP, exclusive_offer=1, worker_prefetch_multiplier=2)
    doomed = stage.start_worker(lab, "doomed", 1)
    send(lab, "both", "busy", key="other", hold=True)
    lab.journal.wait_for("start", tag="busy")
    result = send(lab, "soon", "a")
    eventually(lambda: stage.messages_at_the_broker(lab) >= 2, "the message in the doomed worker")
    worker = stage.start_worker(lab, "w2")
    assert result.get(timeout=DEADLINE) == "a"
    assert send(lab, "soon", "b").get(timeout=DEADLINE) == "b"
    doomed.kill()
    worker.wait_for_log(f"[{result.id}] dropped: another copy")
    assert lab.journal.tags("start", key="k") == ["a", "b"]


@pytest.mark.proves("killed with a window")
@on_stages("prefork", "threads", brokers=("rabbitmq",), lates=(True,))
def test_the_task_of_a_killed_worker_runs_again_beside_the_next_window(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    doomed = stage.start_worker(lab, "doomed", 1)
    result = send(lab, "soon", "a", hold=True)
    lab.journal.wait_for("start", tag="a")
    following = send(lab, "late", "never")
    window = send(lab, "soon", "b")
    assert window.id != result.id
    doomed.kill()
    lab.open("a")
    stage.start_worker(lab, "w2")
    assert [it.get(timeout=DEADLINE) for it in (result, window)] == ["a", "b"]
    assert sorted(lab.journal.tags("start", key="k")) == ["a", "a", "b"]
    assert not following.ready()


@pytest.mark.proves("killed with a window")
@on_stages("prefork", brokers=("redis",), lates=(True,))
def test_a_dead_run_with_a_lock_is_recovered(stage: Stage) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=3)
    doomed = stage.start_worker(lab, "doomed", 1)
    result = send(lab, "both", "a", hold=True)
    lab.journal.wait_for("start", tag="a")
    doomed.kill()
    lab.open("a")
    stage.start_worker(lab, "w2")
    assert result.get(timeout=DEADLINE) == "a"
    assert lab.journal.tags("start") == ["a", "a"]


@pytest.mark.promise(
    "Of two processes that call all the time, and of which one is killed, each call is covered by one run "
    "that begins after it, with arguments that are not older; no two windows are open at once",
    broke="a call joins a window whose message was published; two runs of a window",
)
@on_stages("prefork", "threads", lates=(True,))
def test_each_call_of_racing_processes_is_covered_by_a_run_that_begins_after_it(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab)
    stage.start_worker(lab, "w2")
    words = [sys.executable, "-m", "tests.worker.bursts", "soon", "k"]
    callers = [
        subprocess.Popen([*words, f"{count}", prefix], env=lab.environment, cwd=REPOSITORY)
        for count, prefix in ((40, "a"), (40, "b"), (1000, "doomed"))
    ]
    lab.journal.wait_for("called", tag="a030")
    callers[-1].kill()
    assert [caller.wait(DEADLINE) for caller in callers[:-1]] == [0, 0]
    callers[-1].wait(DEADLINE)
    eventually(lambda: not lab.task("soon").lock_state("k").is_queued, "the end of the last window")
    for event in lab.journal.events("called"):
        lab.journal.wait_for("end", id=event["window"])
    assert_each_call_is_covered(lab)
    stage.assert_nothing_is_left(lab)


@pytest.mark.promise(
    "A window whose time is over while no worker runs is not lost: its call runs when a worker is there",
    broke="lost with its time",
)
@on_stages("prefork", "threads", brokers=("redis",))
def test_a_window_waits_for_a_worker(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    first = send(lab, "soon", "a")
    stage.start_worker(lab)
    assert first.get(timeout=DEADLINE) == "a"
    stage.assert_nothing_is_left(lab)


@pytest.mark.proves("revoked in a window")
@on_stages("prefork", "threads", brokers=("redis",))
@pytest.mark.parametrize("how", ["expires", "revoke"])
def test_a_window_that_is_revoked_or_expires_ends_with_its_calls_and_the_next_one_runs(
    stage: Stage, how: str
) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab)
    first = send(lab, "bounded", "a")
    if how == "expires":
        send(lab, "bounded", "b", options={"expires": 0.5})
    else:
        first.revoke()
        send(lab, "bounded", "b")
    with pytest.raises(TaskRevokedError):
        first.get(timeout=DEADLINE)
    eventually(lambda: not lab.task("bounded").lock_state("k").is_queued, "no window")
    following = send(lab, "bounded", "c")
    assert following.id != first.id
    assert following.get(timeout=DEADLINE) == "c"
    assert lab.journal.tags("start") == ["c"]
    stage.assert_nothing_is_left(lab)


@pytest.mark.promise(
    "A retry goes on with the arguments of its run, and joins no window",
    broke="it waits in the next window, whose call replaces its arguments",
)
@on_stages("prefork", "threads", brokers=("redis",))
def test_a_retry_belongs_to_its_run(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab)
    first = send(lab, "again", "a", hold=True)
    lab.journal.wait_for("start", tag="a")
    second = send(lab, "again", "b")
    lab.open("a", "a")
    assert [result.get(timeout=DEADLINE) for result in (first, second)] == ["a", "b"]
    assert sorted(lab.journal.tags("start")) == ["a", "a", "b", "b"]
    stage.assert_nothing_is_left(lab)


@pytest.mark.promise(
    "The message of a publisher without the library runs as it comes, beside the window",
    broke="it waits for the key of windows",
)
def test_a_call_without_the_library_runs_as_it_comes(make_lab: MakeLab, stranger: Celery) -> None:
    lab = make_lab(module=SHOP, **LATE)
    lab.start_worker()
    window = send(lab, "late", "window")
    sent = stranger.send_task(lab.task("late").name, ["k", "stranger"])
    assert sent.get(timeout=DEADLINE) == "stranger"
    assert lab.task("late").lock_state("k").waiting == 1
    assert not window.ready()


@pytest.mark.promise(
    "A worker of a release without the option runs the message of a window once",
    broke="each offer of it runs",
)
@on_stages("prefork", "threads", brokers=("redis",))
def test_a_worker_of_a_release_without_the_option_runs_the_message_once(stage: Stage) -> None:
    lab = stage.make_lab(SHOP, exclusive_offer=1)
    worker = stage.start_worker(lab, is_other_release=True)
    result = send(lab, "new", "a", hold=True)
    lab.journal.wait_for("start", tag="a")
    worker.wait_for_log(f"[{result.id}] left the line of lock {lab.task('new').lock_state('k').key}")
    lab.open("a")
    assert result.get(timeout=DEADLINE) == "a"
    assert send(lab, "new", "b").get(timeout=DEADLINE) == "b"
    assert lab.journal.tags("start") == ["a", "b"]
    stage.assert_nothing_is_left(lab)


@pytest.mark.proves("debounce without store")
@on_stages("prefork", "threads", brokers=("redis",))
def test_a_store_that_is_away_when_a_window_ends_loses_no_call(stage: Stage, proxy: Proxy) -> None:
    lab = stage.make_lab(
        SHOP,
        exclusive_store=f"redis://127.0.0.1:{proxy.port}/0?socket_timeout=0.5",
        exclusive_store_wait=1,
        exclusive_ttl=600,
    )
    worker = stage.start_worker(lab, "w1", 1)
    send(lab, "soon", "busy", key="other", hold=True)
    lab.journal.wait_for("start", tag="busy")
    result = send(lab, "soon", "a")
    eventually(lambda: stage.messages_at_the_broker(lab) >= 1 + stage.late, "the message at the broker")
    proxy.cut()
    lab.open("busy")
    worker.wait_for_log(f"[{result.id}] goes back to the broker")
    proxy.restore()
    assert result.get(timeout=DEADLINE) == "a"
    following = send(lab, "soon", "b")
    assert following.get(timeout=DEADLINE) == "b"
    assert lab.journal.tags("start", key="k") == ["a", "b"]


def test_locks_shows_a_window_and_its_release_changes_nothing(make_lab: MakeLab) -> None:
    lab = make_lab(module=SHOP, **LATE)
    lab.start_worker()
    send(lab, "late", "a")
    key = lab.task("late").lock_state("k").key
    listed = command(lab, "locks", "ls").stdout
    assert [line.split()[1:7] for line in listed.splitlines() if line.startswith(key)] == [
        ["key='k'", "waiting", "-", "-", "-", "1"]
    ]
    assert "waits for newer calls, not before 59m" in command(lab, "locks", "show", key).stdout
    released = command(lab, "locks", "release", key)
    assert "1 in line for this key" in released.stdout
    assert lab.task("late").lock_state("k").waiting == 1
