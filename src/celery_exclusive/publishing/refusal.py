"""Refuses a call before its message is begun, and returns the handle of the task that holds the key."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from celery.signals import beat_init, before_task_publish

from celery_exclusive import outcomes
from celery_exclusive.core.claim import task_id
from celery_exclusive.errors import DuplicateTask, OptionError
from celery_exclusive.options.declared import Unique
from celery_exclusive.publishing.message import OF_MEMBERS
from celery_exclusive.run import current_run, enclosing_tasks

if TYPE_CHECKING:
    from celery_exclusive.options.declared import UniqueOption
    from celery_exclusive.publishing.message import Message
    from celery_exclusive.services import Services

_SENT_IN_ANY_CASE = (*OF_MEMBERS, "task_id", "retries")
"""Options of calls that may have to be sent with any holder of their key, see `core.publishing`."""
_process = {"is_celery_beat": False}


def refused(message: Message) -> Any:
    """Return the handle of the task that holds the key of a call. None: the call is published as usual.

    This is for a task of which a call was refused lately: to read the holder costs less than a message that
    is made and not sent. A call that may be more than a plain duplicate is published as usual.
    """
    publisher, services, call, options = message.publisher, message.services, message.call, message.options
    option, run = call.unique, current_run.get()
    if (
        not isinstance(option, Unique)
        or option.shares
        or (run and run.body_over)
        or any(map(options.get, _SENT_IN_ANY_CASE))
    ):
        return None
    if (
        before_task_publish.receivers
        or services.has_rpc_results
        or services.allows_without(option)
        or (call.exclusive and call.exclusive.ends_waits)  # the task that holds the key may never begin
    ):
        return None
    try:
        _, key = message.keys  # what is wrong with a duplicate is its error, too
    except (TypeError, OptionError):
        return None
    assert key  # noqa: S101 - it has the option
    is_ordered = call.exclusive and services.order(call.exclusive) == "published"
    if is_ordered and time.monotonic() >= publisher.waits_behind.get(key, 0):
        return None  # it stands behind the message that holds the key, which may be lost
    store: Any = services.store
    existing_id = task_id(store.holder(key))
    if not existing_id or (run and existing_id in enclosing_tasks(key)):
        return None
    publisher.note_call(message.name, is_refused=True)
    return existing_result(services, message.task, option, options, key, existing_id)


def existing_result(
    services: Services,
    task: Any,
    option: UniqueOption | None,
    options: dict[str, Any],
    key: str,
    existing_id: str,
) -> Any:
    is_quiet = _process["is_celery_beat"] or is_beats(options.get("headers") or {})
    fails = bool(option and option.refuses_duplicates and not is_quiet)
    outcomes.not_published(task.name, key, existing_id, fails=fails)
    if fails:
        text = f"task {task.name} was not published: unique key {key} is held by {existing_id}"
        raise DuplicateTask(text, key, existing_id)
    result = result_of(services, options, existing_id)
    result.outcome, result.existing_id, result.key = "skipped", existing_id, key
    return result


def is_beats(headers: Mapping[str, Any]) -> bool:
    """Whether beat has made the call, which only logs errors: a duplicate is no error there."""
    return bool(headers.get("celery_beat_task"))


def result_of(services: Services, options: dict[str, Any], task_id: str) -> Any:
    return (options.get("result_cls") or services.app.AsyncResult)(task_id)


@beat_init.connect
def _note_celery_beat(**_: Any) -> None:
    _process["is_celery_beat"] = True
