"""A message of a task with options, from its call until Celery sends it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kombu import Producer

from celery_exclusive.errors import OptionError, shown
from celery_exclusive.messages.header import HEADER, Header, read_header
from celery_exclusive.seams.kombu_message import Captured, Sender, capturing, push_or_send

if TYPE_CHECKING:
    from celery_exclusive.options.declared import Exclusive
    from celery_exclusive.publishing.call_options import CallOptions
    from celery_exclusive.publishing.publisher import Publisher
    from celery_exclusive.services import Services


class NotSent(BaseException):
    """The end of publishing a message whose key is held. No code in between may report it as an error."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a task with options that is about to be sent.

    * `options`: the options of its call, without our header. `send_task` sends the message with the options
      that it gets.
    * `previous`: the header of an earlier publish of the message, for instance of a retry.
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
    previous: Header | None
    id: str

    def order(self, header: Header) -> Exclusive | None:
        """Return the option of a message that joins the line when it is published, and not at a later eta."""
        option, options = self.call.exclusive, self.options
        if header.values is not self.call.values:  # a retry has the options of its call
            option = self.services.exclusive(self.task, header.values)
        is_due_later = options.get("countdown") or options.get("eta")
        return option if option and option.order == "published" and not is_due_later else None

    def send(self, header: Header, sender: Sender | None = None) -> Any:
        """Let Celery send the message with this header. Return its handle. None: `sender` has not sent it.

        kombu passes the encoded message to `sender`. The default sender sends it.
        """
        options, services = self.options, self.services
        fields = services.signer.sign_header(header.write(), self.id, self.name)
        headers = {**(options.get("headers") or {}), HEADER: fields}
        completed = {**options, "task_id": self.id, "headers": headers}
        if sender is None and not self.publisher.is_fast:
            result = self.send_task(**completed)
        else:
            with services.app.producer_or_acquire(options.get("producer")) as producer:
                completed["producer"] = producer
                if sender and not issubclass(type(producer), Producer):
                    raise OptionError(
                        f"task {self.name}: producer={shown(producer)} is no kombu.Producer, so the message "
                        "cannot take its place in line (order='published'): give a kombu.Producer, or none"
                    )
                if sender or type(producer) is Producer:
                    completed["producer"] = capturing(producer, HEADER, sender or push_or_send)
                try:
                    result = self.send_task(**completed)
                except NotSent:  # here, since a producer that ends with an error has a new connection
                    services.app.AsyncResult(self.id)  # when it goes, Celery expects no result any more
                    return None
        result.outcome, result.existing_id, result.key = "published", None, None
        return result

    def send_captured(self, captured: Captured, header: Header | None) -> Any:
        """Send the captured message as the default sender does, with this header if one is given."""
        if header:
            captured.set_header(HEADER, self.services.signer.sign_header(header.write(), self.id, self.name))
        return push_or_send(captured) if self.publisher.is_fast else captured.send()


def pop_header(services: Services, task_name: str, options: dict[str, Any]) -> Header | None:
    """Remove the headers of a worker or of an earlier publish; return our header, if it is valid."""
    headers = options["headers"] = dict(options["headers"])
    if HEADER not in headers:
        return None
    id, run = options.get("task_id"), services.app.current_task
    if run is not None and run.request.id == id:  # a replacement may be another task
        task_name = run.request.task or run.name
    previous = read_header(services, headers, id, task_name)
    del headers[HEADER]
    headers.pop("redelivered", None)
    return previous
