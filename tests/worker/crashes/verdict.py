"""The verdict of a case, from the journal of the bodies and the record of the requests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from operator import itemgetter

from celery.exceptions import WorkerLostError

from tests.worker.crashes.lane import Call, Lane
from tests.worker.journal import Event

MEMBERS = ["first", "second"]
"""The tags of the members of a chord."""
_RESULT = "MULTI+SETEX+PUBLISH+EXEC"
"""The request that stores a result on Redis."""
_OF_CHORD = ("EVALSHA", "declare", "MULTI+SADD+SADD+EXEC")
"""The requests by which Celery counts a result for its chord, and gets ready to publish the body."""


@dataclass(frozen=True)
class Verdict:
    """What plain Celery would have lost or repeated, and what must not be."""

    lane: Lane
    is_late: bool

    # What may be lost

    def has_ended(self, call: Call) -> bool:
        """Whether all that the call asks for is done, by its own run or, in a window, by a newer one."""
        if call.name == "chord":
            return bool(self.lane.journal.events("gathered", tag=call.tag))
        if call.name == "revoked":
            return bool(self.lane.lab.app.AsyncResult(call.id).state == "REVOKED")
        ends = self.lane.journal.events("end", id=call.id)
        if call.name == "late":
            return any(event["tag"] >= call.tag for event in ends)
        return any(map(_is_last, ends))

    def is_excused(self, call: Call) -> bool:
        """Whether plain Celery would have lost this task, too, and the store had not parked it."""
        end = self.lane.end
        if not self.is_late and self._was_killed_with(call):
            return True
        return bool(end and not self._is_paused and self._is_lost_with(end, call))

    def _is_lost_with(self, end: Event, call: Call) -> bool:
        kept = self.lane.in_line | self.lane.at_broker
        if end["role"] == "publisher":  # the key and the message are two requests
            return (
                call.outcome == "skipped" and not self.lane.servers.are_one and not self._was_published(end)
            )
        if call.name == "chord" and (self.lane.popped or self._had_not_counted(end)):
            return True
        if end["how"] == "child":
            return not self.is_late and self._was_lost_with_child(call)
        if self.is_late or call.id in kept:
            return call.id in self.lane.popped - kept
        return not call.members or any(id not in kept and not self._has_survived(id) for id in call.members)

    def _was_killed_with(self, call: Call) -> bool:
        """Whether it was in its body when a worker was killed that is not the victim."""
        return any(self.lane.killed_at(it["pid"]) for it in self.lane.journal.events("start", id=call.id))

    def _was_published(self, end: Event) -> bool:
        """Whether the dead publisher had sent its message."""
        sent = self.lane.record.events("request", role="publisher", pid=end["pid"], moment="after")
        return any(event["label"] == "publish" for event in sent)

    def _was_lost_with_child(self, call: Call) -> bool:
        result = self.lane.lab.app.AsyncResult(call.id)
        return result.state == "FAILURE" and WorkerLostError.__name__ in repr(result.result)

    def _had_not_counted(self, end: Event) -> bool:
        """Whether a child had stored its result, and not published the body of its chord yet.

        Celery sees then that the task has succeeded, and neither runs it again nor counts it.
        """
        labels = [
            event["label"] for event in self.lane.record.events("request", pid=end["pid"], moment="after")
        ]
        while labels and labels[-1] in _OF_CHORD:
            labels.pop()
        return end["how"] == "child" and labels[-1:] == [_RESULT]

    def _has_survived(self, member: str) -> bool:
        """Whether a member of a chord has ended in a process that lives."""
        ends = self.lane.journal.events("end", id=member)
        return any(_is_last(event) and not self.lane.is_gone(event["pid"]) for event in ends)

    # What must not be

    def faults(self) -> Iterator[str]:
        yield from self._repetitions()
        yield from self._overlaps()
        yield from self._disorder()
        yield from self._broken_chords()
        yield from (f"a lease of {key} outlives its dead worker" for key in self.lane.renewed)

    def _repetitions(self) -> Iterator[str]:
        runs: defaultdict[tuple[str, str], list[Event]] = defaultdict(list)
        for event in self.lane.journal.events("end"):
            runs[event["id"], event["publish"]].append(event)
        for ends in runs.values():
            gone = [event for event in ends if self.lane.is_gone(event["pid"])]
            most = 2 if gone and self._may_run_again(gone[0]) else 1
            in_one = max(len(ends) - len(gone), 0 if self._is_paused else len(gone))
            if (len(ends) > most or in_one > 1) and not (len(ends) == 2 and self._is_second_copy(ends[0])):
                yield f"{ends[0]['tag']} (attempt {ends[0]['attempt']}) ran {len(ends)} times"
        ends = self.lane.journal.events("end", task="once", attempt=1)
        if len({event["id"] for event in ends if event["tag"] in ("a", "duplicate")}) > 1:
            yield "a duplicate ran"

    @property
    def _is_paused(self) -> bool:
        return bool(self.lane.end and self.lane.end["how"] == "pause")

    def _is_second_copy(self, end: Event) -> bool:
        """Whether the dead worker's copy of a window's message may have come during its run."""
        return end["task"] == "late" and (self._is_paused or end["id"] in self.lane.at_broker)

    def _may_run_again(self, first: Event) -> bool:
        """Whether the broker delivers it again: its process ended before it was acknowledged."""
        end = self.lane.end
        if not end:
            return False
        since = first["at"] if self.is_late else 0
        message = {"acknowledges": first["id"], "publish": first["publish"], "promoted": first["promoted"]}
        sent = self.lane.record.events("request", moment="after", **message)
        return not any(since < event["at"] <= end["at"] for event in sent)

    def _broken_chords(self) -> Iterator[str]:
        for call in self.lane.calls:
            gathered = self.lane.journal.events("gathered", id=call.id)
            if len(gathered) > 1 and not self._may_gather_again(call, gathered):
                yield f"the body of the chord ran {len(gathered)} times"
            if call.tries == 1:  # else its member may be a duplicate of the first try's
                yield from (f"a chord gathered {it['tags']}" for it in gathered if it["tags"] != MEMBERS)

    def _may_gather_again(self, call: Call, gathered: list[Event]) -> bool:
        """Whether a process ended that may have run or published it, and not told the others yet."""
        end = self.lane.end
        parts = [event for id in call.members for event in self.lane.journal.events("end", id=id)]
        counts_again = any(self.lane.is_gone(part["pid"]) and self._may_run_again(part) for part in parts)
        is_gone = any(self.lane.is_gone(event["pid"]) for event in gathered)
        is_of_child = bool(end and not self._is_paused and end["role"].startswith("child"))
        return counts_again or is_gone or is_of_child

    def _disorder(self) -> Iterator[str]:
        """Yield the tasks that began before an earlier call of their key.

        With early acknowledgement a task that the dead worker had fetched goes to the end of the line. One
        whose process stood still between its grant and its body begins when that goes on.
        """
        again = set() if self.is_late else self.lane.at_broker | self.lane.popped
        tags = [call.tag for call in self.lane.calls if call.name == "ordered" and call.id not in again]
        began = [
            (tag, event["at"])
            for tag in tags
            for event in self.lane.journal.events("start", tag=tag)[:1]
            if tag != "probe" and not self._has_stood_still(event)
        ]
        for (earlier, since), (tag, at) in combinations(began, 2):
            if at < since:
                yield f"{tag} began before {earlier}"

    def _overlaps(self) -> Iterator[str]:
        """Yield bodies of one key that were open at one time, unless one of them had stood still."""
        for (_, until, first), (since, _, second) in combinations(
            sorted(self._spells(), key=itemgetter(0)), 2
        ):
            is_overlap = since < until and first["key"] == second["key"]
            if is_overlap and not (self._has_stood_still(first) or self._has_stood_still(second)):
                yield f"{first['tag']} and {second['tag']} were in their bodies at one time"

    def _has_stood_still(self, body: Event) -> bool:
        """Whether its process stood still for longer than its lease lives: in the body, or before it.

        A body that stands still is told. One that was granted its lease before may be too short to notice.
        """
        end = self.lane.end
        if not end or not self._is_paused or not self.lane.is_gone(body["pid"]):
            return False
        if self.lane.journal.events("lost", id=body["id"]):
            return True
        asked = [event["at"] for event in self.lane.record.events("request", pid=body["pid"])]
        return body["at"] > end["at"] and not any(end["at"] < at < body["at"] for at in asked)

    def _spells(self) -> list[tuple[int, int, Event]]:
        """Return the bodies, each from its start to its end or the death of its process."""
        spells = []
        for spell in self.lane.journal.spells():
            until = spell.until
            if not self.lane.journal.events("end", pid=spell.event["pid"], id=spell.event["id"]):
                until = self._died_at(spell.event["pid"]) or until
            spells.append((spell.since, until, spell.event))
        return spells

    def _died_at(self, pid: int) -> int | None:
        """Return the instant at which a process was killed."""
        if killed_at := self.lane.killed_at(pid):
            return killed_at
        end = self.lane.end
        return int(end["at"]) if end and not self._is_paused and self.lane.is_gone(pid) else None


def _is_last(end: Event) -> bool:
    """Whether no retry follows a body that has ended."""
    return bool(end["attempt"] == (end["task"] == "once"))
