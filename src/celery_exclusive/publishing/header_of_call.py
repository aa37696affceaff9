"""The header of a call: its keys, and a publish id of its own."""

from __future__ import annotations

from os import urandom
from typing import TYPE_CHECKING, Any

from celery_exclusive.errors import OptionError
from celery_exclusive.messages.header import Header, rejections
from celery_exclusive.options.keys import key_of
from celery_exclusive.publishing.call_options import CallOptions
from celery_exclusive.publishing.origin import Origin
from celery_exclusive.run import current_run

if TYPE_CHECKING:
    from celery_exclusive.publishing.message import Message


def header_of(message: Message) -> Header | None:
    """Return a new header for a message, with its keys. None: the arguments of the call do not fit."""
    previous, options = message.previous, message.options
    if previous and options.get("retries"):
        header = _of_retry(message, previous)
    else:
        header = _with_keys(message, message.call)
    if header is None:
        return None
    message.services.settings  # noqa: B018 - wrong settings are an error for the caller
    if options.get("retries"):  # a retry has lost these strings; without a header, it is not known
        header.masked = previous is None or previous.masked
    else:
        header.masked = options.get("argsrepr") is not None or options.get("kwargsrepr") is not None
    if options.get("headers"):
        header.rejections = rejections(options["headers"])
    return header


def _of_retry(message: Message, previous: Header) -> Header | None:
    if not message.call.off and _same_arguments(message.task, message.args, message.kwargs):
        return _with_keys_of(message, previous)
    return _with_keys(message, _with_options_of(previous, message.call))


def _with_keys_of(message: Message, previous: Header) -> Header:
    """Return the header of a retry with the keys of its run, also with a key that its worker has made."""
    run, unique = current_run.get(), previous.unique
    if unique is None and run and run.task_id == message.options.get("task_id") and run.unique:
        unique = (run.unique.claim.key, run.unique.until)
    values = message.call.values or previous.values
    return Header(urandom(4).hex(), previous.exclusive, unique, previous.switched_off, values)


def _with_keys(message: Message, call: CallOptions) -> Header | None:
    exclusive = unique = None
    task, args, kwargs = message.task, message.args, message.kwargs
    of_message = message.options.get("headers"), message.services.key_headers
    try:
        if call.exclusive:
            exclusive = key_of(task.name, task.run, call.exclusive, args, kwargs, *of_message)
        if call.unique:
            key = key_of(task.name, task.run, call.unique, args, kwargs, *of_message)
            unique = (key, call.unique.held_until)
    except TypeError:
        return None  # the arguments do not fit; the worker will refuse them
    except OptionError:
        if not Origin.of(message).is_celerys:
            raise
        exclusive = unique = None  # its worker cannot make them either, and fails this task with the error
    header = Header(urandom(4).hex(), exclusive, unique, call.off, call.values)
    run = current_run.get()
    if run and (run.body_over or run.task_id == message.options.get("task_id")):
        header.published_by = run.task_id
    return header


def _with_options_of(previous: Header, call: CallOptions) -> CallOptions:
    """Switch off the options that the first call has switched off, unless the retry gives them again."""
    off = (*call.off, *(name for name in previous.switched_off if name not in (*call.off, *call.values)))
    return CallOptions(
        exclusive=None if "exclusive" in off else call.exclusive,
        unique=None if "unique" in off else call.unique,
        off=off,
        values=call.values or previous.values,
    )


def _same_arguments(task: Any, args: Any, kwargs: Any) -> bool:
    request = task.request
    if request.id is None:  # no body: the main process retries a task whose child was lost
        return True
    now, before = [*args], [*(request.args or ())]
    named = request.kwargs or {}
    if len(now) != len(before) or kwargs.keys() != named.keys():
        return False
    pairs = [*zip(now, before, strict=True), *((kwargs[name], named[name]) for name in named)]
    return all(_is_equal(one, other) for one, other in pairs)


def _is_equal(one: object, other: object) -> bool:
    """Whether two values are equal. Arrays, data frames and queries cannot tell, and count as different."""
    if one is other:
        return True
    try:
        return (one == other) is True
    except Exception:  # noqa: BLE001 - whatever a class of the user's does; Celery would drop the retry
        return False
