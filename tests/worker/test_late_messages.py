"""order="published": a key does not stand still for a message that was sent and does not come."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from celery.exceptions import TaskRevokedError

from tests.worker.lab import Lab, eventually
from tests.worker.stage import Stage, on_stages

pytestmark = pytest.mark.promise(
    "A message whose turn it was and that does not come (prefetched by a killed worker; dropped by "
    "RabbitMQ at its expiry) holds up its key for an ordinary offer only",
    name="late messages",
    broke="red before: ten minutes",
)

SHOP = "tests.worker.shop_order"


def test_a_message_that_a_killed_worker_had_only_prefetched_is_offered_again_when_others_come(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(
        module=SHOP,
        task_acks_late=True,
        exclusive_offer=2,
        broker_transport_options={"visibility_timeout": 3600},
    )
    doomed = lab.start_worker("doomed", 1)
    lab.send("ordered", "other", tag="busy", hold=True)
    lab.journal.wait_for("start", tag="busy")
    first = lab.send("ordered", "k", tag="a")
    eventually(lambda: lab.doors.hlen("unacked") == 2, "a prefetched message")
    doomed.kill()
    second = lab.send("ordered", "k", tag="b")
    lab.start_worker("other", 2)
    assert [first.get(timeout=60), second.get(timeout=60)] == ["a", "b"]
    assert [tag for tag in lab.journal.tags("start") if tag != "busy"] == ["a", "b"]


@on_stages("prefork", lates=(True,))
def test_a_message_that_has_expired_in_its_queue_holds_up_no_other(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    expired = lab.send("ordered", "k", tag="expired", options={"expires": 0.5})
    following = lab.send("ordered", "k", tag="next")
    if stage.broker == "rabbitmq":
        eventually(lambda: stage.messages_at_the_broker(lab) == 0, "a message that the broker has dropped")
    expires = time.monotonic() + 1
    eventually(lambda: time.monotonic() > expires, "its end")
    stage.start_worker(lab)
    with pytest.raises(TaskRevokedError):
        expired.get(timeout=60)
    assert following.get(timeout=60) == "next"
    assert lab.journal.tags("start") == ["next"]
    stage.assert_nothing_is_left(lab)
