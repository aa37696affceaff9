"""Messages from a line whose task has no option in this worker's code: another release declared one.

The task runs without a lock, as this worker's code declares it. If its entry stayed in line, it would be
offered and run again and again, while the tasks behind it wait.
"""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING, Any

from celery.signals import task_received, task_rejected, task_revoked, task_unknown

from celery_exclusive import notices, outcomes
from celery_exclusive.core.claim import FINISHED, LAST_CHANCE, WINDOW
from celery_exclusive.core.operations import Applied, Remove
from celery_exclusive.errors import ExclusiveError
from celery_exclusive.messages.header import HEADER, Header, read_header
from celery_exclusive.options.declared import Exclusive
from celery_exclusive.outcomes import Subject
from celery_exclusive.seams.celery_request import as_dict
from celery_exclusive.system.forks import forks_wait
from celery_exclusive.worker.gate import GatedTask
from celery_exclusive.worker.reading import (
    Delivered,
    is_redelivered,
    note_route,
    release_unique_key_of,
    show_origin,
)

if TYPE_CHECKING:
    from celery_exclusive.services import Services
    from celery_exclusive.stores.base import Store


class Undeclared:
    """Removes the entries of such messages from their lines, for as long as it exists."""

    def __init__(self, services: Services) -> None:
        self.services = services
        task_received.connect(self._receive)
        task_revoked.connect(self._revoke)
        task_unknown.connect(self._refuse)
        task_rejected.connect(self._refuse)

    def _receive(self, request: Any, **_: Any) -> None:
        task, headers = request.task, request.message.headers
        if isinstance(task, GatedTask) and (
            self.services.exclusive(task)
            or not isinstance(fields := headers.get(HEADER), dict)
            or fields.get("exclusive") is None
        ):
            return  # the child that runs it reads its header
        if header := read_header(self.services, headers, request.id, task.name):
            came = Delivered.of(request)
            note_route(came, header)
            if self._leave_lines(task, request.id, header, again=came.redelivered):
                show_origin(as_dict(request), header)

    def _revoke(self, sender: Any, request: Any, **_: Any) -> None:
        """Handle a message that is revoked or expires before it is received, as Celery announces it here."""
        if header := read_header(self.services, vars(request), request.id, sender.name):
            again = bool((request.delivery_info or {}).get("redelivered"))
            self._leave_lines(sender, request.id, header, again=again)

    def _refuse(self, message: Any, **_: Any) -> None:
        """Handle a message that Celery drops: no worker of this release knows its task, or can read it."""
        headers = message.headers or {}
        redelivered = is_redelivered(message)
        release_unique_key_of(self.services, str(headers.get("id")), headers, redelivered=redelivered)

    def _leave_lines(self, task: Any, id: str, header: Header, *, again: bool) -> bool:
        """Leave the lines of options that this task does not have; return whether it may be in any line.

        A task with another option acquires the unique key all the same, out of that line.
        """
        is_gated = isinstance(task, GatedTask)
        is_asked_for = is_gated and Exclusive.attribute in header.values
        keys = [] if is_asked_for or self.services.exclusive(task) else [header.exclusive]
        if not is_gated:
            self.services.releaser.add_message(id, header)
        elif keys:
            self.services.releaser.add_retry(id, header)
        if header.unique and header.unique[1] in (FINISHED, WINDOW) and not is_gated:
            keys.append(header.unique[0])
        # It may wait for its last chance, and have its place in line. A task with another option asks again.
        if header.deaths and not (is_gated and self.services.unique(task)):
            keys.append(LAST_CHANCE)
        to_leave = [key for key in keys if key and (header.promoted is not None or again)]
        for key in to_leave:
            entry = (self.services.store, task.name, id, key, header.claim_id(id))
            Thread(target=self._leave_line, args=entry, name="exclusive-leave", daemon=True).start()
        return bool(to_leave)

    def _leave_line(self, store: Store, task: str, id: str, key: str, claim: str) -> None:
        """Remove the entry, but not for good: if this worker is killed, one of another release may get it."""
        try:
            with forks_wait():
                reply = store.apply(key, Remove(claim, ending="open"))
        except ExclusiveError as error:
            notices.trouble(
                f"task {id} runs without lock {key}, but could not leave its line, and may run again", error
            )
        else:
            if reply.answer == Applied(True):
                outcomes.runs_without_option(Subject(task, id, key))
