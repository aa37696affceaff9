"""Publishes a call of a task with `unique=Debounce(...)`: it opens a window, or joins the open one.

The store keeps the encoded message until the window ends, and replaces it by that of each newer call, under
the id of the first one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from celery.signals import before_task_publish
from celery.utils import uuid

from celery_exclusive import outcomes
from celery_exclusive.core.claim import publish_id, task_id
from celery_exclusive.core.operations import AcquireAlone, Answer, Applied, Enqueue, Granted, Held, Parked
from celery_exclusive.errors import OptionError, StoreError, StoreUnavailable
from celery_exclusive.options.declared import Debounce
from celery_exclusive.options.key_headers import own_headers
from celery_exclusive.outcomes import Subject
from celery_exclusive.publishing.asking import AskingPublish
from celery_exclusive.publishing.message import OF_ONE_CALL, NotSent
from celery_exclusive.publishing.ordered import OrderedPublish, leads_to_a_queue, stored_message
from celery_exclusive.publishing.refusal import result_of

if TYPE_CHECKING:
    from celery_exclusive.messages.header import Header
    from celery_exclusive.options.declared import Exclusive
    from celery_exclusive.publishing.message import Message
    from celery_exclusive.seams.kombu_message import Captured

_TRIES = 8
"""The most requests of a call. Two are enough, unless windows end and others are opened in between."""


class DebouncedPublish(AskingPublish):
    """A message that opens a window of calls, or joins the open one; `may_be_sent`: it may wait there.

    `window`: its claim id. `answer`: to the last request; None: no store can keep this message.
    """

    answer: Answer | None = None
    window: str = ""

    def __init__(self, message: Message, header: Header, ordered: Exclusive | None) -> None:
        option = message.call.unique
        assert header.unique and isinstance(option, Debounce)  # noqa: S101, PT018 - else there is no window
        super().__init__(message, header, header.unique[0], option)
        self.option, self.ordered = option, ordered

    def publish(self) -> Any:
        """Put the message into a window, or send it at once if the store does not answer, where it may."""
        message, result = self.message, None
        subject = Subject(message.task.name, message.id, self.key)
        if message.options.get("countdown") or message.options.get("eta"):
            if not message.origin.is_celerys:
                raise self._wrong("a window says when its call runs, and no countdown= or eta= does")
        elif not self.services.store.capabilities.line:
            raise self._wrong(f"a call waits in the store, and {self.services.store.url} keeps no line")
        else:
            try:
                if self.option.leading and self._leads():
                    return self._send_first()
                result = self._join()
            except StoreError as error:
                if not self.goes_without:
                    raise
                outcomes.continues_without_window(subject, error)
                return self._send_at_once()
        if result is not None:
            return result
        outcomes.has_no_window(subject)
        return self._send_at_once()

    def _leads(self) -> bool:
        """Whether no call came lately, and no window is open. Others open one from now on."""
        wait, _ = self.option.waits
        return isinstance(self.request(AcquireAlone(self.id, self.header.id, wait, None, "period")), Granted)

    def _send_first(self) -> Any:
        result = self._send_at_once()
        result.outcome, result.existing_id, result.key = "published", None, self.key
        return result

    def _join(self) -> Any:
        """Open a window, or replace the message of the open one. None: no store can keep the message.

        If others wait for the end of the call, a duplicate is sent: the message in the window has nothing
        that belongs to one call alone.
        """
        self.header.store = self.message.publisher.epoch(self.store)
        origin = self.message.origin
        own = self.window = f"{uuid()}/{self.header.id}" if origin.is_awaited else self.id
        if before_task_publish.receivers:  # which see each message that is made
            line = self.store.inspect(self.key).line
            self.window = next((waiting.id for waiting in line if waiting.not_before is not None), own)
        for _ in range(_TRIES):
            result = self._enqueue()
            if isinstance(self.answer, Held):
                self.window = self.answer.by[0].id
            elif self.answer != Applied(False):
                break
            elif self.window == own:  # an earlier request, without an answer, has opened it, and it has ended
                result = result_of(self.services, self.message.options, task_id(own))
                break
            else:  # it has ended since it was named
                self.window = own
        else:
            return None
        if self.answer is None:
            return None
        existing_id, is_first = task_id(self.window), self.window == own
        if origin.has_to_be_sent and existing_id != self.message.id:
            result = self.message.send(replace(self.header, duplicate_of=existing_id))
        result.outcome, result.key = "published" if is_first else "updated", self.key
        result.existing_id = None if is_first and existing_id == self.message.id else existing_id
        return result

    def _enqueue(self) -> Any:
        """Let Celery make the message for its window, and the store keep it. None: it is not kept."""
        message, window = self.message, self.window
        options = {name: it for name, it in message.options.items() if name not in OF_ONE_CALL}
        if message.send_anew:  # they are all headers of the message that Celery has made
            options["headers"] = own_headers(options["headers"])
        made = replace(
            message, id=task_id(window), options=options, send_task=message.send_anew or message.send_task
        )
        header = replace(self.header, id=publish_id(window), published_by=None)

        def enter(captured: Captured) -> None:
            self.answer = None
            if not leads_to_a_queue(captured.encoded) or self.leads_elsewhere(captured):
                raise NotSent
            captured.declare()  # first: a broker that is away is an error of a call that has changed nothing
            stored = stored_message(captured.encoded, header).dump()
            self.answer = self.request(Enqueue(window, stored, waits=self.option.waits), sends=True)
            if not isinstance(self.answer, Parked):
                raise NotSent

        return made.send(header, enter)

    def _send_at_once(self) -> Any:
        header = replace(self.header, unique=None, store=None)
        if self.ordered:
            return OrderedPublish(self.message, header, self.ordered).send()
        return self.message.send(header)

    def _wrong(self, problem: str) -> OptionError:
        name = self.message.task.name
        return OptionError(
            f"task {name}: {problem} (unique={self.option!r}): leave it out, or give unique=None in this call"
        )

    def _unanswered(self, error: StoreUnavailable) -> StoreUnavailable:
        """Return the error that names the window, which another call may join."""
        name, id = self.message.task.name, task_id(self.window)
        explained = StoreUnavailable(
            f"task {name}[{id}] may wait in its window with the arguments of this call: {error}. To call it "
            "again is safe: the call joins the window, or opens the next one"
        )
        explained.task_id = id
        return explained

    def _undo(self, error: BaseException) -> None:
        """Undo nothing: newer calls may be in the window that this call has opened."""
