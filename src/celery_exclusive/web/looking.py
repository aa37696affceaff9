"""The pages that change nothing: problems, all keys, one key with its line, and the answer to why."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from celery_exclusive.display import duration, escaped, unescaped
from celery_exclusive.errors import OptionError, UnreadableKey
from celery_exclusive.operate.finding import keys_that_begin
from celery_exclusive.operate.problems import Problem, overview
from celery_exclusive.operate.states import KeyState, key_state, key_states, line_page, page_of
from celery_exclusive.operate.why import why as answer_to
from celery_exclusive.operate.why import why_words
from celery_exclusive.stores.base import Cursor
from celery_exclusive.web.exchange import Refused, Request, Response
from celery_exclusive.web.layout import page
from celery_exclusive.web.markup import EMPTY, Html, button, facts, fill, join, link
from celery_exclusive.web.parts import (
    answer_text,
    holder_table,
    key_facts,
    key_link,
    key_table,
    line_table,
    state_text,
)

if TYPE_CHECKING:
    from celery_exclusive.operate.answers import Answer
    from celery_exclusive.services import Services
    from celery_exclusive.task import WaitingTask

ROWS: Final = 50
"""The most keys, or waiting tasks, of a table."""
_SHORTEST_LOOK: Final = 2
"""The seconds that have to pass before the pace of a line is told."""
_PROBLEMS: Final[dict[Problem, str]] = {
    "damaged": "Damaged",
    "dead": "Dead holders",
    "aside": "Aside",
    "no_worker": "No worker takes them",
    "long_wait": "Long waits",
}
_ADVICE: Final[dict[Problem, str]] = {
    "damaged": "Their data cannot be read, so no task can acquire them. A release by force deletes the data, "
    "and the tasks that wait.",
    "dead": "Their workers have died or are cut off. Any other worker recovers such a run within seconds: is "
    "there one?",
    "aside": "No worker accepts the waiting tasks. Is there one for their queue that knows the tasks?",
    "no_worker": "No task holds the key, and tasks have waited for a minute or longer. "
    "Is there a worker for their queue, and has it a free slot?",
    "long_wait": "The first in line has waited for ten minutes or longer.",
}
_ORDERS: Final[dict[str, Callable[[KeyState], float]]] = {
    "waiting": lambda state: -state.all_waiting,
    "age": lambda state: -max(state.held or 0, state.oldest_wait or 0),
}
_ORDER_NAMES: Final = {"": "by key", "waiting": "most waiting", "age": "longest"}
_FILTER: Final = """<form class="filter" action="keys" method="get" role="search" aria-label="Filter">
<label for="filter">With this text</label>
<input id="filter" name="q" type="search" value="{text}" autocomplete="off" spellcheck="false"
 maxlength="1000">
<input type="hidden" name="sort" value="{order}">
<button>Filter</button>
</form>
<p class="orders">Sorted: {orders}</p>"""
_PART: Final = """<p>There are too many keys to read the state of each. The number of holders is an estimate,
and keys that are not listed may have problems, too.</p>"""
_LINE: Final = """<section id="line"><h2>Line</h2>{}
<nav class="pages" aria-label="Pages of the line">{}</nav></section>"""


def problems(services: Services, request: Request) -> Response:
    """Show the keys that a person should look at, the worst first."""
    if refusal := _cannot_list(services, request, "Problems"):
        return refusal
    found = overview(services.store)
    numbers = {"Keys": found.keys, "Holders": found.holders, "Waiting tasks": found.waiting}
    main = fill(
        "<h1>Problems</h1>{}{}{}",
        facts({name: f"{number:,}" for name, number in numbers.items()}),
        Html("" if found.ratio == 1 else _PART),
        join(_problem(services, kind, found.problems[kind]) for kind in _PROBLEMS if kind in found.problems)
        or Html('<p class="answer good">No key needs a person.</p>'),
    )
    return page(services, request, "Problems", main, refreshes=True)


def keys(services: Services, request: Request) -> Response:
    """Show all keys, or those with a text in their name or arguments, page by page."""
    if refusal := _cannot_list(services, request, "All keys"):
        return refusal
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
    orders = (
        fill("<strong>{}</strong>", words) if name == order else link("keys", words, q=text, sort=name)
        for name, words in _ORDER_NAMES.items()
    )
    main = fill(
        "<h1>All keys</h1>{}{}{}",
        fill(_FILTER, text=text, order=order, orders=join(orders, " · ")),
        key_table(_range(rows.start, len(shown), count), shown) if shown else Html("<p>No keys.</p>"),
        _pages(text, order, number, count),
    )
    return page(services, request, "All keys", main, refreshes=True)


def key(services: Services, request: Request) -> Response:
    """Show one key: what holds it, and its line."""
    state = key_state(services, named_key(request.query))
    parts = [state_text(state, services.store.url), key_facts(state)]
    if "release" in request.access.rights and (state.holders or state.problem):
        parts.append(fill("<p>{}</p>", button("release", "Release…", key=escaped(state.key))))
    if state.holders:
        parts.append(fill("<section><h2>Holders</h2>{}</section>", holder_table(state)))
    if state.all_waiting:
        parts.append(_line(services, request, state))
    main = fill('<h1 class="key">{}</h1>{}', escaped(state.key), join(parts))
    return page(services, request, escaped(state.key), main, refreshes=True)


def why(services: Services, request: Request) -> Response:
    """Answer why a task does not run, or a key does not go on."""
    subject = request.query.get("q", "").strip()
    if not subject:
        raise Refused(400, "Name the id of a task, a key, or a task with its arguments.")
    status, seen = 200, ""
    try:
        answer = _answer(services, subject)
        status = 503 if answer.reason in ("store_down", "backend_down") else 200
        about = fill("<p>{}</p>", key_link(answer.key)) if answer.key else EMPTY
        if answer.key and answer.waiting:
            name, id = escaped(answer.key.key), answer.waiting.task_id
            about = fill("{}<p>{}</p>", about, link("key", "Show its place in the line", key=name, task=id))
        if answer.reason == "in_line" and answer.waiting:
            seen = f"{answer.waiting.place}.{answer.waiting.age:.0f}"
            about = fill("<p>{}</p>{}", _estimate(answer.waiting, request.query.get("seen", seen)), about)
        if answer.reason == "not_ours":  # it may be an argument, such as a tenant
            about = fill(
                "<p>{}</p>", link("keys", "Look for this text in the keys and their arguments", q=subject)
            )
        main = join([answer_text(answer), about])
    except UnreadableKey as error:
        damaged = link("key", "Show the key", key=escaped(error.key))
        main = fill('<p class="answer bad">{}</p><p>{}</p>', error, damaged)
    except OptionError as error:
        main = fill('<p class="answer">{}</p>{}', error, _its_keys(services, subject))
    main = fill("<h1>{}</h1>{}", subject, main)
    return page(services, request, subject, main, status, refreshes=True, seen=seen)


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


def named_key(values: Mapping[str, str]) -> str:
    """Return the key that a query or a form names."""
    if not (name := values.get("key")):
        raise Refused(400, "The address names no key.")
    return unescaped(name)


def _cannot_list(services: Services, request: Request, title: str) -> Response | None:
    if services.store.capabilities.listing:
        return None
    text = "This store cannot list its keys. Ask for a key or a task above."
    return page(services, request, title, fill('<h1>{}</h1><p class="answer">{}</p>', title, text))


def _problem(services: Services, kind: Problem, names: list[str]) -> Html:
    title = _PROBLEMS[kind]
    more = fill("<p>and {} more</p>", f"{len(names) - ROWS:,}") if len(names) > ROWS else EMPTY
    return fill(
        '<section><h2>{} <span class="count">{}</span></h2><p>{}</p>{}{}</section>',
        title,
        f"{len(names):,}",
        _ADVICE[kind],
        key_table(title, key_states(services, names[:ROWS]), is_named=True),
        more,
    )


def _line(services: Services, request: Request, state: KeyState) -> Html:
    query, name = request.query, escaped(state.key)
    first, after = _number(query.get("from", "1")), _cursor(query.get("after"))
    if id := query.get("task"):
        after, first = page_of(services, state.key, id)
    tasks, following = line_page(services, state.key, after, first, ROWS)
    links = [link("key", "First page", key=name)] if after else []
    if following:
        place = f"{int(following.is_aside)}.{following.place}.{escaped(following.id)}"
        links.append(link("key", "Next page", key=name, after=place, **{"from": first + len(tasks)}))
    caption = _range(first - 1, len(tasks), state.all_waiting)
    may_drop = "drop" in request.access.rights
    return fill(_LINE, line_table(caption, state.key, tasks, may_drop=may_drop), join(links, " "))


def _its_keys(services: Services, subject: str) -> Html:
    if not services.store.capabilities.listing:
        return EMPTY
    names = keys_that_begin(services.store, subject)[:ROWS]
    table = key_table("Keys that it may mean", key_states(services, names)) if names else EMPTY
    return fill("{}<p>{}</p>", table, link("keys", "All keys with this text", q=subject))


def _has(state: KeyState, text: str) -> bool:
    return state.state != "free" and (text in escaped(state.key) or text in (state.args or ""))


def _pages(text: str, order: str, number: int, count: int) -> Html:
    last = max((count - 1) // ROWS + 1, 1)
    others = {"First": 1, "Previous": number - 1, "Next": number + 1, "Last": last}
    links = (
        link("keys", name, q=text, sort=order, page=other)
        for name, other in others.items()
        if 1 <= other <= last and other != number
    )
    return fill('<nav class="pages" aria-label="Pages of the table">{}</nav>', join(links, " "))


def _range(before: int, shown: int, count: int) -> str:
    return f"{before + 1:,} to {before + shown:,} of {count:,}"


def _number(text: str) -> int:
    if not re.fullmatch("[1-9][0-9]{0,8}", text):
        raise Refused(400, "The address has a page that is no number.")
    return int(text)


def _cursor(text: str | None) -> Cursor | None:
    if text is None:
        return None
    found = re.fullmatch(r"([01])\.(-?[0-9]{1,18})\.(.{1,2000})", text)
    if found is None:
        raise Refused(400, "The address has a place that no line has.")
    return Cursor(found[1] == "1", int(found[2]), unescaped(found[3]))
