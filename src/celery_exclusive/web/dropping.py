"""The page that drops a waiting task. A GET shows what that does, and a POST with its form does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from celery_exclusive.display import escaped
from celery_exclusive.operate.dropping import Dropper, Found
from celery_exclusive.web.exchange import Page, Refused, Request
from celery_exclusive.web.looking import named_key
from celery_exclusive.web.releasing import action, reason_of

if TYPE_CHECKING:
    from celery_exclusive.services import Services

_EFFECT: Final = (
    "It leaves the line and ends as REVOKED: its result, its chord, and its unique key end as of any revoked "
    "task, and its chain stops. Its message is discarded: `locks drop --to FILE` saves messages, so that "
    "`locks put` can bring them back."
)


def drop(services: Services, request: Request) -> Page:
    given = request.query if request.form is None else request.form
    key, id = named_key(given), given.get("id", "")
    found = Found.search(services, [key], ids={id})
    if found.problems:
        raise Refused(409, found.problems[0])
    if not found.count:
        raise Refused(
            404 if request.form is None else 409, f"Task {id} does not wait for {escaped(key)} any more."
        )
    if request.form is None:
        return action("Drop", key, "Drop this task", {"id": id}, id=id, text=_EFFECT, wants_reason=True)
    if not (reason := reason_of(given)):
        raise Refused(400, "A drop needs a reason.")
    dropper = Dropper(services, reason=reason)
    try:
        for _, places in found.places():
            dropper.drop(key, places)
    finally:
        dropper.record(request.access.user)
    if not dropper.dropped:
        raise Refused(409, f"Task {id} has left the line of {escaped(key)} before.")
    said = f"Dropped {id}, which ends as REVOKED."
    request.access.note(key, f"{said} Reason: {reason}")
    return Page("done.html", "Dropped", {"key": key, "texts": [said, *dropper.problems]})
