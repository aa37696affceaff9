"""What the main process gives to the child that runs a task."""

from __future__ import annotations

import pickle
from typing import Any

from celery_exclusive.core.claim import Claim, UniqueClaim
from celery_exclusive.messages.header import HEADER, Header
from celery_exclusive.messages.stored import Content, StoredMessage
from celery_exclusive.worker.received import Received

BODY = b"x" * 1_000_000
HEADERS: dict[str, Any] = {"id": "id", "task": "work", "redelivered": True, HEADER: {"v": 1, "id": "p"}}
CONTENT: Content = (BODY, "application/json", "utf-8", HEADERS, {"priority": 3}, "q", "")
UNIQUE = Claim("u:k", "id/p", "t", 2)


def received(**facts: Any) -> Received:
    return Received(**{"id": "id/p", "token": "t", "header": Header("p"), "content": CONTENT, **facts})


def test_a_delivery_is_the_same_in_the_child() -> None:
    for facts in (
        {},
        {"exclusive": Claim("x:k", "id/p", "t", 30, 2), "acks_late": True, "recovers": True, "order": "any"},
        {"unique": UniqueClaim(UNIQUE, "finished", 9, is_acquired=True), "expires": "2030-01-01"},
        {"header": Header("p", route=("q", "a", "b"), values={"exclusive": {"ttl": 3}}), "kin": ("id", "of")},
    ):
        delivery = received(**facts)
        assert pickle.loads(pickle.dumps(delivery)) == delivery


def test_the_body_of_a_message_goes_to_the_child_once() -> None:
    to_child = pickle.dumps(({"args": "repr", **HEADERS}, BODY, received()))
    assert len(to_child) < 1.01 * len(BODY)


def test_a_stored_message_has_the_completed_header_and_not_the_history_of_a_delivery() -> None:
    header = Header("p", exclusive="x:k")
    stored = received(header=header).stored
    assert stored.headers == {"id": "id", "task": "work", HEADER: header.write()}
    assert StoredMessage.load(stored.dump()) == stored
