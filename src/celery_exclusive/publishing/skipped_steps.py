"""Warns of steps of canvases that may be skipped, in the process that publishes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_exclusive import notices

if TYPE_CHECKING:
    from celery_exclusive.publishing.message import Message

HAS_NEXT_STEP = ("chain", "chord", "link")
"""Options of a call whose result is an argument of another task."""


def warn_of_skipped_step(message: Message) -> None:
    """Warn once of each task whose next step may begin with a skip result, before the holder has ended.

    An option with a `skip_result` is not warned of: it says what the next step gets. A retry is not skipped.
    """
    name, call, warned = message.task.name, message.call, message.publisher.warned_of_skips
    if name in warned or message.options.get("retries"):
        return
    option = next((it for it in (call.unique, call.exclusive) if it and it.hands_on_a_skip), None)
    if option:
        warned.add(name)
        notices.skipped_step(name, option)
