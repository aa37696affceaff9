"""The verdict on a history: whether each key's calls have an order, and how far the best one went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from celery_exclusive.core.operations import AcquireAlone, Applied, Enqueue, Granted
from tests.concurrent.calls import Call, shown
from tests.concurrent.search import Found, Search

SHOWN = 15
SECONDS = 60


@dataclass
class Verdict:
    """Figures, and under `faults` a text for each key whose calls have no order.

    `states`: how many states the searches have seen. `undecided`: the keys whose search was given up.
    """

    calls: int = 0
    unanswered: int = 0
    states: int = 0
    undecided: int = 0
    faults: list[str] = field(default_factory=list)


def judge(searches: Mapping[str, Search], seconds: float = SECONDS) -> Verdict:
    """Search an order for each key, for so many seconds."""
    verdict = Verdict()
    for key, search in searches.items():
        found = search.run(seconds)
        verdict.calls += len(search.calls)
        verdict.unanswered += sum(not call.is_answered for call in search.calls)
        verdict.states += found.states
        verdict.undecided += found.is_given_up
        if not found.is_whole and not found.is_given_up:
            verdict.faults.append("\n".join(_explained(key, search, found)))
        verdict.faults += [
            f"{key!r}: pushed {call.sent} times: {_line(call, call.begin)}"
            for call in search.calls
            if call.sent is not None and call.sent not in _pushes(call)
        ]
    return verdict


def _pushes(call: Call) -> tuple[int, ...]:
    """Return how often a call may have pushed its message: once, if its lease or its offer is new."""
    operation, answer = call.operation, getattr(call.reply, "answer", None)
    if not (isinstance(operation, Enqueue) or (isinstance(operation, AcquireAlone) and operation.sends)):
        return (0,)
    if isinstance(answer, Granted):  # an old lease has an older fence
        return (int(answer.fence >= call.since),)
    is_known = call.is_answered and not call.has_connected and answer != Applied(True)
    return (0,) if is_known else (0, 1)


def _explained(key: str, search: Search, found: Found) -> Iterator[str]:
    """Tell a person how far the best order went, and why no call may come next."""
    start = min(call.begin for call in search.calls)
    last = found.order[-1] if found.order else None
    state, latest = (last.after, last.now) if last else (search.first, 0)
    yield f"{key!r}: no order of its {len(search.calls)} calls gives the answers that they have."
    yield f"The best one does {len(found.order)} of them. The last ones are:"
    yield from (_line(it.call, start) for it in found.order[-SHOWN:])
    yield f"The state is then: {state}"
    yield "No call that may come next has the answer of step:"
    for call in found.next:
        yield _line(call, start)
        if call.is_answered and not call.is_loss:
            now = call.nows[-1] if call.nows else max(call.since, latest + 2)
            reply, _ = search.specification.do(state, call.operation, now)
            yield f"{'':32}step answers {shown(reply)}"


def _line(call: Call, start: int) -> str:
    end = f"{'?':>10}" if call.end is None else f"{(call.end - start) / 1000:10.3f}"
    said = f" -> {shown(call.reply)}" if call.is_answered else ""
    return f"{(call.begin - start) / 1000:10.3f} {end} ms  {call.client:2}  {shown(call.operation)}{said}"
