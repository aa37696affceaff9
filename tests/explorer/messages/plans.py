"""The plans of the library, run from the start for each of their operations: a generator has no equal."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar
from unittest import mock

from celery_exclusive.core import admission, endings, publishing
from celery_exclusive.core.admission import Admission, Policy
from celery_exclusive.core.claim import FINISHED, LAST_CHANCE, Claim, UniqueClaim
from celery_exclusive.core.delivery import Delivery
from celery_exclusive.core.endings import HandOver, retry_ended
from celery_exclusive.core.operations import AcquireAlone, Release, Remove, Requeue
from celery_exclusive.core.plan import Ask, Plan
from celery_exclusive.core.publishing import Call, Kind, Sending
from tests.explorer.messages.store import LATER, LOCK, MUCH_LATER, NOW
from tests.explorer.messages.world import Caller, Message, Publication, Setting, Slot

T = TypeVar("T")
TTL, QUEUED_TTL = LATER - NOW, MUCH_LATER - NOW
_FOLLOWING = ("retry", "retry elsewhere", "replacement")
_INSIDE = (*_FOLLOWING, "inner", "inner member")
"""What is published inside a body; a `step` is published after it."""


class Plans:
    """The next requests of the plans, or their outcomes, with a memory of the results of each."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._known: dict[object, object] = {}

    def admit(self, slot: Slot) -> Ask | Admission:
        policy = Policy(self.setting.on_conflict, gives_up_in=TTL if self.setting.gives_up else None)
        known = ("admit", slot.copy, slot.token, slot.is_anew, slot.answers)
        return self._next(known, lambda: admission.admit(self.delivery(slot), policy), slot.answers)

    def publish(self, call: Call, answers: tuple[object, ...]) -> Ask | Sending:
        return self._next(("publish", call, answers), lambda: publishing.publish(call), answers)

    def unpublished(self, call: Call) -> AcquireAlone | Release:
        return publishing.unpublished(call, TTL)

    def body_ended(self, slot: Slot) -> Release | Requeue | None:
        return endings.body_ended(self.delivery(slot), will_be_redelivered=self.will_be_redelivered(slot))

    def run_ended(self, slot: Slot) -> list[tuple[str, Release | Requeue | Remove]]:
        """The requests of the main process for a dead child, or a discarded message."""
        done, delivery = slot.is_done, self.delivery(slot)
        asked = list(endings.run_ended(delivery, done=done, will_be_redelivered=not done))
        if slot.is_discarded and delivery.keeps_lock and not delivery.redelivered:
            asked += [(LOCK, operation) for operation in retry_ended(delivery.id, done=True)]
        return asked

    def leave(self, slot: Slot) -> list[tuple[str, Release | Requeue | Remove]]:
        """The requests of the body's process at the end of a run: `worker.run_leases.LeasedRun.release`."""
        delivery = self.delivery(slot)
        asked: list[tuple[str, Release | Requeue | Remove]] = []
        if slot.hand_over:
            ended = self.hand_over(slot).run_ended(
                has_lease=slot.is_handed_over, is_published=slot.has_retried, done=slot.is_done
            )
            asked += [(LOCK, operation) for operation in ended]
        elif delivery.exclusive and (slot.has_lock or slot.has_body or slot.ends_wait):
            asked.append((LOCK, delivery.exclusive.release("done" if slot.is_done else "open")))
        if delivery.unique and slot.holds and slot.is_done:
            asked.append((delivery.unique.claim.key, delivery.unique.claim.release("done")))
        if delivery.last_chance and slot.has_body:
            asked.append((LAST_CHANCE, delivery.last_chance.release("done" if slot.is_done else "open")))
        return asked

    def will_be_redelivered(self, slot: Slot) -> bool:
        return not slot.is_done and self.setting.late

    def delivery(self, slot: Slot) -> Delivery:
        """The facts of this delivery: `worker.reading.read`."""
        copy, message = slot.copy, slot.copy.message
        token = str(slot.token)
        exclusive = unique = None
        joins = self.joins(slot)
        if self.setting.exclusive and (joins or not message.duplicate_of):
            exclusive = Claim(LOCK, slot.hand_over if slot.is_handed_over else message.id, token, TTL)
        if joins or not message.duplicate_of:
            claim = Claim(message.key, message.id, token, TTL)
            unique = UniqueClaim(claim, self.setting.until, QUEUED_TTL, message.is_acquired)
        is_guard = unique is not None and unique.until == FINISHED
        return Delivery(
            id=message.id,
            token=token,
            exclusive=exclusive,
            unique=unique,
            duplicate_of=(message.key, message.duplicate_of) if message.duplicate_of else None,
            joins=joins,
            called_by=message.parent or None,
            redelivered=copy.is_redelivered or slot.is_anew,
            promoted=copy.promoted,
            offered=copy.offered or None,
            was_admitted=copy.is_redelivered or bool(copy.promoted) or message.is_retry,
            may_have_begun=copy.is_redelivered or message.is_retry or message.parent == message.task,
            acks_late=self.setting.late,
            last_chance=Claim(LAST_CHANCE, message.id, token, TTL) if self._is_last_chance(slot) else None,
            recovers=self.setting.recovers and (exclusive is not None or is_guard),
            published_by=message.parent or None,
            follows=message.follows or None,
            is_awaited=message.is_awaited,
            keeps_lock=message.keeps_lock,
            superseded_by=message.superseded_by or None,
        )

    def joins(self, slot: Slot) -> bool:
        return self.setting.joins and slot.copy.message.is_awaited

    def _is_last_chance(self, slot: Slot) -> bool:
        """Whether the store has counted so many deaths; a message of the broker does not know of them."""
        return self.setting.last_chances and slot.copy.promoted is not None

    def hand_over(self, slot: Slot) -> HandOver:
        """The retry to which this run leaves its lock."""
        return HandOver(Claim(LOCK, slot.id, str(slot.token), TTL), slot.hand_over, QUEUED_TTL)

    def call(self, caller: Caller) -> Call:
        """The call of a process that runs no task."""
        return self._call(caller.how, caller.message)

    def call_of_run(self, slot: Slot) -> Call:
        """The call that a run makes: `publishing.unique_publish.UniquePublish`."""
        assert slot.next
        how, message = slot.next
        delivery = self.delivery(slot)
        unique = delivery.unique if delivery.unique and delivery.unique.until == FINISHED else None
        has_key = (
            how in _FOLLOWING and delivery.unique is not None and delivery.unique.claim.key == message.key
        )
        inherited = unique.claim if unique and has_key and slot.holds else None
        callers = (
            (slot.copy.message.task,) if unique and how in _INSIDE and message.key == unique.claim.key else ()
        )
        return self._call(how, message, inherited=inherited, has_key=has_key, callers=callers)

    def _call(
        self,
        how: Publication,
        message: Message,
        *,
        inherited: Claim | None = None,
        has_key: bool = False,
        callers: tuple[str, ...] = (),
    ) -> Call:
        kind, is_awaited = _kind(how, message, has_key=has_key), how in ("member", "step", "inner member")
        return Call(
            Claim(message.key, message.id, "its publisher", QUEUED_TTL),
            self.setting.until,
            queued_ttl=QUEUED_TTL,
            kind=kind,
            inherits=inherited,
            is_awaited=is_awaited,
            has_to_be_sent=publishing.has_to_be_sent(
                goes_on=kind != "call",
                is_awaited=is_awaited,
                has_given_id=self.has_given_id(message),
                parent=message.parent or None,
            ),
            is_parallel=how == "inner member",
            parent=message.parent or None,
            callers=callers,
        )

    def has_given_id(self, message: Message) -> bool:
        return self.setting.calls.lower().count(message.task) > 1

    def _next(self, known: object, plan: Callable[[], Plan[T]], answers: tuple[object, ...]) -> Ask | T:
        if known not in self._known:
            self._known[known] = _replay(plan(), answers)
        return self._known[known]  # type: ignore[return-value]


def _kind(how: Publication, message: Message, *, has_key: bool) -> Kind:
    if message.is_retry:
        return "retry"
    if how not in _FOLLOWING:
        return "call"
    return "replacement" if has_key else "rekeyed replacement"


@mock.patch.object(admission, "_UUID", re.compile("[a-z]"))
def _replay(plan: Plan[T], answers: tuple[object, ...]) -> Ask | T:
    """Give a plan the answers that it has got, and return what it asks now, or comes to."""
    try:
        asked = next(plan)
        for answer in answers:
            asked = plan.send(answer)  # type: ignore[arg-type]
    except StopIteration as end:
        result: T = end.value
        return result
    return asked
