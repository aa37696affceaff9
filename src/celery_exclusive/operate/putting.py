"""Publishes saved messages again: each task joins the end of its line, on this store or another."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from celery_exclusive.brokers import is_in_one_process
from celery_exclusive.core.claim import WINDOW, first_task_id, publish_claim_id, task_id
from celery_exclusive.core.operations import AcquireAlone, Answer, Applied, Enqueue, Held, Remove, Stale
from celery_exclusive.core.publishing import PHASES
from celery_exclusive.core.room import Share
from celery_exclusive.errors import StoreRefused
from celery_exclusive.messages.header import HEADER, Header
from celery_exclusive.messages.namespace import keep_namespace, own_broker
from celery_exclusive.messages.republish import Republisher
from celery_exclusive.messages.stored import queue_of
from celery_exclusive.operate.consumers import ask_consumers
from celery_exclusive.operate.patience import NoAnswer, ask_backend, ask_broker
from celery_exclusive.operate.revoking import UNREADABLE, Damaged, opened, wait_again
from celery_exclusive.operate.saved import Saved, SavedFile
from celery_exclusive.options.signing import Signer
from celery_exclusive.publishing.ordered import terms_of
from celery_exclusive.stores.base import Wake

if TYPE_CHECKING:
    from celery_exclusive.messages.stored import StoredMessage
    from celery_exclusive.operate.consumers import Consumers
    from celery_exclusive.services import Services

Outcome = Literal["put", "known", "held", "before", "unfinished", "left", "damaged"]


class Putter:
    """Publishes the messages of a file of dropped tasks. `again`: also those that were put before.

    Each gets a publish id that follows from its old one, so that a command that was killed can be repeated.
    """

    def __init__(self, services: Services, file: SavedFile, *, again: bool = False) -> None:
        self.services, self.file, self.again = services, file, again
        self._salt = (file.token, os.urandom(4).hex()) if again else (file.token,)
        self._signer = Signer(services.settings.secrets, file.prefix)
        self._republisher = Republisher(services.app, own_connection=True)
        self._declared: set[str] = set()
        self._epoch = services.store.epoch()
        here = (services.settings.exclusive_prefix, self._epoch)
        self._is_elsewhere = (file.prefix, file.epoch) != here
        self.problems: list[str] = []
        self._consumers: Consumers | None = None
        self._queues: set[str] = set()

    def put_all(self) -> Iterator[Outcome]:
        """Put the tasks in the order of the file. After an error of a server the command can be repeated."""
        keep_namespace(self.services, own_broker(self.services))
        if not is_in_one_process(self.services.app.conf):
            self._consumers = ask_consumers(self.services)
        seen: set[str] = set()
        try:
            for saved in self.file.tasks():
                if not isinstance(saved, Saved):
                    self.problems.append(saved)
                    yield "damaged"
                elif saved.id not in seen:
                    seen.add(saved.id)
                    yield self._put_one(saved)
        finally:
            with suppress(NoAnswer):
                ask_broker(self.services, self._republisher.close)

    def _put_one(self, saved: Saved) -> Outcome:
        fate = self.file.fates[saved.id]
        if fate == "saved":
            return "unfinished"
        if fate == "left":
            return "left"
        if fate == "put" and not self.again:
            return "before"
        try:
            stored, header = opened(self._signer, saved)
            outcome = self._put_message(saved, stored, header)
        except (Damaged, StoreRefused, *UNREADABLE) as error:
            why = str(error) or type(error).__name__
            self.problems.append(f"task {task_id(saved.id)} cannot be put: {why}")
            return "damaged"
        if outcome in ("put", "known"):
            self.file.note("put", saved.id)
            self._warn_of(stored.routing_key)
        return outcome

    def _warn_of(self, queue: str) -> None:
        """Say once of a queue that no worker consumes it."""
        consumers = self._consumers
        if consumers and queue not in self._queues and not consumers.may_take(queue):
            self.problems.append(f"no worker consumes queue {queue}: tasks that were put wait until one does")
        self._queues.add(queue)

    def _put_message(self, saved: Saved, stored: StoredMessage, header: Header) -> Outcome:
        """Take the unique key and the place of a message, and publish it if no other process will."""
        id = task_id(saved.id)
        header = header.as_put(*self._salt, store=header.store and self._epoch)
        stored = replace(stored, headers={**stored.headers, HEADER: header.write()})
        claim, store = header.claim_id(id), self.services.store
        if self._is_elsewhere and store.capabilities.line:  # a queue may have copies of it
            store.apply(saved.key, Remove(saved.id, "superseded"))
        if header.unique and header.unique[0] == saved.key and header.unique[1] == WINDOW:
            self._wait_again(id)
            reply = store.apply(saved.key, Enqueue(claim, stored.dump(), waits=(0, 0)))
            if isinstance(reply.answer, Held):
                return self._held(id, saved.key, first_task_id(reply.answer.by))
            return "known" if reply.answer == Applied(False) else "put"
        task = self.services.app.tasks.get(str(stored.headers.get("task")))
        if header.unique and header.unique[1] != WINDOW and not header.duplicate_of:
            answer = self._take_unique_key(claim, task, header)
            if isinstance(answer, Held):
                return self._held(id, header.unique[0], first_task_id(answer.by))
            if answer == Stale():
                return "known"
        self._wait_again(id)
        option = self.services.exclusive(task, header.values) if task else None
        if not (option and header.exclusive and store.capabilities.line):
            self._send(stored)
            return "put"
        queue = queue_of(stored.exchange, stored.routing_key)
        share = Share(option.cost if isinstance(option.cost, int) else 1)  # the worker knows its arguments
        terms = terms_of(option, share, stored.headers, queue, goes_on=bool(stored.headers.get("retries")))
        answer = store.apply(header.exclusive, Enqueue(claim, stored.dump(), **terms)).answer
        if answer == Applied(True):
            self._send(stored.promoted(Wake(header.exclusive, claim, b"", self._epoch)))
        return "known" if answer == Applied(False) else "put"

    def _take_unique_key(self, claim: str, task: Any, header: Header) -> Answer:
        ttl = self.services.queued_ttl(task and self.services.unique(task, header.values))
        assert header.unique  # noqa: S101 - its caller has looked
        key, until = header.unique
        request = AcquireAlone(publish_claim_id(claim), header.id, ttl, None, PHASES[until])
        return self.services.store.apply(key, request).answer

    def _held(self, id: str, key: str, by: str) -> Outcome:
        self.problems.append(f"task {id} was skipped: {by or 'another call'} holds its unique key {key}")
        return "held"

    def _wait_again(self, id: str) -> None:
        ask_backend(self.services, lambda: wait_again(self.services, id))

    def _send(self, stored: StoredMessage) -> None:
        ask_broker(self.services, lambda: self._send_now(stored))

    def _send_now(self, stored: StoredMessage) -> None:
        """Publish a message now. Its queues are declared first, since the broker may be a new one."""
        app, to = self.services.app, stored.routing_key
        queues = [it for it in app.amqp.queues.values() if to in (it.name, it.routing_key)]
        if queues and to not in self._declared:
            with app.connection_for_write() as connection:
                for queue in queues:
                    queue(connection.default_channel).declare()
            self._declared.add(to)
        self._republisher.publish(stored)
