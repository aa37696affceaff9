"""Puts our header on one message before it is sent: its keys, and a publish id of its own."""

from __future__ import annotations

from collections.abc import Callable
from os import urandom
from typing import TYPE_CHECKING, Any, cast

from celery._state import get_current_task
from celery.utils import uuid

from celery_exclusive.errors import OptionError
from celery_exclusive.messages.header import HEADER, Header, read_header, rejections
from celery_exclusive.options.keys import key_of
from celery_exclusive.publishing.call_options import CallOptions
from celery_exclusive.publishing.ordered import OrderedPublish
from celery_exclusive.publishing.origin import Origin
from celery_exclusive.publishing.unique_publish import UniquePublish
from celery_exclusive.run import current_run

if TYPE_CHECKING:
    from celery_exclusive.options.declared import Exclusive
    from celery_exclusive.services import Services


class Publish:
    """A message of a task with options that is about to be sent.

    return Publish(services, name, task, call, (args, kwargs), options, send_message).send()

    `send_message` sends it with the options that it is given. `new_id`: that of a task that is sent already,
    if its caller has given none.
    """

    def __init__(
        self,
        services: Services,
        name: str,
        task: Any,
        call: CallOptions,
        arguments: tuple[Any, Any],
        options: dict[str, Any],
        send_message: Callable[..., Any],
        new_id: str | None = None,
    ) -> None:
        self.services, self.name, self.task, self.call = services, name, task, call
        (self.args, self.kwargs), self.options = arguments, options
        self.send_message, self.new_id = send_message, new_id
        self.previous = pop_header(services, name, options) if options.get("headers") else None
        self.ordered: Exclusive | None = None

    def send(self) -> Any:
        """Send it with our header, unless its key is held; without one, if its arguments do not fit."""
        header = self._header()
        if header is None:
            return with_outcome(self.task, self.send_message(**self.options))
        if header.exclusive:
            self.ordered = self._ordered(header)
        if header.unique is None:
            id = self.options.get("task_id") or self.new_id or uuid()
            return with_outcome(self.task, self._send(header, id))
        unique = UniquePublish(
            self.services, self.task, self.call.unique, header, self.options, self._origin(), self.new_id
        )
        return unique.send(self._send, is_ordered=self.ordered is not None)

    def _ordered(self, header: Header) -> Exclusive | None:
        """Return the option of a call that takes its place when published; one due later does not."""
        option, values = self.call.exclusive, header.values
        if values is not self.call.values:  # a retry has those of its call
            option = self.services.exclusive(self.task, values)
        is_due_later = self.options.get("countdown") or self.options.get("eta")
        return option if option and option.order == "published" and not is_due_later else None

    def _send(self, header: Header, id: str, producer: Any = None) -> Any:
        options = self.options
        fields = self.services.signer.sign_header(header.write(), id, self.name)
        completed = {**options, "task_id": id, "headers": {**(options.get("headers") or {}), HEADER: fields}}
        if producer:
            completed["producer"] = producer
        elif self.services.broker_place and "kept client" in self.services.fast:
            _use_own_channels(self.services)
        if self.ordered is None or header.duplicate_of:
            return self.send_message(**completed)

        def publish(producer: Any) -> Any:
            return self.send_message(**{**completed, "producer": producer})

        message = OrderedPublish(
            self.services, self.task.name, self.ordered, header, id, goes_without=self._origin().is_celerys
        )
        return message.send(publish, options.get("producer"))

    def _origin(self) -> Origin:
        has_header = self.previous is not None
        return Origin.of(self.services, self.task, self.call.unique, self.options, has_header=has_header)

    def _header(self) -> Header | None:
        """Return a new header with its keys; None if the arguments do not fit."""
        is_retry = self.previous is not None and self.options.get("retries")
        header = self._of_retry(self.previous) if self.previous and is_retry else self._with_keys(self.call)
        if header is None:
            return None
        self.services.settings  # noqa: B018 - wrong settings are an error for the caller
        header.masked = self._is_masked()
        if self.options.get("headers"):
            header.rejections = rejections(self.options["headers"])
        return header

    def _of_retry(self, previous: Header) -> Header | None:
        if not self.call.off and _same_arguments(self.task, self.args, self.kwargs):
            return self._with_keys_of(previous)
        return self._with_keys(_with_options_of(previous, self.call))

    def _with_keys_of(self, previous: Header) -> Header:
        """Return that of a retry with the keys of its run, also of one that its worker has acquired."""
        run, unique = current_run.get(), previous.unique
        if unique is None and run and run.task_id == self.options.get("task_id") and run.unique:
            unique = (run.unique.claim.key, run.unique.until)
        values = self.call.values or previous.values
        return Header(_publish_id(), previous.exclusive, unique, previous.switched_off, values)

    def _with_keys(self, call: CallOptions) -> Header | None:
        exclusive = unique = None
        task, args, kwargs = self.task, self.args, self.kwargs
        of_message = self.options.get("headers"), self.services.key_headers
        try:
            if call.exclusive:
                exclusive = key_of(task.name, task.run, call.exclusive, args, kwargs, *of_message)
            if call.unique:
                key = key_of(task.name, task.run, call.unique, args, kwargs, *of_message)
                unique = (key, call.unique.held_until)
        except TypeError:
            return None  # the arguments do not fit; the worker will refuse them
        except OptionError:
            if not self._origin().is_celerys:
                raise
            exclusive = unique = (
                None  # its worker cannot make them either, and fails this task with the error
            )
        header = Header(_publish_id(), exclusive, unique, call.off, call.values)
        run = current_run.get()
        if run and (run.body_over or run.task_id == self.options.get("task_id")):
            header.published_by = run.task_id
        return header

    def _is_masked(self) -> bool:
        """Whether log lines must not show the arguments: the caller gives other strings for them.

        A retry has lost these strings, so what the first call wanted is kept. Of one that another publisher
        sent without this library, it is not known.
        """
        if self.options.get("retries"):
            return self.previous is None or self.previous.masked
        return self.options.get("argsrepr") is not None or self.options.get("kwargsrepr") is not None


def pop_header(services: Services, task_name: str, options: dict[str, Any]) -> Header | None:
    """Remove what a worker, or an earlier publish, has put among the headers; return our header, if valid."""
    headers = options["headers"] = dict(options["headers"])
    if HEADER not in headers:
        return None
    id, run = options.get("task_id"), cast("Any", get_current_task())
    if run is not None and run.request.id == id:  # a replacement may be another task
        task_name = run.request.task or run.name
    previous = read_header(services, headers, id, task_name)
    del headers[HEADER]
    headers.pop("redelivered", None)
    return previous


def with_outcome(task: Any, result: Any) -> Any:
    """Add the outcome that each call of a task with options has, also where they are switched off."""
    if getattr(task, "unique", None) or getattr(task, "exclusive", None):
        result.outcome, result.existing_id, result.key = "published", None, None
    return result


def _use_own_channels(services: Services) -> None:
    """Let our messages go through channels that keep their client, where the broker is a Redis."""
    from celery_exclusive.publishing.own_channel import use_own_channels

    use_own_channels(services.amqp)


def _with_options_of(previous: Header, call: CallOptions) -> CallOptions:
    """Switch off for a retry what its first call has switched off, unless the retry gives it again."""
    off = (*call.off, *(name for name in previous.switched_off if name not in (*call.off, *call.values)))
    return CallOptions(
        exclusive=None if "exclusive" in off else call.exclusive,
        unique=None if "unique" in off else call.unique,
        off=off,
        values=call.values or previous.values,
    )


def _publish_id() -> str:
    return urandom(4).hex()


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
    """Arrays, data frames and queries answer neither True nor False, or raise: they count as different."""
    if one is other:
        return True
    try:
        return (one == other) is True
    except Exception:  # noqa: BLE001 - whatever a class of the user's does; Celery would drop the retry
        return False
