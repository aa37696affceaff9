"""on_conflict="latest": one task runs, the newest waits, and each one that is replaced ends as skipped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from celery import chain, chord
from celery.exceptions import TaskRevokedError

from celery_exclusive import Exclusive, LockHeld
from tests.proxy import Proxy
from tests.servers import RedisServer
from tests.worker.embedded import embedded, memory_app
from tests.worker.lab import Lab, Worker, disconnect, eventually
from tests.worker.message import Message
from tests.worker.stage import Stage, on_stages

SHOP = "tests.worker.shop_over"
LOCK = "x=over:k"
DEADLINE = 90
pytestmark = pytest.mark.promise(
    'With `on_conflict="latest"` the first and the last call of a burst run, and each other one ends as '
    "skipped with the id of a newer one, so that results, chains and chords complete; retries, and what runs "
    "again after the death of a worker, are not replaced",
    name="latest",
    broke="what has begun is replaced; the end of a replaced one lost with its worker, or doubled",
)
ONCE = on_stages("prefork", brokers=("redis",), lates=(True,))


def hold(lab: Lab, name: str = "latest", tag: str = "holder", **more: Any) -> Any:
    result = lab.send(name, "k", tag=tag, hold=True, **more)
    lab.journal.wait_for("start", tag=tag)
    return result


def park(lab: Lab, worker: Worker, *tags: str, name: str = "latest", **more: Any) -> list[Any]:
    """Send calls, each when the one before has joined the line."""
    results = []
    for tag in tags:
        results.append(lab.send(name, "k", tag=tag, **more))
        worker.wait_for_log(f"[{results[-1].id}] parked")
    return results


def named(lab: Lab) -> Exclusive:
    """The option with a result for the next step of a task that is replaced."""
    option: Exclusive = lab.task("latest").exclusive
    return option.replace(skip_result="replaced")


def replaced_by(result: Any) -> str:
    skipped = result.get(timeout=DEADLINE)["skipped"]
    assert skipped["key"] == LOCK
    return str(skipped["existing_id"])


@on_stages("prefork", "threads", "gevent")
def test_the_newest_call_waits_and_each_other_one_is_skipped_for_the_next(stage: Stage) -> None:
    lab = stage.make_lab(SHOP, exclusive_max_waiting=1)
    worker = stage.start_worker(lab)
    holder = hold(lab)
    *others, last = park(lab, worker, *"abcd")
    newer = [*others[1:], last]
    assert [replaced_by(result) for result in others] == [result.id for result in newer]
    worker.wait_for_log(f"[{others[0].id}] skipped: the newer task {others[1].id} has taken its place")
    assert not holder.ready()
    lab.open("holder")
    assert [result.get(timeout=DEADLINE) for result in (holder, last)] == ["holder", "d"]
    assert lab.journal.tags() == ["holder", "d"]
    stage.assert_nothing_is_left(lab)


@on_stages("prefork", "threads", lates=(True,))
def test_of_a_burst_two_run_and_all_others_are_skipped_for_a_newer_one(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    for name in ("w1", "w2"):
        stage.start_worker(lab, name, 3)
    holder = hold(lab)
    sent = [lab.send("latest", "k", tag=f"{number}") for number in range(20)]
    results = {result.id: result for result in sent}
    eventually(lambda: sum(result.ready() for result in sent) == 19, "the end of all but one", DEADLINE)
    lab.open("holder")
    assert holder.get(timeout=DEADLINE) == "holder"
    (last,) = (result for result in sent if isinstance(result.get(timeout=DEADLINE), str))
    for result in sent:
        seen = [result.id]
        while seen[-1] != last.id:  # each was replaced by a newer one, up to the last one
            seen.append(replaced_by(results[seen[-1]]))
            assert len(seen) <= len(results)
    assert lab.journal.tags() == ["holder", last.get()]
    stage.assert_nothing_is_left(lab)


@pytest.mark.parametrize("name", ["postgres", pytest.param("maria", marks=pytest.mark.large), "sqlite"])
def test_the_newest_call_waits_in_the_line_of_a_database(
    make_lab: Callable[..., Lab], request: pytest.FixtureRequest, tmp_path: Any, name: str
) -> None:
    url = f"sqlite:///{tmp_path}/locks.db" if name == "sqlite" else request.getfixturevalue(f"{name}_url")
    lab = make_lab(module=SHOP, exclusive_store=url)
    worker = lab.start_worker()
    hold(lab)
    *others, last = park(lab, worker, *"abc")
    assert [replaced_by(result) for result in others] == [others[1].id, last.id]
    lab.open("holder")
    assert last.get(timeout=DEADLINE) == "c"
    assert lab.journal.tags() == ["holder", "c"]


@pytest.mark.parametrize("give_up_after", [None, 4])  # a busy machine sends three calls meanwhile
def test_the_newest_call_waits_in_a_worker_whose_broker_and_store_are_its_memory(
    give_up_after: float | None,
) -> None:
    app = memory_app("memory")
    started, door = list[str](), threading.Event()
    latest = Exclusive(on_conflict="latest", give_up_after=give_up_after)

    @app.task(shared=False, exclusive=latest.replace(on_give_up="skip") if give_up_after else latest)
    def work(tag: str) -> str:
        started.append(tag)
        assert door.wait(DEADLINE)
        return tag

    with embedded(app, "threads", slots=2):
        holder = work.delay("holder")
        eventually(lambda: started == ["holder"], "the holder")
        results = []
        for tag in "abc":
            results.append(work.delay(tag))
            eventually(lambda: [r for r in results if not r.ready()] == results[-1:], "the end of the older")
        ids = [result.get(timeout=DEADLINE)["skipped"]["existing_id"] for result in results[:2]]
        assert ids == [results[1].id, results[2].id]
        if give_up_after:
            assert results[2].get(timeout=DEADLINE)["skipped"]["existing_id"] == holder.id
        door.set()
        assert holder.get(timeout=DEADLINE) == "holder"
        if not give_up_after:
            assert results[2].get(timeout=DEADLINE) == "c"
        eventually(lambda: not work.lock_state("k").holders, "a free key")
    assert app.connection().default_channel._size(app.conf.task_default_queue) == 0
    disconnect(app)
    app.close()


@ONCE
def test_with_a_limit_of_two_the_newest_call_waits_behind_both(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    worker = stage.start_worker(lab, slots=3)
    hold(lab, "latest_two", "one")
    hold(lab, "latest_two", "two")
    older, newest = park(lab, worker, "older", "newest", name="latest_two")
    assert replaced_by(older) == newest.id
    lab.open("one")
    assert newest.get(timeout=DEADLINE) == "newest"
    lab.open("two")
    stage.assert_nothing_is_left(lab)


@ONCE
def test_a_chain_and_a_chord_complete_with_members_that_are_replaced(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    worker = stage.start_worker(lab, slots=3)
    hold(lab)
    latest, collect, option = lab.task("latest"), lab.task("collect"), named(lab)
    steps = chain(latest.si("k", tag="step").set(exclusive=option), collect.s()).apply_async()
    worker.wait_for_log(f"[{steps.parent.id}] parked")
    members = [latest.si(key, tag="member").set(exclusive=option) for key in ("k", "another")]
    body = chord(members)(collect.s())
    assert steps.get(timeout=DEADLINE) == "replaced"
    (last,) = park(lab, worker, "last")
    assert body.get(timeout=DEADLINE) == ["replaced", "member"]
    failing = chain(latest.si("k", tag="failing"), collect.s()).apply_async()
    worker.wait_for_log(f"[{failing.parent.id}] parked")
    last, _ = (*park(lab, worker, "last"), last)
    with pytest.raises(LockHeld):  # it names no result for the next step
        failing.get(timeout=DEADLINE)
    lab.open("holder")
    assert last.get(timeout=DEADLINE) == "last"
    stage.assert_nothing_is_left(lab)
    assert sorted(lab.journal.tags()) == ["holder", "last", "member"]
    assert lab.doors.llen("collected") == 2


@ONCE
def test_the_next_step_of_a_chain_waits_for_its_parent_and_may_be_replaced(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab)
    latest = lab.task("latest")
    steps = chain(*[latest.si("k", tag=str(number)) for number in range(3)]).apply_async()
    assert steps.get(timeout=DEADLINE) == "2"
    stage.assert_nothing_is_left(lab)
    assert lab.journal.tags() == ["0", "1", "2"]


@pytest.mark.parametrize("again", ["retry", "replace"])
@pytest.mark.parametrize("name", ["latest", "latest_ordered"])
@on_stages("prefork", "threads", brokers=("redis",))
def test_a_retry_or_replacement_of_a_run_is_not_replaced_and_replaces_none(
    stage: Stage, name: str, again: str
) -> None:
    lab = stage.make_lab(SHOP)
    worker = stage.start_worker(lab)
    first = hold(lab, name, "first", again=again)
    (second,) = park(lab, worker, "second", name="patient", hold=True)
    lab.open("first")
    lab.journal.wait_for("start", tag="second")
    lab.wait_until_in_line(first.id, name, "k")
    older, newest = park(lab, worker, "older", "newest")
    assert replaced_by(older) == newest.id
    lab.open("first", "second")
    tags = [result.get(timeout=DEADLINE) for result in (first, second, newest)]
    assert tags == ["first", "second", "newest"]
    assert lab.journal.tags() == ["first", "second", "first", "newest"]
    stage.assert_nothing_is_left(lab)


@pytest.mark.parametrize("waited", [False, True], ids=["begun at once", "after a wait in line"])
@on_stages("prefork", lates=(True,))
def test_a_task_that_runs_again_after_the_death_of_its_worker_is_not_replaced(
    stage: Stage, *, waited: bool
) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=3, exclusive_offer=2)
    worker = stage.start_worker(lab, "w1")
    if waited:
        hold(lab, tag="before")
        (first,) = park(lab, worker, "first", hold=True)
        lab.open("before")
        lab.journal.wait_for("start", tag="first")
    else:
        first = hold(lab, tag="first")
    (second,) = park(lab, worker, "second", hold=True)
    worker.kill()
    other = stage.start_worker(lab, "w2", slots=3)
    lab.journal.wait_for("start", tag="second")
    lab.wait_until_in_line(first.id, "latest", "k")
    older, newest = park(lab, other, "older", "newest")
    assert replaced_by(older) == newest.id
    lab.open("first", "second")
    assert [result.get(timeout=DEADLINE) for result in (second, first)] == ["second", "first"]
    assert newest.get(timeout=DEADLINE) == "newest"
    assert lab.journal.tags()[-4:] == ["first", "second", "first", "newest"]


@ONCE
def test_a_task_that_the_broker_redelivers_after_its_lease_has_expired_is_not_replaced(stage: Stage) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=3, exclusive_recover=False)
    worker = stage.start_worker(lab, "w1")
    first = hold(lab, tag="first")
    message = Message.unacknowledged(lab, first.id)
    worker.kill()
    other = stage.start_worker(lab, "w2", slots=3)
    second = hold(lab, "patient", "second")
    message.deliver_again()
    lab.wait_until_in_line(first.id, "latest", "k")
    older, newest = park(lab, other, "older", "newest")
    assert replaced_by(older) == newest.id
    lab.open("second", "first")
    assert [result.get(timeout=DEADLINE) for result in (second, first)] == ["second", "first"]
    assert newest.get(timeout=DEADLINE) == "newest"
    stage.assert_nothing_is_left(lab)


@ONCE
def test_a_replaced_task_whose_worker_dies_at_its_end_ends_once(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    worker = stage.start_worker(lab, "w1", slots=3)
    other = stage.start_worker(lab, "w2", options=("-Q", "other"))
    hold(lab, options={"queue": "other"})
    link, option = lab.task("collect").s(), named(lab)
    stuck = lab.task("latest").apply_async(("k",), {"tag": "stuck"}, link=link, exclusive=option)
    worker.wait_for_log(f"[{stuck.id}] parked")
    (last,) = park(lab, worker, "last")
    lab.journal.wait_for("before", tag="stuck")
    message = Message.unacknowledged(lab, stuck.id)
    worker.kill()
    third = stage.start_worker(lab, "w3", slots=3)
    message.deliver_again()
    lab.open("before")
    assert stuck.get(timeout=DEADLINE) == "replaced"
    message.deliver_again()  # the acknowledgement was lost
    third.wait_for_log(f"[{stuck.id}] dropped: another copy")
    lab.open("holder")
    assert last.get(timeout=DEADLINE) == "last"
    assert lab.doors.llen("collected") == 1
    assert lab.journal.tags() == ["holder", "last"]
    assert other.stop() == 0


@ONCE
def test_a_parked_message_that_comes_again_after_its_task_was_replaced_is_dropped(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    options = {"link": lab.task("collect").s(), "exclusive": named(lab)}
    message = Message.withheld(lab, "latest", "k", tag="older", options=options)
    worker = stage.start_worker(lab, slots=3)
    hold(lab)
    message.deliver()
    worker.wait_for_log(f"[{message.id}] parked")
    (last,) = park(lab, worker, "last")
    assert message.result.get(timeout=DEADLINE) == "replaced"
    message.deliver_again()
    worker.wait_for_log(f"[{message.id}] dropped: another copy")
    lab.open("holder")
    assert last.get(timeout=DEADLINE) == "last"
    stage.assert_nothing_is_left(lab)
    assert lab.doors.llen("collected") == 1


@ONCE
def test_waiting_calls_that_are_revoked_or_expire_are_revoked_and_the_newest_runs(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    worker = stage.start_worker(lab)
    hold(lab)
    (revoked,) = park(lab, worker, "revoked")
    revoked.revoke()
    with pytest.raises(TaskRevokedError):
        revoked.get(timeout=DEADLINE)
    (expired,) = park(lab, worker, "expired", options={"expires": 1})
    with pytest.raises(TaskRevokedError):
        expired.get(timeout=DEADLINE)
    (both,) = park(lab, worker, "both")
    both.revoke()
    newest = lab.send("latest_ordered", "k", tag="newest")  # replaces it at once
    with pytest.raises(TaskRevokedError):
        both.get(timeout=DEADLINE)
    lab.open("holder")
    assert newest.get(timeout=DEADLINE) == "newest"
    assert lab.journal.tags() == ["holder", "newest"]
    stage.assert_nothing_is_left(lab)


@ONCE
def test_a_replaced_task_frees_its_unique_key_and_has_the_skip_result_of_its_option(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    worker = stage.start_worker(lab)
    hold(lab)
    (unique,) = park(lab, worker, "unique", name="latest_unique")
    assert lab.send("latest_unique", "k", tag="unique").existing_id == unique.id
    (quiet,) = park(lab, worker, "quiet", name="latest_quiet")
    assert replaced_by(unique) == quiet.id
    (again,) = park(lab, worker, "unique", name="latest_unique")
    assert again.outcome == "published"
    assert quiet.get(timeout=DEADLINE) == "replaced"
    lab.open("holder")
    assert again.get(timeout=DEADLINE) == "unique"
    assert lab.journal.tags() == ["holder", "unique"]
    stage.assert_nothing_is_left(lab)


@ONCE
def test_a_call_that_is_replaced_by_one_with_its_own_task_id_stores_no_result(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    worker = stage.start_worker(lab)
    hold(lab)
    park(lab, worker, "older", options={"task_id": "one"})
    newer = lab.send("latest", "k", tag="newer", options={"task_id": "one"})
    worker.wait_for_log("[one] skipped: the newer task one has taken its place")
    lab.open("holder")
    assert newer.get(timeout=DEADLINE) == "newer"
    stage.assert_nothing_is_left(lab)


@pytest.mark.promise(
    "A call with a unique key is not skipped for one that was replaced or has given up, though no worker has "
    "ended that yet",
    name="doomed holders",
    broke="red before: both kept their unique keys until a worker slot was free",
)
def test_no_call_is_skipped_for_one_that_will_not_run(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(module=SHOP, task_acks_late=True)
    lab.start_worker(concurrency=1)
    holder = hold(lab)
    older, newer, again = (lab.send("latest_once", "k", tag=tag) for tag in ("b", "c", "b"))
    assert [it.outcome for it in (older, newer, again)] == ["published"] * 3
    lab.open("holder")
    assert again.get(timeout=DEADLINE) == "b"
    assert [replaced_by(it) for it in (older, newer)] == [newer.id, again.id]
    holder = hold(lab, tag="next holder")
    gives_up = lab.send("hasty_once", "k", tag="d")
    anew = eventually(lambda: (it := lab.send("hasty_once", "k", tag="d")).outcome == "published" and it, "d")
    lab.open("next holder")
    assert anew.get(timeout=DEADLINE) == "d"
    with pytest.raises(LockHeld, match="gave up after 2 s"):
        gives_up.get(timeout=DEADLINE)
    assert holder.get(timeout=DEADLINE) == "next holder"
    assert lab.journal.tags() == ["holder", "b", "next holder", "d"]


def test_a_published_call_replaces_the_waiting_one_when_it_is_published(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(module=SHOP)
    first, older, newest = (lab.send("latest_ordered", "k", tag=tag) for tag in ("first", "older", "newest"))
    assert lab.line("latest_ordered", "k") == [first.id, newest.id]
    lab.start_worker()
    assert replaced_by(older) == newest.id
    assert [result.get(timeout=DEADLINE) for result in (first, newest)] == ["first", "newest"]
    assert lab.journal.tags() == ["first", "newest"]


@pytest.mark.each_part
@on_stages("prefork", brokers=("redis",))
def test_a_replaced_task_ends_also_if_its_worker_loses_the_answers_of_the_store(
    stage: Stage, proxy: Proxy, store: RedisServer
) -> None:
    url = f"redis://127.0.0.1:{proxy.port}/0?socket_timeout=0.5"
    lab = stage.make_lab(SHOP, exclusive_store=url, exclusive_store_wait=1)
    worker = stage.start_worker(lab, slots=3)
    hold(lab)
    (older,) = park(lab, worker, "older")
    proxy.lose(older.id.encode(), times=50)
    (newest,) = park(lab, worker, "newest")
    worker.wait_for_log(f"[{older.id}] goes back to the broker")
    proxy.restore()
    assert replaced_by(older) == newest.id
    lab.open("holder")
    assert newest.get(timeout=DEADLINE) == "newest"
    with store.client() as client:
        stage.assert_nothing_is_left(lab, client)
    assert lab.journal.tags() == ["holder", "newest"]


def test_a_replaced_task_ends_though_the_process_that_replaced_it_has_died(
    make_lab: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = make_lab(module=SHOP, exclusive_offer=1)
    worker = lab.start_worker()
    hold(lab)
    (older,) = park(lab, worker, "older")
    # It dies when the store has answered: nothing publishes the message of the older task.
    monkeypatch.setattr(lab.app._celery_exclusive.courier, "follow_up", lambda *_, **__: None)  # type: ignore[attr-defined]
    newest = lab.send("latest_ordered", "k", tag="newest")
    assert replaced_by(older) == newest.id
    lab.open("holder")
    assert newest.get(timeout=DEADLINE) == "newest"
    assert lab.journal.tags() == ["holder", "newest"]
