"""A delivery, with the message itself."""

from __future__ import annotations

from typing import Any

import pytest

from celery_exclusive.messages.header import HEADER, Header
from celery_exclusive.messages.stored import Content, StoredMessage
from celery_exclusive.worker.reading import Received

HEADERS: dict[str, Any] = {"id": "id", "task": "work", "redelivered": True, HEADER: {"v": 1, "id": "p"}}
CONTENT: Content = (b"[]", "application/json", "utf-8", HEADERS, {"priority": 3}, "q", "")


@pytest.mark.proves("delivery is read once")
def test_a_stored_message_has_the_completed_header_and_not_the_history_of_a_delivery() -> None:
    header = Header("p", exclusive="x:k")
    stored = Received(id="id/p", token="t", header=header, content=CONTENT).stored
    assert stored.headers == {"id": "id", "task": "work", HEADER: header.write()}
    assert StoredMessage.load(stored.dump()) == stored
