"""Makes keys of headers that receivers of `before_task_publish` add.

Celery calls the receivers last of all. So the producer that publishes the message computes the key, and sends
or drops the message. A duplicate ends there: its receivers have been called, and `after_task_publish` is not
sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from celery_exclusive.options.keys import needs_headers
from celery_exclusive.publishing.message import NotSent

if TYPE_CHECKING:
    from celery_exclusive.publishing.call_options import CallOptions
    from celery_exclusive.services import Services

_Publish = Callable[[Mapping[str, Any], Any, Callable[..., Any]], Any]
"""A function of the final headers of a message, its producer, and the function that pushes it."""


def are_late(services: Services, task: Any, call: CallOptions) -> bool:
    """Whether the keys of this call are made of headers that receivers may still add."""
    options = filter(None, (call.exclusive, call.unique))
    return any(needs_headers(option, task.run, services.key_headers) for option in options)


def send_late(
    services: Services, options: dict[str, Any], send: Callable[..., Any], publish: _Publish
) -> Any:
    """Let Celery send a message through a producer that lets `publish` send it, or return another handle."""
    with services.app.producer_or_acquire(options.get("producer")) as used:
        late = _Producer(used, publish)
        try:
            result = send(**{**options, "producer": late})
        except NotSent:
            services.app.AsyncResult(options["task_id"])  # when it goes, Celery expects no result any more
            return late.result
    vars(result).update(vars(late.result))
    return result


class _Producer:
    """A stand-in for the producer of one message, and of its event after that."""

    def __init__(self, producer: Any, publish: _Publish) -> None:
        self._producer, self._publish = producer, publish
        self.result: Any = None

    def publish(self, body: Any, **options: Any) -> Any:
        if self.result is not None:
            return self._producer.publish(body, **options)
        pushed: list[Any] = []

        def push(headers: Mapping[str, Any], producer: Any, **_: Any) -> Any:
            pushed.append(producer.publish(body, **{**options, "headers": headers}))
            return SimpleNamespace()

        self.result = self._publish(options["headers"], self._producer, push)
        if not pushed:
            raise NotSent
        return pushed[0]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)
