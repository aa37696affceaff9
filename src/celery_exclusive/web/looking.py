"""The pages that change nothing: problems, all keys, one key with its line, and the answer to why."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from celery_exclusive.display import duration, escaped, unescaped
from celery_exclusive.errors import OptionError, UnreadableKey
from celery_exclusive.operate import answers
from celery_exclusive.operate.answers import Answer
from celery_exclusive.operate.finding import keys_that_begin
from celery_exclusive.operate.problems import overview
from celery_exclusive.operate.states import KeyState, key_state, key_states, line_page, page_of
from celery_exclusive.operate.why import why as answer_to
from celery_exclusive.operate.why import why_words
from celery_exclusive.stores.base import Cursor
from celery_exclusive.web.exchange import Page, Refused, Request

if TYPE_CHECKING:
    from celery_exclusive.services import Services
    from celery_exclusive.task import WaitingTask

ROWS: Final = 50
"""The most keys, or waiting tasks, of a table."""
_SHORTEST_LOOK: Final = 2
"""The seconds that have to pass before the pace of a line is told."""
_ORDERS: Final[dict[str, Callable[[KeyState], float]]] = {
    "waiting": lambda state: -state.all_waiting,
    "age": lambda state: -max(state.held or 0, state.oldest_wait or 0),
}


def problems(services: Services, request: Request) -> Page:  # noqa: ARG001 - as all pages
    """Show the keys that a person should look at, the worst first."""
    if not services.store.capabilities.listing:
        return Page("unlisted.html", "Problems")
    found = overview(services.store)
    states = {kind: key_states(services, names[:ROWS]) for kind, names in found.problems.items()}
    values = {"found": found, "states": states, "rows": ROWS}
    return Page("problems.html", "Problems", values, refreshes=True)


def keys(services: Services, request: Request) -> Page:
    """Show all keys, or those with a text in their name or arguments, page by page."""
    if not services.store.capabilities.listing:
        return Page("unlisted.html", "All keys")
    text, order = request.query.get("q", ""), request.query.get("sort", "")
    number = _number(request.query.get("page", "1"))
    rows = slice((number - 1) * ROWS, number * ROWS)
    names = sorted(services.store.scan())
    if text or order:
        found = [state for state in key_states(services, names) if _has(state, text)]
        found.sort(key=_ORDERS.get(order, lambda _: 0))
        count, shown = len(found), found[rows]
    else:
        count, shown = len(names), list(key_states(services, names[rows]))
    values = {
        "text": text,
        "order": order,
        "states": shown,
        "first": rows.start + 1,
        "count": count,
        "number": number,
        "last": max((count - 1) // ROWS + 1, 1),
    }
    return Page("keys.html", "All keys", values, refreshes=True)


def key(services: Services, request: Request) -> Page:
    state = key_state(services, named_key(request.query))
    values = {
        "state": state,
        "answer": answer_of(services, state),
        "actions": [*_actions(services, request, state)],
        "may_drop": "drop" in request.access.rights,
        "line": _line(services, request, state) if state.all_waiting else None,
    }
    return Page("key.html", escaped(state.key), values, refreshes=True)


def why(services: Services, request: Request) -> Page:
    """Answer why a task does not run, or a key does not go on."""
    subject = request.query.get("q", "").strip()
    if not subject:
        raise Refused(400, "Name the id of a task, a key, or a task with its arguments.")
    values: dict[str, Any] = {"subject": subject, "answer": None, "estimate": "", "damaged": ""}
    status, seen = 200, ""
    try:
        values["answer"] = answer = _answer(services, subject)
        status = 503 if answer.reason in ("store_down", "backend_down") else 200
        if answer.reason == "in_line" and answer.waiting:
            seen = f"{answer.waiting.place}.{answer.waiting.age:.0f}"
            values["estimate"] = _estimate(answer.waiting, request.query.get("seen", seen))
    except UnreadableKey as error:
        values |= {"error": error, "damaged": error.key}
    except OptionError as error:
        listed = services.store.capabilities.listing
        names = keys_that_begin(services.store, subject)[:ROWS] if listed else []
        values |= {"error": error, "states": list(key_states(services, names)), "is_listed": listed}
    return Page("why.html", subject, values, status, refreshes=True, seen=seen)


def answer_of(services: Services, state: KeyState) -> Answer:
    if state.problem:
        text = str(UnreadableKey(state.key, state.problem, services.store.url))
        return Answer(None, text, is_trouble=True)
    answer = answers.of_key(state)
    return answer if answer.is_trouble else replace(answer, next_step="")


def named_key(values: Mapping[str, str]) -> str:
    if not (name := values.get("key")):
        raise Refused(400, "The address names no key.")
    return unescaped(name)


def _estimate(task: WaitingTask, seen: str) -> str:
    """Return when a task may begin, by what has left the line before it since its place was `seen`."""
    found = re.fullmatch(r"([0-9]{1,9})\.([0-9]{1,9})", seen)
    if found is None:
        raise Refused(400, "The address has a place that no line has.")
    left, passed = int(found[1]) - task.place, task.age - int(found[2])
    if passed < _SHORTEST_LOOK:
        return "Refresh, to see how fast its line moves."
    if left <= 0:
        return f"It has not come nearer for {duration(passed)}."
    about = duration(task.place * passed / left)
    return f"{left:,} left the line before it in {duration(passed)}: at this pace it begins in some {about}."


def _answer(services: Services, subject: str) -> Answer:
    """Answer for a subject as the command takes it: the words of a shell, if the first one is a task."""
    name, *words = _words(subject)
    if not words or name not in services.app.tasks:
        return answer_to(services, subject)
    try:
        return why_words(services, name, words)
    except TypeError as error:  # the arguments do not fit
        raise OptionError(str(error)) from error


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quote that does not end
        return [text]


def _actions(services: Services, request: Request, state: KeyState) -> Iterator[str]:
    """Yield the pages of actions on a key that the visitor may do."""
    rights, room = request.access.rights, state.room
    if "release" in rights and (state.holders or state.problem):
        yield "release"
    if "force" in rights and state.key[:1] == "x" and services.store.capabilities.line and not state.problem:
        yield from ("pause", "limit", "hold")
        yield from ["reset"] * (bool(room.override) or any(part.room.override for part in state.parts))
        is_set = room.override or room.opens_in is not None or any(part.is_set for part in state.parts)
        yield from ["resume"] * bool(is_set)


def _line(services: Services, request: Request, state: KeyState) -> dict[str, Any]:
    """Return a page of the line, and the links to the first and the next one."""
    query, name = request.query, escaped(state.key)
    first, after = _number(query.get("from", "1")), _cursor(query.get("after"))
    if id := query.get("task"):
        after, first = page_of(services, state.key, id)
    tasks, following = line_page(services, state.key, after, first, ROWS)
    links = {"First page": {"key": name}} if after else {}
    if following:
        place = f"{following.state}.{following.place}.{escaped(following.id)}"
        links["Next page"] = {"key": name, "after": place, "from": f"{first + len(tasks)}"}
    return {"tasks": tasks, "first": first, "links": links}


def _has(state: KeyState, text: str) -> bool:
    return state.state != "free" and (text in escaped(state.key) or text in (state.args or ""))


def _number(text: str) -> int:
    if not re.fullmatch("[1-9][0-9]{0,8}", text):
        raise Refused(400, "The address has a page that is no number.")
    return int(text)


def _cursor(text: str | None) -> Cursor | None:
    if text is None:
        return None
    found = re.fullmatch(r"(waiting|aside|shut[0-9a-f]{12,40})\.(-?[0-9]{1,18})\.(.{1,2000})", text)
    if found is None:
        raise Refused(400, "The address has a place that no line has.")
    return Cursor(found[1], int(found[2]), unescaped(found[3]))
