"""The packages, when a run outlives its lock, a worker dies, a message comes another way; and ours."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.compat import LOCK_EXPIRE
from tests.compat.rehearsal import Rehearsal
from tests.worker.journal import eventually

Rehearse = Callable[..., Rehearsal]
pytestmark = pytest.mark.timeout(240)


def test_a_timeout_of_celery_once_lets_a_second_body_in_and_ours_does_not(rehearse: Rehearse) -> None:
    rehearsal = rehearse("once")
    firsts = {task: rehearsal.begin(task, f"first {task}") for task in ("printed", "ours")}
    rehearsal.outlive(LOCK_EXPIRE)
    for task, bodies in {"printed": 2, "ours": 1}.items():
        second = rehearsal.send(task, f"second {task}")
        if second.id != firsts[task].id:
            rehearsal.lab.journal.wait_for("start", tag=f"second {task}")
        assert rehearsal.most_open(task) == bodies, task
        rehearsal.lab.open(f"first {task}", f"second {task}")


@pytest.mark.parametrize(("task", "is_published"), [("printed", False), ("ours", True)])
def test_a_killed_worker_locks_a_singleton_for_ever_and_ours_until_its_lease_expires(
    rehearse: Rehearse, task: str, is_published: bool
) -> None:
    rehearsal = rehearse("singleton", exclusive_ttl=2)
    lost = rehearsal.begin(task, "lost")
    rehearsal.worker.kill()
    rehearsal.lab.start_worker("w2")
    rehearsal.outlive(3)
    second = rehearsal.send(task, "second")
    assert (second.id != lost.id) is is_published
    rehearsal.lab.open("second")
    if is_published:
        assert second.get(timeout=60) == "second"


def test_a_message_by_name_frees_a_key_of_celery_heimdall_and_not_ours(rehearse: Rehearse) -> None:
    rehearsal = rehearse("heimdall", task_acks_late=True)
    for task, bodies in {"printed": 2, "ours": 1}.items():
        first = rehearsal.begin(task, f"first {task}")
        rehearsal.lab.app.send_task(rehearsal.task(task), (f"key of {task}", f"by name {task}"))
        eventually(lambda: rehearsal.lab.messages_at_the_broker() == 1, "a message that is refused")
        third = rehearsal.send(task, f"third {task}")
        if third.id != first.id:
            rehearsal.lab.journal.wait_for("start", tag=f"third {task}")
        assert rehearsal.most_open(task) == bodies, task
        rehearsal.lab.open(f"first {task}", f"third {task}")
