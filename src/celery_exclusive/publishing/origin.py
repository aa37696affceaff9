"""The origin of a call: the user's code, the end of a run, a retry or a canvas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_exclusive.core.publishing import has_to_be_sent
from celery_exclusive.run import Run, current_run

if TYPE_CHECKING:
    from celery_exclusive.options.declared import Unique
    from celery_exclusive.publishing.message import Message

_OF_CANVASES = ("chain", "group_id", "chord", "reply_to", "parent_id")
"""Options that Celery itself gives to the members of a canvas, and to callbacks. Plain calls have none."""
_OF_MEMBERS = (*_OF_CANVASES, "link", "link_error")
"""Options by which a caller makes other code wait for the result of the call."""


class Origin(NamedTuple):
    """The origin of a call.

    * `run`: the run whose retry or replacement this message is.
    * `is_retry`: the message is the retry of that run, or of a run whose header it has.
    * `is_awaited`: other code may wait for its result, as for a member of a canvas.
    * `has_to_be_sent`: it is sent with any holder of its key, see `core.publishing`.
    * `is_celerys`: Celery publishes it for a run or a canvas. So it is sent without its key and place if the
      store does not answer, and wrong arguments fail its own task: neither is an error of the publishing
      code.
    """

    run: Run | None = None
    is_retry: bool = False
    is_awaited: bool = False
    has_to_be_sent: bool = False
    is_celerys: bool = False

    @classmethod
    def of(
        cls,
        message: Message,
    ) -> Origin:
        """Return the origin of a message."""
        run, options = current_run.get(), message.options
        is_awaited = any(map(options.get, _OF_MEMBERS)) or (
            message.services.has_rpc_results and _waits_for_rpc(message.task, message.call.unique, options)
        )
        task_id = options.get("task_id")
        if run is None and not is_awaited and not task_id and not options.get("retries"):
            return _PLAIN
        parent = run.task_id if run and run.body_over else None
        own = run if run and run.task_id == task_id else None
        is_retry = bool(options.get("retries") and (message.previous or own))
        goes_on = is_retry or own is not None
        return cls(
            own,
            is_retry,
            is_awaited,
            has_to_be_sent=has_to_be_sent(
                goes_on=goes_on, is_awaited=is_awaited, has_given_id=bool(task_id), parent=parent
            ),
            is_celerys=goes_on or parent is not None or any(map(options.get, _OF_CANVASES)),
        )


_PLAIN = Origin()


def _waits_for_rpc(task: Any, unique: Unique | None, options: Mapping[str, Any]) -> bool:
    """Whether a caller may wait for a result that an rpc backend sends only to this caller.

    The caller of a duplicate would never get the result of the task that holds the key. A caller that gets an
    error waits for no result.
    """
    wants_none = options.get("ignore_result", task.ignore_result)
    is_refused = unique is not None and unique.on_conflict == "raise"
    return not (wants_none or is_refused)
