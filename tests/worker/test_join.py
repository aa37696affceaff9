"""A duplicate in a canvas, or one that shares, waits for the task with its key, and ends as that has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord, group

from celery_exclusive import DuplicateTask, Unique
from celery_exclusive.leases.operator_release import queued_keys, release_queued
from tests.worker.journal import eventually
from tests.worker.lab import Lab
from tests.worker.message import consume
from tests.worker.stage import RABBITS, Stage, on_stages
from tests.worker.test_unique import DEADLINE, ONCE, SHOP, hold
from tests.worker.versions import needs_celery

pytestmark = pytest.mark.promise(
    "A duplicate in a canvas waits for the task with its key, in no slot, and ends as that has: with its "
    "result or its error, also after a retry. If that was lost or revoked, one of those that wait runs, once",
    broke="`done` not noted by the release; a duplicate that begins with its key lapsed failed",
)
EVERYWHERE = on_stages("prefork", "threads", brokers=("redis", "rabbitmq"), lates=(True,))
PLACES = pytest.mark.parametrize(
    "place",
    [
        "redis",
        "redis-sqlite",
        pytest.param("redis-memcached", marks=needs_celery("5.7", "pymemcache reads its results")),
        pytest.param("rabbitmq-postgres", marks=RABBITS[1]),
    ],
)
EARLY = on_stages("prefork", brokers=("redis",), lates=(False,))


@pytest.fixture
def make_place(place: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Lab]]:
    """Makes a lab whose store, broker and results are where the name says, with a worker."""
    labs = []

    def make() -> Lab:
        conf: dict[str, Any] = {"module": SHOP, "task_acks_late": True, "task_reject_on_worker_lost": True}
        if place == "redis-sqlite":
            conf["exclusive_store"] = f"sqlite:///{tmp_path}/locks.db"
        if place == "redis-memcached":  # its results alone
            conf["result_backend"] = f"cache+{request.getfixturevalue('memcached_url')}/"
        if place == "rabbitmq-postgres":
            url = request.getfixturevalue("postgres_url")
            results = url.replace("postgresql://", "db+postgresql+psycopg://")
            lab = request.getfixturevalue("make_rabbit_lab")(
                {}, exclusive_store=url, result_backend=results, **conf
            )
        else:
            lab = request.getfixturevalue("make_lab")(**conf)
        lab.start_worker("w1", 4)
        labs.append(lab)
        return lab

    yield make
    if place == "redis-memcached":
        for lab in labs:
            lab.app.backend.client.close()


def wait_for_line(lab: Lab, key: str, waiting: int) -> None:
    append = lab.task("append")
    eventually(lambda: append.lock_state(key=key, tag="").waiting == waiting, f"{waiting} in line")


def join(lab: Lab, tag: str, name: str = "once", **options: Any) -> Any:
    """Call a chain whose first step is a duplicate, and wait until that is in line."""
    task = lab.task(name)
    before = task.lock_state("k").waiting
    result = chain(task.s("k", tag).set(**options), lab.task("once").s(f"after {tag}")).apply_async()
    lab.wait_for_line(before + 1, name, "k")
    return result


def assert_joined(result: Any, ends_with: str) -> None:
    """Its first step has ended so, and the next one has begun with that."""
    assert result.get(timeout=DEADLINE).startswith("after")
    assert result.parent.get(timeout=DEADLINE) == ends_with


@EVERYWHERE
def test_two_chains_called_while_the_first_runs_do_the_work_once(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab, slots=2)
    holder = hold(lab, "once")
    joined = [join(lab, f"duplicate {n}") for n in range(3)]
    lab.open("holder")
    for result in joined:
        assert_joined(result, "holder")
    assert holder.get(timeout=DEADLINE) == "holder"
    stage.assert_nothing_is_left(lab)
    assert lab.journal.tags(key="k") == ["holder"]


@ONCE
def test_duplicates_that_get_a_slot_after_the_other_has_ended_have_its_result(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab, slots=1)
    holder, task = hold(lab, "once"), lab.task("once")
    chains = [chain(task.s("k", f"duplicate {n}"), task.s(f"after {n}")).apply_async() for n in range(3)]
    shared = task.apply_async(("k", "shared"), unique=Unique("key", on_conflict="share"))
    lab.open("holder")
    for result in (holder, shared, *(result.parent for result in chains)):
        assert result.get(timeout=DEADLINE) == "holder"
    assert {result.get(timeout=DEADLINE) for result in chains} == {"after 0"}
    stage.assert_nothing_is_left(lab)
    assert lab.journal.tags() == ["holder", "after 0"]


@PLACES
def test_a_mail_is_deleted_once_and_after_it_was_consumed(make_place: Callable[[], Lab]) -> None:
    """Two calls of `chord([consume], delete_mail)`, where both steps are unique."""
    lab = make_place()
    append = lab.task("append")
    consume = append.s(key="mail", tag="consume", hold=True)
    delete = append.si(key="delete", tag="delete", hold=True)
    results = [chord([consume])(delete) for _ in range(2)]
    lab.journal.wait_for("start", tag="consume")
    wait_for_line(lab, "mail", 1)
    assert lab.journal.tags() == ["consume"]
    lab.open("consume")
    lab.journal.wait_for("start", tag="delete")
    wait_for_line(lab, "delete", 1)
    lab.open("delete")
    assert [result.get(timeout=DEADLINE) for result in results] == [["delete"]] * 2
    assert lab.journal.tags() == ["consume", "delete"]


@PLACES
def test_pages_are_fetched_once_for_three_calls_of_their_group(make_place: Callable[[], Lab]) -> None:
    """Chains of a group of pages and a body, which are called again while the pages are fetched."""
    lab = make_place()
    append, pages = lab.task("append"), ("page 1", "page 2")
    results = []
    for call in range(3):
        group_of_pages = group(append.si(key=page, tag=page, hold=True) for page in pages)
        results.append(chain(group_of_pages, lab.task("total").si([call], f"body {call}")).apply_async())
        for page in pages:
            lab.journal.wait_for("start", tag=page)
            wait_for_line(lab, page, call)
    lab.open(*pages)
    assert [result.get(timeout=DEADLINE) for result in results] == [0, 1, 2]
    assert sorted(lab.journal.tags()) == ["body 0", "body 1", "body 2", *pages]
    assert sorted(lab.journal.tags()[:2]) == list(pages)


@ONCE
def test_a_duplicate_of_a_task_that_fails_fails_as_that_has(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab, slots=2)
    holder = lab.send("end", "k", "holder", "raise", hold=True)
    lab.journal.wait_for("start", tag="holder")
    joined = join(lab, "duplicate", "end")
    lab.open("holder")
    with pytest.raises(Exception) as failure:  # noqa: PT011 - whatever the holder raises
        holder.get(timeout=DEADLINE)
    with pytest.raises(type(failure.value)):
        joined.parent.get(timeout=DEADLINE)
    assert lab.journal.tags(key="k") == ["holder"]


@ONCE
def test_a_duplicate_waits_through_the_retry_of_the_other(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab, slots=2)
    holder = lab.send("patient", "k", "holder")
    lab.journal.wait_for("end", tag="holder")
    joined = join(lab, "duplicate", "patient")
    assert_joined(joined, "holder")
    assert holder.get(timeout=DEADLINE) == "holder"
    assert lab.journal.tags(key="k") == ["holder", "holder"]


@EARLY
def test_if_the_other_is_lost_one_duplicate_runs_and_the_rest_have_its_result(stage: Stage) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=3)
    killed = stage.start_worker(lab, "w1", slots=2)
    hold(lab, "once")
    killed.kill()
    stage.start_worker(lab, "w2", slots=2)
    task = lab.task("once")
    joined = [join(lab, f"duplicate {n}") for n in range(3)]
    for result in joined:
        assert result.get(timeout=DEADLINE).startswith("after")
    (_, ran) = lab.journal.tags(key="k")
    assert {result.parent.get(timeout=DEADLINE) for result in joined} == {ran}
    eventually(lambda: task.lock_state("k").unique_holder is None, "a free key")


@ONCE
def test_a_worker_that_dies_while_its_duplicate_waits_loses_no_chain(stage: Stage) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=3, visibility_timeout=5)
    first = stage.start_worker(lab, "w1", slots=2)
    hold(lab, "once")
    joined = join(lab, "duplicate")
    first.kill()  # the holder is recovered, and runs again
    stage.start_worker(lab, "w2", slots=2)
    lab.open("holder")
    lab.journal.wait_for("start", 2, tag="holder")
    lab.open("holder")
    assert_joined(joined, "holder")
    assert lab.journal.tags(key="k") == ["holder", "holder"]


@ONCE
def test_a_duplicate_whose_key_has_lapsed_in_the_queue_joins_the_one_that_runs(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    worker = stage.start_worker(lab, slots=2, options=("-Q", "lab"))
    task, services = lab.task("once"), lab.app._celery_exclusive
    result = chain(task.s("k", "duplicate").set(queue="side"), task.s("after")).apply_async()
    assert release_queued(services, queued_keys(services.store, None)) == 1
    hold(lab, "once")
    consume(lab, worker, "side")
    lab.wait_for_line(1, "once", "k")
    lab.open("holder")
    assert_joined(result, "holder")
    stage.assert_nothing_is_left(lab)
    assert lab.journal.tags(key="k") == ["holder"]


@ONCE
def test_a_duplicate_of_a_revoked_task_runs(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    worker = stage.start_worker(lab, slots=2)
    blockers = [hold(lab, "once", f"blocker {n}", f"other {n}") for n in range(2)]
    task = lab.task("once")
    revoked = lab.send("once", "k", "revoked")
    result = chain(task.s("k", "duplicate"), task.s("after")).apply_async()
    lab.app.control.revoke(revoked.id)
    worker.wait_for_log(f"flagged as revoked: {revoked.id}")
    lab.open("blocker 0", "blocker 1")
    assert result.get(timeout=DEADLINE) == "after"
    assert [blocker.get(timeout=DEADLINE) for blocker in blockers] == ["blocker 0", "blocker 1"]
    stage.assert_nothing_is_left(lab)
    assert lab.journal.tags(key="k") == ["duplicate"]


@ONCE
def test_to_revoke_a_duplicate_leaves_the_task_for_which_it_waits(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    worker = stage.start_worker(lab, slots=2)
    holder = hold(lab, "once")
    kept, revoked = join(lab, "kept"), join(lab, "revoked")
    lab.app.control.revoke(revoked.parent.id)
    worker.wait_for_log(f"Discarding revoked task: {lab.task('once').name}[{revoked.parent.id}]")
    lab.wait_for_line(1, "once", "k")
    lab.open("holder")
    assert_joined(kept, "holder")
    assert holder.get(timeout=DEADLINE) == "holder"
    stage.assert_nothing_is_left(lab)
    assert lab.journal.tags(key="k") == ["holder"]


@pytest.mark.promise(
    'With `on_conflict="share"` a duplicate call has a handle of its own, which ends as the other ends',
    broke="the publisher returns the other's handle; the worker does not join it",
)
@ONCE
def test_a_call_that_shares_has_a_handle_of_its_own(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab, slots=2)
    task, option = lab.task("once"), Unique("key", on_conflict="share")
    holder = hold(lab, "once")
    shared = [task.apply_async(("k", f"duplicate {n}"), unique=option) for n in range(2)]
    assert len({holder.id, *(result.id for result in shared)}) == 3
    lab.wait_for_line(2, "once", "k")
    lab.open("holder")
    assert [result.get(timeout=DEADLINE) for result in shared] == ["holder"] * 2
    stage.assert_nothing_is_left(lab)
    assert lab.journal.tags() == ["holder"]


@ONCE
def test_a_step_does_not_wait_for_another_task_or_for_an_id_that_its_caller_has_chosen(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab, slots=3)
    hold(lab, "left")
    hold(lab, "once", "chosen", task_id="chosen")
    for step in (lab.task("right").s("k", "duplicate"), lab.task("once").s("k", "duplicate")):
        with pytest.raises(DuplicateTask):
            chain(step, lab.task("once").s("never")).apply_async().get(timeout=DEADLINE)
    lab.open("holder", "chosen")
    stage.assert_nothing_is_left(lab)


@ONCE
def test_without_a_result_to_read_a_step_fails(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab, slots=2)
    hold(lab, "once")
    task = lab.task("once")
    step = task.s("k", "duplicate").set(ignore_result=True)
    step.link_error(lab.task("linked").si("errback"))
    chain(step, task.s("after")).apply_async()
    (linked,) = lab.journal.wait_for("linked")
    assert linked["result"] == "errback"
    lab.open("holder")
    assert lab.journal.tags() == ["holder"]
