"""The steps of a call on its unique key, which belongs to the message until one of its deliveries begins."""

from __future__ import annotations

from dataclasses import replace

from celery_exclusive.core.key_state import KeyState
from celery_exclusive.core.operations import AcquireAlone, Answer, Applied, GiveUp, Granted, Held, Stale
from celery_exclusive.core.records import Holder, Tombstone


class CallSteps(KeyState):
    """The operations of a publisher, one method each. A delivery uses some of them, too."""

    def acquire_alone(self, op: AcquireAlone) -> Answer:
        self.advance()
        own = self.holders.get(op.id)
        if own and not own.belongs_to(op.token):  # another delivery of this id runs
            return Held(*self.owners())
        # The id of a call is new: a mark of it can only come from an earlier request of its publisher.
        is_held = self.held > 0 or self.has_ahead()
        is_refused = is_held and not (op.repeated or op.inherits)
        known = None if own or is_refused or op.phase == "running" else self.mark
        if known and known.kind != "given_up":
            return Stale()
        lease = own or (None if known else self._inherited(op))
        is_free = not (is_held or known)
        if not lease and not is_free:
            if op.sends and op.repeated:
                self.new_tombstone = Tombstone("given_up")
            return Held(*self.owners())
        fence = lease.fence if lease else self.next_number()
        if lease:
            del self.holders[lease.id]
        else:
            self.limit, self.terms = 1, replace(self.terms, done="") if self.terms.done else self.terms
        if lease and lease.id != op.id and self.is_at_broker(lease.id):
            self.leave(lease.id)  # the message that its run keeps is no copy
        entry = self.entries.get(op.id)
        is_copied = entry is not None or (lease is not None and lease.may_have_copies)
        cost, part = (lease.cost, lease.part) if lease else (1, "")
        self.hold(op, fence, op.phase, may_have_copies=is_copied, cost=cost, part=part)
        if op.sends and not own:
            self.new_tombstone = Tombstone("sent")
        if entry:
            self.put_behind(entry)
        self.advance()  # a copy of the message whose lease was inherited joins the line
        return Granted(fence)

    def give_up(self, op: GiveUp) -> Answer:
        self.advance()
        lease = self.holders.get(op.id)
        is_known = (self.mark and self.mark.kind != "given_up") or op.id in self.entries
        if is_known or (lease and lease.phase == "running"):
            return Applied(False)
        self.new_tombstone = Tombstone("given_up")
        if op.releases:
            self.end_run(op.id)
        self.advance()
        return Applied(True)

    def _inherited(self, op: AcquireAlone) -> Holder | None:
        id, token = op.inherits or ("", "")
        lease = self.holders.get(id)
        return lease if lease and lease.belongs_to(token) else None
