"""A holder that is paused for longer than its lease lives, and comes back when somebody else has the lock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.worker.lab import Lab, Worker, eventually
from tests.worker.message import stop_consuming
from tests.worker.watcher import SENDS_EVENTS, Watcher


@dataclass(frozen=True)
class Scene:
    """The first is back from its pause, held at its door; the second holds the lock, and a third waits."""

    lab: Lab
    resumed: Worker
    other: Worker
    first: str
    second: str

    @property
    def holders(self) -> list[str]:
        return [holder.task_id for holder in self.lab.task("save").lock_state("k").holders]


@pytest.fixture
def make_scene(make_lab: Callable[..., Lab]) -> Callable[..., Scene]:
    def make(*, check: bool = False) -> Scene:
        lab = make_lab(module="tests.worker.shop_fenced", task_acks_late=True, exclusive_ttl=9)
        paused = lab.start_worker("w1", 2)
        first = lab.send("save", "k", tag="first", hold=True, check=check)
        lab.journal.wait_for("start", tag="first")
        other = lab.start_worker("w2", 2)
        second = lab.send("save", "k", tag="second", hold=True)
        lab.wait_for_line(1, "save", "k")
        lab.send("save", "k", tag="third")
        lab.wait_for_line(2, "save", "k")
        paused.pause()
        lab.journal.wait_for("start", tag="second")
        paused.resume()
        return Scene(lab, paused, other, first.id, second.id)

    return make


@pytest.mark.proves("paused holder")
def test_a_holder_paused_past_its_lease_gets_lease_lost_when_it_checks(
    make_scene: Callable[..., Scene],
) -> None:
    scene = make_scene(check=True)
    journal = scene.lab.journal
    scene.lab.open("first")
    (lost,) = journal.wait_for("lost", tag="first")
    assert "save" in lost["error"]
    assert not journal.events("written")
    scene.lab.open("second")
    journal.wait_for("end", tag="third")
    assert journal.tags("written") == ["second", "third"]


@pytest.mark.proves("ownership")
def test_a_late_finisher_neither_releases_the_next_holder_nor_wakes_a_waiting_task(
    make_scene: Callable[..., Scene],
) -> None:
    scene = make_scene()
    lab = scene.lab
    lab.open("first")
    lab.journal.wait_for("end", tag="first")
    scene.resumed.wait_for_log("lost its lease")
    assert scene.holders == [scene.second]
    assert lab.waiting("save", "k") == 1
    lab.open("second")
    lab.journal.wait_for("end", tag="third")
    order = [(event["what"], event["tag"]) for event in lab.journal.events() if event["tag"] != "first"]
    assert [step for step in order if step[0] in ("start", "end")] == [
        ("start", "second"), ("end", "second"), ("start", "third"), ("end", "third"),
    ]  # fmt: skip


@pytest.mark.proves("paused holder")
def test_a_late_finisher_is_logged(make_scene: Callable[..., Scene]) -> None:
    scene = make_scene()
    scene.lab.open("first")
    line = scene.resumed.wait_for_log("lost its lease")
    key = scene.lab.task("save").lock_state("k").key
    assert ": ERROR/" in line
    assert f"tests.worker.shop_fenced.save[{scene.first}]" in line
    assert key in line


@pytest.mark.proves("paused holder")
def test_a_resource_that_compares_fences_refuses_the_write_of_a_late_finisher(
    make_scene: Callable[..., Scene],
) -> None:
    scene = make_scene()
    journal = scene.lab.journal
    scene.lab.open("second")
    journal.wait_for("end", tag="third")
    scene.lab.open("first")
    journal.wait_for("end", tag="first")
    assert journal.tags("written") == ["second", "third"]
    assert journal.tags("refused") == ["first"]


@pytest.mark.proves("ownership")
def test_a_resumed_holder_does_not_keep_the_next_ones_lease_alive(make_scene: Callable[..., Scene]) -> None:
    scene = make_scene()
    scene.other.kill()
    scene.lab.journal.wait_for("end", tag="third")
    assert scene.lab.journal.tags("end") == ["third"]


def test_a_lease_that_ran_out_goes_on_while_the_store_has_its_message(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(module="tests.worker.shop_fenced", task_acks_late=True, exclusive_ttl=3)
    worker = lab.start_worker("w1", 1)
    lab.send("save", "k", tag="first", hold=True, check=True)
    lab.journal.wait_for("start", tag="first")
    worker.pause()
    eventually(lambda: lab.task("save").lock_state("k").holders[0].remaining == 0, "the end of its lease")
    worker.resume()
    lab.open("first")
    lab.journal.wait_for("end", tag="first")
    assert not lab.journal.events("lost")


def test_a_lease_that_the_store_has_forgotten_is_lost_even_without_another_holder(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(module="tests.worker.shop_fenced", task_acks_late=False, exclusive_ttl=1)
    worker = lab.start_worker("w1", 1)
    lab.send("save", "k", tag="first", hold=True, check=True)
    lab.journal.wait_for("start", tag="first")
    worker.pause()
    eventually(lambda: not list(lab.doors.scan_iter("cx2:{0}:l:*")), "nothing of its lease")
    worker.resume()
    lab.open("first")
    lab.journal.wait_for("lost", tag="first")


@pytest.fixture
def make_unique_scene(make_lab: Callable[..., Lab]) -> Callable[..., Scene]:
    """The first is back from its pause, held at its door; the second has published, and holds the key."""

    def make(*, check: bool = False) -> Scene:
        lab = make_lab(module="tests.worker.shop_fenced", task_acks_late=False, exclusive_ttl=9)
        paused = lab.start_worker("w1", 2, options=SENDS_EVENTS)
        first = lab.send("save_once", "k", tag="first", hold=True, check=check)
        lab.journal.wait_for("start", tag="first")
        stop_consuming(lab, paused, "lab")  # else Redis gives the second to its paused connection
        other = lab.start_worker("w2", 2)
        paused.pause()
        sent = list[Any]()

        def is_published() -> bool:
            sent.append(lab.send("save_once", "k", tag="second", hold=True))
            return bool(sent[-1].outcome == "published")

        eventually(is_published, "the end of the lease of the first")
        lab.journal.wait_for("start", tag="second")
        paused.resume()
        return Scene(lab, paused, other, first.id, sent[-1].id)

    return make


@pytest.mark.promise(
    "`self.lease` of a task with `unique=` alone: after a pause past the lease `check()`, the log and an "
    "event say so, and the fence is stale. A retry inherits the fence. The lease is over when the body has "
    "ended. A lost reply is no loss, nor is a lease that a retry has",
    name="lease of a unique task",
    broke=(
        "the code before: `self.lease` raised, and the loss was silent; a retry, or a repeated release, is "
        "told as a loss"
    ),
)
def test_a_unique_task_paused_past_its_lease_gets_lease_lost_when_it_checks(
    make_unique_scene: Callable[..., Scene],
) -> None:
    scene = make_unique_scene(check=True)
    journal = scene.lab.journal
    scene.lab.open("first")
    (lost,) = journal.wait_for("lost", tag="first")
    assert "save_once" in lost["error"]
    assert not journal.events("written")
    scene.lab.open("second")
    journal.wait_for("end", tag="second")
    assert journal.tags("written") == ["second"]


@pytest.mark.proves("lease of a unique task")
def test_a_unique_task_that_ends_without_its_lease_is_logged_and_its_late_write_is_refused(
    make_unique_scene: Callable[..., Scene],
) -> None:
    scene = make_unique_scene()
    lab = scene.lab
    lab.open("second")
    lab.journal.wait_for("end", tag="second")
    with Watcher(lab, scene.resumed) as watcher:
        lab.open("first")
        (event,) = watcher.wait_for("lock-lost", uuid=scene.first)
    assert lab.journal.tags("written") == ["second"]
    assert lab.journal.tags("refused") == ["first"]
    line = scene.resumed.wait_for_log("lost its lease")
    key = lab.task("save_once").lock_state("k").key
    assert ": ERROR/" in line
    assert f"tests.worker.shop_fenced.save_once[{scene.first}]" in line
    assert key in line
    assert event["lock"] == key
