"""Endings that only greenlets know: a kill and a time limit, which may land inside our own calls."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_exclusive import Exclusive
from tests.worker.lab import Lab, eventually
from tests.worker.test_pools import assert_nothing_is_renewed
from tests.worker.versions import needs_celery

needs_kill = needs_celery("5.5", "greenlets that are killed")


@pytest.fixture
def lab(make_lab: Callable[..., Lab]) -> Lab:
    """One worker of ten, whose leases would last ten minutes if nobody gave them back."""
    lab = make_lab(module="tests.worker.shop_pools", exclusive_ttl=600, task_acks_late=True)
    lab.start_worker("w1", 10, pool="gevent", is_fresh=True)
    return lab


def assert_all_goes_on(lab: Lab, *keys: str) -> None:
    for key in keys:
        lab.send("wait", key, tag="last")
    lab.journal.wait_for("end", len(keys), tag="last")
    assert_nothing_is_renewed(lab)


@needs_kill
def test_terminating_the_holder_lets_the_next_one_pass(lab: Lab) -> None:
    holder = lab.send("wait", "k", tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    lab.send("wait", "k", tag="next")
    lab.wait_for_line(1, "wait", "k")
    holder.revoke(terminate=True)
    lab.journal.wait_for("end", tag="next")
    assert eventually(lambda: holder.state == "REVOKED", "REVOKED")
    assert lab.journal.tags("end") == ["next"]
    assert_all_goes_on(lab, "k")


@pytest.mark.promise(
    "A killed or limited greenlet leaves nothing",
    name="killed greenlet",
    broke="`finish` knows only Exception; hard limit not followed",
)
@needs_kill
def test_a_kill_inside_our_own_calls_leaves_neither_lease_nor_line(lab: Lab) -> None:
    places = ["before-acquire", "after-acquire", "before-release", "after-release"]
    killed = [lab.send("wait", place, tag=place, options={"task_id": place}) for place in places]
    for place in places:
        lab.journal.wait_for("at", tag=place)
    for place in places[1:3]:
        lab.send("wait", place, tag="next")
        lab.wait_for_line(1, "wait", place)
    for result in killed:
        result.revoke(terminate=True)
    alone = [
        f"{place}-alone" for place in places
    ]  # nobody announces this: they have to clean up by themselves
    for place in alone:
        lab.send("wait", place, tag=place, options={"task_id": place})
        lab.journal.wait_for("at", tag=place)
    for place in places[1:3]:
        lab.journal.wait_for("end", key=place, tag="next")
    assert not {"before-acquire", "after-acquire"} & set(lab.journal.tags("start"))
    assert_all_goes_on(lab, *places, *alone)


@pytest.mark.proves("killed greenlet")
@needs_kill
def test_a_task_killed_while_it_parks_leaves_the_line(lab: Lab) -> None:
    lab.send("wait", "k", tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    options = {"task_id": "after-park", "exclusive": Exclusive("key", order="arrived")}
    killed = lab.send("wait", "k", tag="killed", options=options)
    lab.journal.wait_for("at", tag="after-park")
    lab.wait_for_line(1, "wait", "k")
    killed.revoke(terminate=True)
    lab.wait_for_line(0, "wait", "k")
    lab.open("holder")
    assert_all_goes_on(lab, "k")
    assert lab.journal.tags("start") == ["holder", "last"]


@pytest.mark.proves("killed greenlet")
def test_a_hard_time_limit_ends_the_lease_with_the_body(lab: Lab) -> None:
    limited = lab.send("wait", "body", tag="limited", hold=True, options={"time_limit": 4})
    acquiring = lab.send("wait", "acquire", options={"task_id": "after-acquire", "time_limit": 4})
    releasing = lab.send("wait", "release", options={"task_id": "before-release", "time_limit": 4})
    lab.journal.wait_for("start", tag="limited")
    lab.send("wait", "body", tag="next")
    lab.journal.wait_for("end", tag="next")
    assert eventually(lambda: limited.state == "FAILURE", "FAILURE")
    assert eventually(lambda: acquiring.state == "FAILURE", "FAILURE")
    assert eventually(lambda: releasing.state == "SUCCESS", "SUCCESS")
    assert lab.journal.tags("end", key="body") == ["next"]
    assert_all_goes_on(lab, "body", "acquire", "release")
