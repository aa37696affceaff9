"""A task that waits in line and expires, or is revoked, ends at once, though its lock is held."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest
from celery.exceptions import TaskRevokedError

from celery_exclusive import Exclusive
from tests.servers import RedisServer
from tests.worker.lab import Lab, assert_renewed, command, eventually
from tests.worker.stage import Stage, on_stages

pytestmark = pytest.mark.promise(
    "A message that expires in line, or is revoked there, ends as REVOKED though its lock is held, on each "
    "kind of store; its place and its unique key are free",
    name="recalled from the line",
    broke="red before: REVOKED when the holder had ended; explorer: what expires in line waits for its turn",
    also=(
        "the explorer, with messages that expire behind a body that hangs; the differential test, with "
        "expiries and recalls"
    ),
)

SHOP = "tests.worker.shop_unique"


def hold(stage: Stage, lab: Lab, name: str = "both") -> Any:
    stage.start_worker(lab)
    holder = lab.send(name, "k", tag="holder", hold=True, **NO_KEY)
    lab.journal.wait_for("start", tag="holder")
    return holder


NO_KEY = {"options": {"unique": None}}


@on_stages("prefork", "threads", "gevent")
def test_a_message_that_expires_in_line_is_revoked_when_it_is_due(stage: Stage) -> None:
    lab = stage.make_lab("tests.worker.shop")
    stage.start_worker(lab)
    holder = lab.send("wait", "k", tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    others = [lab.send("wait", "k", tag=tag) for tag in "ab"]
    expired = lab.send("wait", "k", tag="expired", options={"expires": 3})
    with pytest.raises(TaskRevokedError):
        expired.get(timeout=60)
    assert not holder.ready()
    eventually(lambda: lab.waiting("wait", "k") == 2, "the others in line")
    lab.open("holder")
    assert [result.get(timeout=60) for result in others] == ["a", "b"]
    assert lab.journal.tags("start") == ["holder", "a", "b"]
    stage.assert_nothing_is_left(lab)


@on_stages("prefork", "threads")
def test_a_worker_that_shuts_down_and_hears_of_no_revoke_sweeps_no_more(stage: Stage) -> None:
    """Else a revoked task stays in line whenever this worker wins the sweep."""
    lab = stage.make_lab(SHOP, exclusive_ttl=3, exclusive_reap_period=0.1)
    worker = stage.start_worker(lab)
    holder = lab.send("both", "k", tag="holder", hold=True, **NO_KEY)
    lab.journal.wait_for("start", tag="holder")
    store: Any = lab.app._celery_exclusive.store  # type: ignore[attr-defined]

    def remaining() -> float:
        return float(lab.task("both").lock_state("k").holders[0].remaining)

    def is_left_to_others() -> bool:
        swept = store.times().swept
        assert_renewed(remaining)
        return bool(store.times().swept == swept)

    assert not is_left_to_others()
    worker.process.send_signal(signal.SIGTERM)
    eventually(is_left_to_others, "no sweep between two renewals")
    lab.open("holder")
    assert holder.get(timeout=60) == "holder"


@on_stages("prefork", "threads", lates=(True,))
def test_a_revoked_task_that_waits_frees_its_unique_key_and_its_place(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    holder = hold(stage, lab)
    revoked = lab.send("both", "k", tag="revoked")
    lab.wait_for_line(1, "both", "k")
    assert lab.send("both", "k", tag="duplicate").outcome == "skipped"
    revoked.revoke()
    with pytest.raises(TaskRevokedError):
        revoked.get(timeout=60)
    assert not holder.ready()
    eventually(lambda: lab.waiting("both", "k") == 0, "an empty line")
    following = eventually(
        lambda: found if (found := lab.send("both", "k", tag="next")).outcome == "published" else None,
        "a free unique key",
    )
    lab.open("holder")
    assert following.get(timeout=60) == "next"
    assert lab.journal.tags("start") == ["holder", "next"]
    stage.assert_nothing_is_left(lab)


@pytest.mark.promise(
    'A call with `order="published"` whose message was purged comes back to its queue, one offer after '
    "another call has joined the line behind it. If it is revoked, it ends, and those behind it run",
    broke="red before: the place of a revoked call was offered for a day; a long offer is not shortened",
)
@pytest.mark.parametrize("is_revoked", [True, False])
def test_a_call_whose_message_was_purged_runs_or_is_revoked(
    make_lab: Callable[..., Lab], is_revoked: bool
) -> None:
    lab = make_lab(exclusive_offer=1)
    in_order = {"options": {"exclusive": Exclusive("key", order="published")}}
    purged = lab.send("wait", "k", tag="purged", **in_order)
    lab.doors.delete("lab")
    lab.start_worker("w1", 2)
    if is_revoked:
        (shown,) = command(lab, "-q", "locks", "ls", "--json").stdout.splitlines()
        ids = [one["task_id"] for one in json.loads(shown)["line"]]
        assert command(lab, "control", "revoke", *ids).returncode == 0
        eventually(lambda: lab.waiting("wait", "k") == 0, "an empty line")
    assert lab.send("wait", "k", tag="after", **in_order).get(timeout=60) == "after"
    assert lab.journal.tags("start") == (["after"] if is_revoked else ["purged", "after"])
    assert purged.state == ("REVOKED" if is_revoked else "SUCCESS")


@pytest.mark.parametrize("name", ["postgres", pytest.param("maria", marks=pytest.mark.large), "sqlite"])
def test_a_revoked_task_leaves_the_line_of_a_database(
    make_lab: Callable[..., Lab], request: pytest.FixtureRequest, tmp_path: Any, name: str
) -> None:
    url = f"sqlite:///{tmp_path}/locks.db" if name == "sqlite" else request.getfixturevalue(f"{name}_url")
    lab = make_lab(exclusive_store=url)
    for number in range(2):
        lab.start_worker(f"w{number}")
    holder = lab.send("wait", "k", tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    revoked, following = (lab.send("wait", "k", tag=tag) for tag in ("revoked", "next"))
    lab.wait_for_line(2, "wait", "k")
    revoked.revoke()
    with pytest.raises(TaskRevokedError):
        revoked.get(timeout=60)
    lab.wait_for_line(1, "wait", "k")
    assert not holder.ready()
    lab.open("holder")
    assert following.get(timeout=60) == "next"
    assert lab.journal.tags("start") == ["holder", "next"]


@pytest.mark.promise(
    "A damaged line neither hides the lines of others from a revoke nor stops the sweeps",
    broke="red before: no sweep ended, and the task stayed in line",
)
def test_a_damaged_line_neither_hides_the_lines_of_others_nor_stops_the_sweeps(
    lab: Lab, redis_server: RedisServer
) -> None:
    worker = lab.start_worker("w1", 4)
    for key in ("bad", "good"):
        lab.send("wait", key, tag=key, hold=True)
        lab.journal.wait_for("start", tag=key)
        lab.send("wait", key, tag=f"next {key}")
        lab.wait_for_line(1, "wait", key)
    bad = lab.task("wait").lock_state("bad").key
    with redis_server.client() as redis:
        redis.delete(f"cx2:{{0}}:q:{bad}")
        redis.set(f"cx2:{{0}}:q:{bad}", "no line")
        redis.zadd("cx2:{0}:due", {bad: 0})
    revoked = lab.send("wait", "good", tag="revoked")
    lab.wait_for_line(2, "wait", "good")
    revoked.revoke()
    lab.wait_for_line(1, "wait", "good")
    worker.wait_for_log("are damaged")


def test_a_task_is_found_in_whatever_line_it_waits(lab: Lab, redis_server: RedisServer) -> None:
    lab.start_worker("w1", 8)
    for key in ("k1", "k2", "k3"):
        lab.send("wait", key, tag=key, hold=True)
        lab.journal.wait_for("start", tag=key)
    waiting = {key: [lab.send("wait", key, tag=f"{key}.{n}") for n in range(3)] for key in ("k1", "k2", "k3")}
    for key in waiting:
        lab.wait_for_line(3, "wait", key)
    for results in waiting.values():
        results[1].revoke()
    for key in waiting:
        lab.wait_for_line(2, "wait", key)
    lab.open("k1", "k2", "k3")
    for results in waiting.values():
        results[2].get(timeout=60)
    assert not any(tag.endswith(".1") for tag in lab.journal.tags("start"))
