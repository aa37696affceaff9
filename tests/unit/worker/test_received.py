"""A delivery, with the message itself."""

from __future__ import annotations

from typing import Any

import pytest

from celery_exclusive.core.claim import LAST_CHANCE, Claim, UniqueClaim
from celery_exclusive.messages.header import HEADER, Header
from celery_exclusive.messages.stored import Content, StoredMessage
from celery_exclusive.stores.base import Wake
from celery_exclusive.worker.reading import Received

HEADERS: dict[str, Any] = {"id": "id", "task": "work", "redelivered": True, HEADER: {"v": 1, "id": "p"}}
CONTENT: Content = (b"[]", "application/json", "utf-8", HEADERS, {"priority": 3}, "q", "")

LOCK = Claim("x:k", "id/p", "t", 1)
UNIQUE = UniqueClaim(Claim("u:k", "id/p", "t", 1), "finished", 1, is_acquired=True)


@pytest.mark.proves("delivery is read once")
def test_a_stored_message_has_the_completed_header_and_not_the_history_of_a_delivery() -> None:
    header = Header("p", exclusive="x:k")
    stored = Received(id="id/p", token="t", header=header, content=CONTENT).stored
    assert stored.headers == {"id": "id", "task": "work", HEADER: header.write()}
    assert StoredMessage.load(stored.dump()) == stored


@pytest.mark.proves("bystanders of a task that kills its worker")
@pytest.mark.parametrize(
    ("claims", "key", "deaths"),
    [
        ({"exclusive": LOCK}, "x:k", 2),
        ({"exclusive": LOCK, "unique": UNIQUE}, "u:k", 4),
        ({"exclusive": LOCK, "unique": UNIQUE}, LAST_CHANCE, 2),
        ({"unique": UNIQUE}, "u:k", 2),
        ({"unique": UNIQUE}, LAST_CHANCE, 4),
    ],
)
def test_the_deaths_that_another_line_has_counted_are_added(
    claims: dict[str, Any], key: str, deaths: int
) -> None:
    """A line counts the deaths of a message from the first to the last, unless it leaves that line."""
    came = Received(id="id/p", token="t", header=Header("p", deaths=2), content=CONTENT, **claims)
    waits = came.parked_at(key)
    assert waits.promoted(Wake("x:k", "id/p", b"", "today", deaths=2)).our_header["deaths"] == deaths
    for line in ("x:k", LAST_CHANCE):
        assert waits.promoted(Wake(line, "id/p", b"", "today", deaths=0)).our_header["deaths"] == 2
    assert waits.promoted(Wake(LAST_CHANCE, "id/p", b"", "today", deaths=1)).our_header["deaths"] == 3
