"""A message of a task with options, from its call until Celery sends it: its origin, its keys, its header."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from os import urandom
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple

from kombu import Producer

from celery_exclusive.brokers import drops_expired
from celery_exclusive.core.publishing import has_to_be_sent
from celery_exclusive.core.room import Share
from celery_exclusive.errors import OptionError, shown
from celery_exclusive.messages.header import HEADER, Header, rejections
from celery_exclusive.options.amounts import LONGEST, microseconds, no_longer_than, seconds_until
from celery_exclusive.options.keys import key_of, share_of
from celery_exclusive.publishing.call_options import CallOptions
from celery_exclusive.run import Run, current_run
from celery_exclusive.seams.kombu_message import Captured, Sender, capturing, push_or_send
from celery_exclusive.system.cached import cached

if TYPE_CHECKING:
    from celery_exclusive.options.declared import Exclusive
    from celery_exclusive.publishing.publisher import Publisher
    from celery_exclusive.services import Services

_OF_CANVASES = ("chain", "group_id", "chord", "reply_to", "parent_id")
"""Options that Celery itself gives to the members of a canvas, and to callbacks. Plain calls have none."""
OF_MEMBERS = (*_OF_CANVASES, "link", "link_error")
"""Options by which a caller makes other code wait for the result of the call."""


OF_ONE_CALL = (*OF_MEMBERS, "group_index", "root_id", "task_id")
"""Options that belong to one call alone, and not to a message that stands for several calls."""


class NotSent(BaseException):
    """The end of publishing a message whose key is held. No code in between may report it as an error."""


class Origin(NamedTuple):
    """The origin of a call: the user's code, the end of a run, a retry or a canvas.

    `run`: of which it is the retry or replacement. `is_retry`: also of a run whose header it has.
    `is_awaited`: other code may wait for its result. `has_to_be_sent`: see `core.publishing`. `is_celerys`: a
    message for a run or a canvas goes without key and place if the store is silent, and wrong arguments fail
    its own task: neither is an error of the publishing code.
    """

    run: Run | None = None
    is_retry: bool = False
    is_awaited: bool = False
    has_to_be_sent: bool = False
    is_celerys: bool = False


_PLAIN, _SHARED = Origin(), Origin(has_to_be_sent=True)


@dataclass
class Message:
    """A message of a task with options that is about to be sent.

    `id`: of its task, unless the call is refused at once. `options`: without our header. `send_anew`: lets
    Celery make another message, where `send_task` sends one that it has made. `previous`: the header of an
    earlier publish. `written`: the header with which Celery makes the message.
    """

    publisher: Publisher
    services: Services
    name: str
    task: Any
    call: CallOptions
    args: Any
    kwargs: Any
    options: dict[str, Any]
    send_task: Callable[..., Any]
    id: str = ""
    send_anew: Callable[..., Any] | None = None
    previous: Header | None = None
    written: Header | None = None
    _share: tuple[Exclusive, Share] | None = None

    @cached
    def keys(self) -> tuple[str | None, str | None]:
        """The key of its lock, and its unique key; TypeError or OptionError for arguments that make none."""
        return self.keys_of(self.call)

    def keys_of(self, call: CallOptions) -> tuple[str | None, str | None]:
        """Return the keys that it has with these options. Without one its task may be unknown here."""
        task, exclusive, unique = self.task, call.exclusive, call.unique
        of_call = self.args, self.kwargs, self.options.get("headers"), self.services.key_headers
        if exclusive:
            self.share_of(exclusive)  # the caller hears of a wrong one, and not the worker
        return (
            key_of(task.name, task.run, exclusive, *of_call) if exclusive else None,
            key_of(task.name, task.run, unique, *of_call) if unique else None,
        )

    def share_of(self, option: Exclusive) -> Share:
        if self._share is None or self._share[0] is not option:
            headers = self.options.get("headers")
            share = share_of(self.task.name, self.task.run, option, self.args, self.kwargs, headers)
            self._share = option, share
        return self._share[1]

    @cached
    def origin(self) -> Origin:
        run, options = current_run.get(), self.options
        task_id, retries = options.get("task_id"), options.get("retries")
        is_refused = self.call.unique is not None and self.call.unique.refuses_duplicates and not retries
        is_awaited = any(map(options.get, _OF_CANVASES if is_refused else OF_MEMBERS)) or (
            self.services.has_rpc_results and self._waits_for_rpc and not is_refused
        )
        shares = self.call.unique is not None and self.call.unique.shares
        if run is None and not is_awaited and not task_id and not retries:
            return _SHARED if shares else _PLAIN
        parent = run.task_id if run and run.body_over else None
        own = run if run and run.task_id == task_id else None
        is_retry = bool(retries and (self.previous or own))
        goes_on = is_retry or own is not None
        is_sent = has_to_be_sent(
            goes_on=goes_on,
            is_awaited=is_awaited,
            has_given_id=bool(task_id) and not is_refused,
            parent=parent,
        )
        is_celerys = goes_on or parent is not None or any(map(options.get, _OF_CANVASES))
        return Origin(own, is_retry, is_awaited, is_sent or shares, is_celerys)

    @property
    def _waits_for_rpc(self) -> bool:
        """Whether a caller may wait for a result that an rpc backend sends only to this caller.

        The caller of a duplicate would never get the result of the task that holds the key.
        """
        return not self.options.get("ignore_result", self.task.ignore_result)

    def order(self, header: Header) -> Exclusive | None:
        """Return the option of a message that joins the line when it is published, and not at a later eta."""
        option, options = self.call.exclusive, self.options
        if header.values is not self.call.values:  # a retry has the options of its call
            option = self.services.exclusive(self.task, header.values)
        if option is None or header.superseded_by or options.get("countdown") or options.get("eta"):
            return None
        if option.order is None and not isinstance(options.get("producer"), (NoneType, Producer)):
            return None  # what it sends cannot be captured
        return option if self.services.order(option) == "published" else None

    def queued_ttl(self, ttl: int) -> int:
        """Return the ttl of the key of this message: `ttl` after its eta, but not beyond its expiry."""
        options = self.options
        eta, expires, delay = options.get("eta"), options.get("expires"), options.get("countdown") or 0
        if expires is None and "expiration" in options and drops_expired(self.services.app.conf):
            expires = options["expiration"]
        if eta is None and expires is None and not delay:
            return ttl
        if eta is not None:
            delay = seconds_until(eta)
        ttl = min(ttl + microseconds(delay), microseconds(LONGEST))
        if expires is None:
            return ttl
        is_relative = isinstance(expires, (int, float))
        return no_longer_than(ttl, expires if is_relative else seconds_until(expires))

    def note_superseded(self, header: Header) -> None:
        """Note the newer call that has superseded the run of which this is the retry: it does not run."""
        lease = self.origin.run and self.origin.run.lease
        if lease and lease.key == header.exclusive:
            header.superseded_by = lease.newer_call(every=0)

    def inherit_lock(self, header: Header) -> Run | None:
        """Inherit the lock's lease from the run of which this is the retry; return the run that leaves it."""
        run = self.origin.run if self.origin.is_retry else None
        if header.superseded_by or not (
            run and run.keeps_on_retry and run.lease and run.lease.key == header.exclusive
        ):
            return None
        queued_ttl = self.queued_ttl(self.services.queued_ttl(None))
        header.keeps_lock = run.hand_over_lock(header.claim_id(self.id), queued_ttl)
        return run if header.keeps_lock else None

    def send(
        self,
        header: Header,
        sender: Sender | None = None,
        *,
        plain: Header | None = None,
        must_capture: bool = True,
    ) -> Any:
        """Let Celery send the message with this header. Return its handle. None: `sender` has not sent it.

        kombu passes the encoded message to `sender`. A producer that is not kombu's sends it itself, or is
        refused if it `must_capture` the message. One that may not come to the sender has the header `plain`.
        """
        options, services = self.options, self.services
        completed = {**options, "task_id": self.id}
        if sender is None and not self.publisher.is_fast:
            completed["headers"] = self._headers(header)
            result = self.send_task(**completed)
        else:
            with services.app.producer_or_acquire(options.get("producer")) as producer:
                completed["producer"] = producer
                can_capture = issubclass(type(producer), Producer)
                if sender and must_capture and not can_capture:
                    raise OptionError(
                        f"task {self.name}: producer={shown(producer)} is no kombu.Producer, so the message "
                        "cannot take its place in line (order='published'): give a kombu.Producer, or none"
                    )
                if (sender and can_capture) or type(producer) is Producer:
                    completed["producer"] = capturing(producer, HEADER, sender or push_or_send)
                is_kombus = can_capture and type(producer).publish is Producer.publish
                completed["headers"] = self._headers(header if is_kombus or plain is None else plain)
                try:
                    result = self.send_task(**completed)
                except NotSent:  # here, since a producer that ends with an error has a new connection
                    services.app.AsyncResult(self.id)  # when it goes, Celery expects no result any more
                    return None
        result.outcome, result.existing_id, result.key = "published", None, None
        return result

    def _headers(self, header: Header) -> dict[str, Any]:
        self.written = header
        return {**(self.options.get("headers") or {}), HEADER: self._signed(header)}

    def _signed(self, header: Header) -> dict[str, Any]:
        return self.services.signer.sign_header(header.write(), self.id, self.name)

    def write_header(self, captured: Captured, header: Header) -> None:
        """Write a header into the captured message, unless Celery has made it with that."""
        if header is not self.written:
            captured.set_header(HEADER, self._signed(header))

    def send_captured(self, captured: Captured, header: Header) -> Any:
        self.write_header(captured, header)
        return push_or_send(captured) if self.publisher.is_fast else captured.send()


def header_of(message: Message) -> Header | None:
    """Return a new header for a message, with its keys. None: the arguments of the call do not fit."""
    previous, call, options = message.previous, message.call, message.options
    is_retry = bool(options.get("retries"))
    if previous and is_retry and not call.off and _has_same_arguments(message):
        header: Header | None = _with_keys_of(message, previous)
    else:
        header = _with_keys(message, _with_options_of(previous, call) if previous and is_retry else call)
    if header is None:
        return None
    message.services.settings  # noqa: B018 - wrong settings are an error for the caller
    if is_retry:  # it has lost these strings; without a header, it is not known
        header.masked = previous is None or previous.masked
        message.note_superseded(header)
    else:
        header.masked = options.get("argsrepr") is not None or options.get("kwargsrepr") is not None
    if options.get("headers"):
        header.rejections = rejections(options["headers"])
    return header


def _with_keys_of(message: Message, previous: Header) -> Header:
    """Return the header of a retry with the keys of its run, also with a key that its worker has made."""
    run, unique = current_run.get(), previous.unique
    if unique is None and run and run.task_id == message.options.get("task_id") and run.unique:
        unique = (run.unique.claim.key, run.unique.until)
    values = message.call.values or previous.values
    return Header(urandom(4).hex(), previous.exclusive, unique, previous.switched_off, values)


def _with_keys(message: Message, call: CallOptions) -> Header | None:
    try:
        exclusive, key = message.keys if call is message.call else message.keys_of(call)
    except TypeError:
        return None  # the arguments do not fit; the worker will refuse them
    except OptionError:
        if not message.origin.is_celerys:
            raise
        exclusive = key = None  # its worker cannot make them either, and fails this task with the error
    unique = (key, call.unique.held_until) if key and call.unique else None
    header = Header(urandom(4).hex(), exclusive, unique, call.off, call.values)
    run = current_run.get()
    if run and (run.body_over or run.task_id == message.options.get("task_id")):
        header.published_by = run.task_id
    return header


def _with_options_of(previous: Header, call: CallOptions) -> CallOptions:
    """Switch off the options that the first call has switched off, unless the retry gives them again."""
    off = (*call.off, *(name for name in previous.switched_off if name not in (*call.off, *call.values)))
    kept = {name: None for name in ("exclusive", "unique") if name in off}
    return call._replace(off=off, values=call.values or previous.values, **kept)


def _has_same_arguments(message: Message) -> bool:
    request, named = message.task.request, message.kwargs
    if request.id is None:  # no body: the main process retries a task whose child was lost
        return True
    now, before = [*message.args], [*(request.args or ())]
    named_before = request.kwargs or {}
    if len(now) != len(before) or named.keys() != named_before.keys():
        return False
    pairs = [*zip(now, before, strict=True), *((named[name], named_before[name]) for name in named)]
    return all(_is_equal(one, other) for one, other in pairs)


def _is_equal(one: object, other: object) -> bool:
    """Whether two values are equal. Arrays, data frames and queries cannot tell, and count as different."""
    if one is other:
        return True
    try:
        return (one == other) is True
    except Exception:  # noqa: BLE001 - whatever a class of the user's does; Celery would drop the retry
        return False
