"""The verdict of a case, from the journal of the bodies and the record of the requests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.worker.crashes.lane import Call, Lane
from tests.worker.journal import Event

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

    def is_excused(self, call: Call) -> bool:
        """Whether plain Celery would have lost this task, too, and the store had not parked it."""
        end = self.lane.end
        if not self.is_late and self._was_killed_with(call):
            return True
        if not end or end["how"] == "pause":
            return False
        if end["role"] == "publisher":
            # It may have died between the key and the message, which are two requests.
            return call.outcome == "skipped" and not self.lane.is_one_redis
        if call.name == "chord" and (self.lane.popped or self._had_not_counted(end)):
            return True
        if not self.is_late and end["how"] == "child":
            return bool(self.lane.lab.app.AsyncResult(call.id).state == "FAILURE")
        return call.id not in self.lane.in_line and (call.id in self.lane.popped or self._had_begun(call))

    def has_ended(self, call: Call) -> bool:
        if call.name == "chord":
            return bool(self.lane.journal.events("gathered", tag=call.tag))
        ends = self.lane.journal.events("end", id=call.id)
        return any(event["attempt"] == (call.name == "once") for event in ends)

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

    def _was_killed_with(self, call: Call) -> bool:
        """Whether it was in its body when a worker was killed that is not the victim."""
        killed = {pid for event in self.lane.record.events("killed") for pid in event["pids"]}
        return any(event["pid"] in killed for event in self.lane.journal.events("start", id=call.id))

    def _had_begun(self, call: Call) -> bool:
        """Whether early acknowledgement loses it: the victim had begun to acknowledge it, or to run it.

        The processes of a worker die one by one: one may have got further than to its point.
        """
        if self.is_late:
            return False
        requests = self.lane.record.events("request")
        begun = {event.get("acknowledges") for event in requests}
        of_children = [event for event in requests if event["role"].startswith("child")]
        begun |= {event.get("claims") for event in of_children}
        begun |= {event["id"] for event in self.lane.journal.events("start")}
        has_asked = any(event["label"].startswith("sql") for event in of_children)
        is_any = call.name == "chord" and bool(begun - {None})
        return is_any or call.id in begun or has_asked

    def _acks(self, since: int, until: int, **message: Any) -> list[Event]:
        """Return the requests that have acknowledged a message between two instants."""
        sent = self.lane.record.events("request", moment="after", **message)
        return [event for event in sent if since < event["at"] <= until]

    # What must not be

    def faults(self) -> Iterator[str]:
        yield from self._repetitions()
        yield from self._overlaps()
        yield from (f"a lease of {key} outlives its dead worker" for key in self.lane.renewed)

    def _repetitions(self) -> Iterator[str]:
        runs: defaultdict[tuple[str, str], list[Event]] = defaultdict(list)
        for event in self.lane.journal.events("end"):
            runs[event["id"], event["publish"]].append(event)
        for ends in runs.values():
            first, *others = ends
            if others and not (len(others) == 1 and self._may_run_again(first)):
                yield f"{first['tag']} (attempt {first['attempt']}) ran {len(ends)} times"
        for call in self.lane.calls:
            gathered = self.lane.journal.events("gathered", id=call.id)
            if len(gathered) > 1 and not (self._may_run_again(gathered[0]) or self._may_count_again()):
                yield f"the body of the chord ran {len(gathered)} times"

    def _died_at(self, pid: int) -> int | None:
        """The instant at which a process died before it left its body."""
        for event in self.lane.record.events("killed"):
            if pid in event["pids"]:
                return int(event["at"])
        end = self.lane.end
        return int(end["at"]) if end and end["how"] != "pause" else None

    def _may_run_again(self, first: Event) -> bool:
        """Whether the broker delivers it again: its process ended before it was acknowledged."""
        end = self.lane.end
        if not end or end["role"] == "publisher":
            return False
        since = first["at"] if self.is_late else 0
        return not self._acks(
            since,
            end["at"],
            acknowledges=first["id"],
            publish=first.get("publish"),
            promoted=first.get("promoted"),
        )

    def _may_count_again(self) -> bool:
        """Whether a child was killed that may have published the body, and not told the others yet."""
        end = self.lane.end
        return bool(end and end["how"] != "pause" and end["role"].startswith("child"))

    def _overlaps(self) -> Iterator[str]:
        """Yield bodies of one key that were open at one time. A paused one is told, so it may be."""
        spells = sorted(self._spells(), key=lambda spell: spell[0])
        lost = {event["id"] for event in self.lane.journal.events("lost")}
        for number, (_, until, first) in enumerate(spells):
            for since, _, second in spells[number + 1 :]:
                if since < until and first["key"] == second["key"]:
                    if self._was_paused(first, until) and first["id"] in lost:
                        continue
                    yield f"{first['tag']} and {second['tag']} were in their bodies at one time"

    def _was_paused(self, first: Event, until: int) -> bool:
        end = self.lane.end
        return bool(end and end["how"] == "pause" and end["at"] < until)

    def _spells(self) -> list[tuple[int, int, Event]]:
        spells = []
        for spell in self.lane.journal.spells():
            until = spell.until
            if not self.lane.journal.events("end", pid=spell.event["pid"], id=spell.event["id"]):
                until = self._died_at(spell.event["pid"]) or until
            spells.append((spell.since, until, spell.event))
        return spells
