"""The pages that change what a key lets start: a GET shows what one does, a POST with its form does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from celery_exclusive.operate import limiting
from celery_exclusive.operate.states import key_state, part_state
from celery_exclusive.options.key_text import fitted
from celery_exclusive.web.exchange import Page, Refused, Request
from celery_exclusive.web.looking import named_key
from celery_exclusive.web.releasing import action, reason_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_exclusive.services import Services


class Input(NamedTuple):
    label: str
    is_required: bool = True
    longest: int = 20


_MAYBE: Final = Input("For how long, as 30m or 2h. Empty: until an operator ends it", is_required=False)
_PART: Final = Input("Only this part, as a tenant. Empty: the whole key", is_required=False, longest=1000)
CHANGES: Final[dict[str, tuple[str, dict[str, Input]]]] = {
    "pause": (
        "No task of the key starts, in any worker. What runs, runs on.",
        {"part": _PART, "lasts": _MAYBE},
    ),
    "limit": (
        "So many tasks of the key run at once, in all workers, whatever the code says. What runs, runs on.",
        {"number": Input("Tasks at once"), "part": _PART, "lasts": _MAYBE},
    ),
    "hold": (
        "No task of the key starts for this time. An earlier hold that ends later stays.",
        {"lasts": Input("For how long, as 30s or 5m"), "part": _PART},
    ),
    "reset": ("The limit of the code counts again. A hold stays.", {"part": _PART}),
    "resume": ("A pause, a limit that was set, and a hold end.", {"part": _PART}),
}
"""What each of the pages does, and the fields of its form."""


def change(services: Services, request: Request) -> Page:
    """Change what a key lets start, as the name of the page says."""
    given = request.query if request.form is None else request.form
    key, (text, inputs) = named_key(given), CHANGES[request.page]
    limiting.refuse_unlimited(services, key)
    title, wants_reason = request.page.capitalize(), request.page not in ("reset", "resume")
    if request.form is None:
        if request.page == "pause" and (ending := limiting.ending(services, key, None)):
            text = f"{text} {ending}."
        return action(title, key, title, {}, text=text, inputs=inputs, wants_reason=wants_reason)
    if wants_reason and not reason_of(given):
        raise Refused(400, f"A {request.page} needs a reason.")
    _change(services, request.page, key, given, request.access.user)
    state, of_part = key_state(services, key), part_of(given)
    room = part_state(services, state, of_part).room if of_part else state.room
    said = [f"Part {of_part}."] * bool(of_part) + ["The limit of the code counts."] * (room.override is None)
    said += room.lines()
    request.access.note(key, f"{title}: {'; '.join(said)}")
    return Page("done.html", title, {"key": key, "texts": said})


def part_of(given: Mapping[str, str]) -> str:
    return fitted(given.get("part", ""))


def _change(services: Services, page: str, key: str, given: Mapping[str, str], by: str) -> None:
    reason, time, part = reason_of(given), given.get("lasts", "").strip(), part_of(given)
    if page == "hold":
        limiting.hold(services, key, limiting.time_of(time), part=part, reason=reason, by=by)
    elif page in ("pause", "limit"):
        limit = limiting.limit_of(given.get("number", "").strip()) if page == "limit" else 0
        lasts = limiting.time_of(time) if time else None
        limiting.set_limit(services, key, limit, part=part, lasts=lasts, reason=reason, by=by)
    else:
        limiting.set_limit(services, key, None, part=part, by=by)
        if page == "resume":
            limiting.hold(services, key, 0, part=part, by=by)
