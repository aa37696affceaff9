"""The unique lease of a message, from before it is sent until it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from celery.signals import beat_init
from celery.utils import uuid

from celery_exclusive import notices
from celery_exclusive.core.document import Phase
from celery_exclusive.core.operations import Held
from celery_exclusive.errors import DuplicateTask, StoreUnavailable
from celery_exclusive.leases.claim import Claim
from celery_exclusive.leases.lease import insist
from celery_exclusive.messages.header import Header
from celery_exclusive.options.amounts import LONGEST, microseconds, no_longer_than, seconds_until
from celery_exclusive.options.declared import FINISHED, PERIOD, Unique
from celery_exclusive.publishing.origin import Origin
from celery_exclusive.run import runs

if TYPE_CHECKING:
    from celery_exclusive.services import Services

_OF_MEMBERS = ("chain", "group_id", "chord", "link", "link_error", "reply_to", "task_id")
"""Options of calls that have to have an end of their own, since others wait for it."""


class UniquePublish:
    """A message of a task with a unique key, about to be sent: it gets its lease before.

    return UniquePublish(services, task, option, header, options, previous).send(send)
    """

    def __init__(
        self,
        services: Services,
        task: Any,
        option: Unique | None,
        header: Header,
        options: dict[str, Any],
        previous: Header | None,
    ) -> None:
        assert header.u  # noqa: S101 - else there is nothing to do here
        self.services, self.task, self.header, self.options = services, task, header, options
        is_member = any(options.get(name) for name in _OF_MEMBERS) or self._answers_by_rpc
        self.id = options["task_id"] = options.get("task_id") or uuid()
        key, self.until = header.u
        self.origin = Origin.of(self.id, key, previous, retries=options.get("retries") or 0)
        is_retry = self.origin.is_retry
        follows = is_retry or self.origin.is_of_own_run
        self.phase: Phase = "period" if self.until == PERIOD else "again" if follows else "queued"
        self.has_to_be_sent = follows or is_member or bool(header.next)
        self.is_period_kept = is_retry and self.until == PERIOD
        self.option = services.unique(task, header.values) if is_retry else option
        queued_ttl = services.queued_ttl(self.option)
        self.claim = Claim(key, header.claim_id(self.id), header.id, queued_ttl)
        self.may_hold = False

    def send(self, send: Callable[[Header], Any]) -> Any:
        """Send it with the header that it has to carry, or return what stands for it.

        What fails, or is interrupted, leaves the key as it was.

        Raises:
            DuplicateTask: somebody else has the key, and that is an error.
            StoreUnavailable: the store does not answer, and `on_store_error` is not "allow".
        """
        try:
            existing_id = self._take()
            if existing_id is not None and not self.has_to_be_sent:
                return self._stands_for(existing_id)
            result = send(self.header)
        except StoreUnavailable:
            if self.may_hold:
                self._owe()
            raise
        except BaseException:
            if self.may_hold:
                self._give_back()
            raise
        result.outcome, result.existing_id, result.key = "published", None, self.claim.key
        return result

    def _take(self) -> str | None:
        """Take the lease, if the message is to have one; return who has it, if it is a duplicate."""
        if self.is_period_kept:
            return None
        own = self.claim.own(self._queued_ttl(), self.phase, self.origin.former)
        self.may_hold = True
        try:
            answer = self.services.store.apply(self.claim.key, own).answer
        except StoreUnavailable as error:
            if not (self.has_to_be_sent or self.services.allows_without(self.option)):
                raise
            notices.unleased(self.task.name, self.id, self.claim.key, error)
            self.header = replace(self.header, u=None)  # its worker takes it, if it can
            return None
        if not isinstance(answer, Held):
            return None
        self.may_hold = False
        existing_id = notices.task_id(answer.by[0].id)
        if self.origin.goes_on or existing_id in (self.id, self.header.next):
            return None
        if self._is_own(existing_id) and not (self.options.get("group_id") or self.options.get("chord")):
            raise DuplicateTask(
                f"task {self.task.name} publishes a call with its own unique key {self.claim.key} inside its "
                "body, which would be skipped each time: use Unique(until='started'), or publish it with "
                "unique=None",
                self.claim.key,
                existing_id,
            )
        self.header = replace(self.header, dup=existing_id)
        return existing_id

    def _stands_for(self, existing_id: str) -> Any:
        """What a call returns that is not sent."""
        name, key = self.task.name, self.claim.key
        if self.option and self.option.on_conflict == "raise" and not self._is_of_beat:
            raise DuplicateTask(
                f"task {name} was not published: unique key {key} is held by {existing_id}", key, existing_id
            )
        notices.not_sent(name, key, existing_id)
        result = (self.options.get("result_cls") or self.services.app.AsyncResult)(existing_id)
        result.outcome, result.existing_id, result.key = "skipped", existing_id, key
        return result

    def _give_back(self) -> None:
        """To the run that has handed it over, if one has: it goes on with an error, and ends.

        What was sent in spite of the error, and runs already, keeps it.
        """
        claim, former, store = self.claim, self.origin.former, self.services.store
        ttl = self.services.ttl(self.option)
        undo = former.own(ttl, "running", claim) if former else claim.release(done=False)
        try:
            insist(lambda: store.apply(claim.key, undo))
        except Exception as error:  # noqa: BLE001 - the caller gets that which it was told before
            what = (
                f"unique key {claim.key} of a message that was not published could not be released; retrying"
            )
            notices.trouble(what, error)
            self._owe()

    def _owe(self) -> None:
        """Not to a run, which may have ended by then."""
        self.services.releaser.add((self.claim.key, self.claim.release(done=False)))

    def _is_own(self, existing_id: str) -> bool:
        """Whether the run that has the key is that which calls."""
        own = (
            run.unique for run in runs() if run.task_id == existing_id and run.unique and not run.body_over
        )
        unique = next(own, None)
        return unique is not None and unique.until == FINISHED and unique.claim.key == self.claim.key

    def _queued_ttl(self) -> int:
        """For as long as it may be queued: from when it may begin on, and not once it has expired."""
        if self.until == PERIOD:
            return self.claim.ttl
        eta, expires = self.options.get("eta"), self.options.get("expires")
        delay = (self.options.get("countdown") or 0) if eta is None else seconds_until(eta)
        ttl = min(self.claim.ttl + microseconds(delay), microseconds(LONGEST))
        if expires is None:
            return ttl
        is_relative = isinstance(expires, (int, float))
        return no_longer_than(ttl, expires if is_relative else seconds_until(expires))

    @property
    def _answers_by_rpc(self) -> bool:
        """Whether results go to their caller alone: nobody else could wait for that of another call."""
        return str(self.services.app.conf.result_backend or "").startswith("rpc")

    @property
    def _is_of_beat(self) -> bool:
        """Whether nobody would catch an error: beat tries again at the next time in any case."""
        return _process["is beat"] or bool((self.options.get("headers") or {}).get("celery_beat_task"))


_process = {"is beat": False}


@beat_init.connect
def _note_beat(**_: Any) -> None:
    _process["is beat"] = True
