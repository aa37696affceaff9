"""Warns of steps of canvases that fail as duplicates, in the process that publishes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_exclusive import notices
from celery_exclusive.options.declared import Exclusive, Unique

if TYPE_CHECKING:
    from celery_exclusive.publishing.message import Message

HAS_NEXT_STEP = ("chain", "chord", "link")
"""Options of a call whose result is an argument of another task."""


def warn_of_skipped_step(message: Message) -> None:
    """Warn once of each task whose duplicate can only fail: its next step must not get a skip result.

    A `skip_result` says what that gets. A retry is not skipped. With until="finished" a duplicate waits for
    the result, where that is kept.
    """
    name, call, warned = message.task.name, message.call, message.publisher.warned_of_skips
    if name in warned or message.options.get("retries"):
        return
    unique = call.unique
    joins = message.services.may_join(message.task, unique)
    options = (None if joins else unique, call.exclusive)
    kinds = (Unique, Exclusive)  # a debounced call always hands its skip result on
    option = next((it for it in options if isinstance(it, kinds) and it.hands_on_a_skip), None)
    if option:
        warned.add(name)
        notices.skipped_step(name, option)
