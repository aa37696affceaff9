"""Ends a task whose message has left the line as Celery ends a revoked task, in this process.

No worker need run: the task's result backend is asked here, as the main process of a worker asks it.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, cast

from celery.signals import task_revoked
from celery.states import READY_STATES, REVOKED
from celery.worker.request import Request
from celery.worker.strategy import proto1_to_proto2  # type: ignore[attr-defined] # the stubs do not know it
from kombu import Message
from kombu.serialization import prepare_accept_content

from celery_exclusive.core.claim import task_id
from celery_exclusive.leases.releaser import retry_releases, unique_releases
from celery_exclusive.messages.header import Header
from celery_exclusive.messages.stored import StoredMessage
from celery_exclusive.operate.results import stored_result
from celery_exclusive.options.signing import without_signature
from celery_exclusive.run import Run, within
from celery_exclusive.seams.celery_request import context_of

if TYPE_CHECKING:
    from celery_exclusive.operate.saved import Saved
    from celery_exclusive.options.signing import Signer
    from celery_exclusive.services import Services


UNREADABLE: Final = (LookupError, TypeError, ValueError, AttributeError, RecursionError)
"""The errors of code that reads a message which another program has written or changed."""


class Damaged(Exception):
    """A stored message that cannot be read, or that this app has not signed."""


def opened(signer: Signer, saved: Saved) -> tuple[StoredMessage, Header]:
    """Return a stored message and its header. Damaged says why it cannot be read."""
    try:
        content = signer.open_parked(saved.message, saved.key, saved.id)
        if content is None:
            raise Damaged("no exclusive_secret of this app has signed it")
        stored = StoredMessage.load(content)
        header = Header.of(stored.our_header)
    except UNREADABLE as error:
        raise Damaged(str(error) or type(error).__name__) from error
    if header is None:
        raise Damaged("its header is not valid here")
    return stored, header


def end_as_revoked(services: Services, saved: Saved, reason: str) -> str:
    """End a task as REVOKED: its result, its chord, its callbacks, and its unique key. Its chain stops.

    Returns why a message cannot be read, or "". Then only its result is stored, and its unique key is free if
    its header can be read.
    """
    id, header, problem = task_id(saved.id), None, ""
    try:
        stored, header = opened(services.signer, saved)
        request = _received(services, stored)
        with within(Run(id, body_over=True)):
            context = context_of(request)
            backend = request.task.backend
            backend.mark_as_revoked(id, reason, request=context, store_result=request.store_errors)
            task_revoked.send(request.task, request=context, terminated=False, signum=None, expired=False)
    except (Damaged, *UNREADABLE) as error:
        services.app.backend.mark_as_revoked(id, reason)
        header = header or _unverified_header(saved)
        problem = f"task {id}: its message cannot be read ({error}): its result alone was stored"
    if header:
        releases = chain(unique_releases(id, header, done=True), retry_releases(id, header, done=True))
        for key, operation in releases:
            services.store.apply(key, operation)
    return problem


def _unverified_header(saved: Saved) -> Header | None:
    """Return the header of a message that has no valid signature, if it can be read.

    It may release its own leases: a program that can put a message into a line can delete these, too.
    """
    with suppress(*UNREADABLE):
        return Header.of(StoredMessage.load(without_signature(saved.message)).our_header)
    return None


def has_ended(services: Services, id: str) -> bool:
    return stored_result(services, id).get("status") in READY_STATES


def wait_again(services: Services, id: str) -> None:
    """Forget the result of a revoked task, so that `.get()` waits for its next run."""
    if stored_result(services, id).get("status") == REVOKED:
        services.app.backend.forget(id)


def _received(services: Services, stored: StoredMessage) -> Any:
    """Return the request that a worker would make of a stored message."""
    app = services.app
    message = Message(
        cast("Any", stored.body),
        content_type=stored.content_type,
        content_encoding=stored.content_encoding,
        headers=stored.headers,
        properties=stored.properties,
        delivery_info={"exchange": stored.exchange, "routing_key": stored.routing_key},
        accept=prepare_accept_content(app.conf.accept_content),
    )
    try:
        body, headers, decoded, utc = None, stored.headers, False, True
        if "task" not in headers:  # task_protocol=1
            body, headers, decoded, utc = proto1_to_proto2(message, message.payload)
        task = app.tasks.get(headers["task"]) or app.Task()
        return Request(message, app=app, task=task, body=body, headers=headers, decoded=decoded, utc=utc)
    except Exception as error:
        raise Damaged(f"{type(error).__name__}: {error}") from error
