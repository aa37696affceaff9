"""A request that tells its body when the main process knows in which child it runs."""

from __future__ import annotations

from typing import Any

from celery import Task
from celery.utils import uuid
from celery.worker.request import Request

from tests.worker.shop import doors

TICKET = "ticket"
"""What the request carries, another for each delivery."""


class Accepting(Request):  # type: ignore[misc]
    """For bodies that kill their child.

    A child that dies before that is another ending: Celery gives the same delivery to the next child.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.request_dict[TICKET] = uuid()

    def on_accepted(self, *args: Any) -> None:
        super().on_accepted(*args)
        doors.rpush(self.request_dict[TICKET], 1)


def wait_until_accepted(task: Task) -> None:
    """Wait, in the body of a task whose requests are these, until the main process knows of it."""
    doors.blpop([getattr(task.request, TICKET)], timeout=100)
