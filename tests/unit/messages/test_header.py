"""What a message's own header says of its queue."""

from __future__ import annotations

import pytest

from celery_exclusive.core.claim import is_other_copy, publish_claim_id
from celery_exclusive.messages.header import Header
from celery_exclusive.notices import task_id

QUEUES = ["lab", "a/b", "a@b", "bcast.0b1c", "\u00e9/@ %"]


@pytest.mark.promise("Claim ids stay apart whatever a queue or a task id is called", name="claim ids")
@pytest.mark.parametrize("task", ["id", "my/own@id"])
@pytest.mark.parametrize("queue", QUEUES)
def test_the_claim_id_of_a_queues_copy_names_task_publish_and_queue(task: str, queue: str) -> None:
    publish = Header("p").claim_id(task)
    copy = Header("p", route=(queue, "e", "k")).claim_id(task)
    other = Header("p", route=(f"{queue}2", "e", "k")).claim_id(task)
    assert task_id(copy) == task_id(publish) == task
    assert publish_claim_id(copy) == publish_claim_id(publish) == publish
    assert len({publish, copy, other}) == 3
    assert is_other_copy(copy, other)
    assert not is_other_copy(copy, copy)
    assert not is_other_copy(copy, Header("q", route=(queue, "e", "k")).claim_id(task))


@pytest.mark.proves("claim ids")
def test_a_route_survives_the_message_and_a_malformed_one_is_ignored() -> None:
    header = Header("p", route=("lab", "e", "k"), auto_delete=True)
    assert Header.of(header.write()) == header
    for wrong in (["lab"], ["lab", "e", 3], "lab", {"lab": "e"}):
        assert Header.of({**header.write(), "route": wrong}) == Header("p", auto_delete=True)


@pytest.mark.proves("claim ids")
def test_a_message_that_was_rejected_into_another_queue_is_routed_anew() -> None:
    header = Header("p", route=("lab", "e", "k"), auto_delete=True).as_new_publish("r")
    assert (header.route, header.auto_delete) == (None, False)
