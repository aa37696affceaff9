"""The page that releases a key. A GET shows what that does, and a POST with the form of the page does it."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from celery_exclusive.core.claim import task_id
from celery_exclusive.core.records import SECOND
from celery_exclusive.display import duration, escaped
from celery_exclusive.leases import operator_release
from celery_exclusive.operate.states import KeyState, key_state
from celery_exclusive.web.exchange import Page, Refused, Request
from celery_exclusive.web.looking import answer_of, named_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from celery_exclusive.leases.operator_release import Released
    from celery_exclusive.services import Services

_LONGEST_REASON: Final = 200
_NOTHING_MORE: Final[dict[str, Any]] = {"answer": None, "warning": "", "id": "", "state": None, "inputs": {}}
_UNHELD: Final = (
    "No body runs under it, so it is released at once. The message of a task that has not begun is not "
    "deleted: the task runs all the same, unless its message is lost."
)
_HELD: Final = (
    "A task holds it. It is released when the task ends, or, if its worker is dead, when the lease has "
    "expired. By force the holder loses it at once: a body that still runs goes on, beside the next one, "
    "unless it calls lease.check(), which raises LeaseLost."
)
_DAMAGED: Final = "By force its data are deleted, with its leases and all tasks that wait for it."


def release(services: Services, request: Request) -> Page:
    """Release a key. One that is held asks twice, and wants a reason."""
    given = request.form
    state = key_state(services, named_key(request.query if given is None else given))
    if not (state.holders or state.problem):
        raise Refused(404 if given is None else 409, f"No task holds {escaped(state.key)}.")
    forced = _needs_force(state)
    if forced and "force" not in request.access.rights:
        raise Refused(403, f"{escaped(state.key)} is held, and you have no right to release it by force.")
    if given is None:
        return _ask(services, state, forced=forced)
    if given.get("seen") != _seen(state):
        raise Refused(409, f"{escaped(state.key)} has other holders by now. Nothing was released.")
    reason = reason_of(given)
    if forced and not reason:
        raise Refused(400, "A release by force needs a reason.")
    if forced and given.get("sure") != "yes":
        return _ask_again(state, reason)
    by = request.access.user
    released = operator_release.release(services, state.key, force=forced, reason=reason, by=by)
    results = list(_results(released))
    request.access.note(state.key, " ".join([*results, f"Reason: {reason}" if reason else ""]).strip())
    return Page("done.html", "Released", {"key": state.key, "texts": results})


def reason_of(form: Mapping[str, str]) -> str:
    return form.get("reason", "").strip()[:_LONGEST_REASON]


def action(title: str, key: str, button: str, fields: Mapping[str, str], **values: Any) -> Page:
    """Return the page that asks before an action on a key, by a form with this button and these fields."""
    given = {"key": key, "button_text": button, "fields": fields, "longest": _LONGEST_REASON}
    return Page("action.html", title, {**_NOTHING_MORE, **given, **values})


def _needs_force(state: KeyState) -> bool:
    """Whether a running task loses the key by a release, or tasks are deleted."""
    running = any(holder.phase == "running" and not holder.is_dead for holder in state.holders)
    return bool(running or state.other_holders or state.problem)


def _ask(services: Services, state: KeyState, *, forced: bool) -> Page:
    return action(
        "Release",
        state.key,
        "Release by force…" if forced else "Release",
        {"seen": _seen(state)},
        answer=answer_of(services, state),
        text=_DAMAGED if state.problem else _HELD if forced else _UNHELD,
        state=state,
        wants_reason=forced,
    )


def _ask_again(state: KeyState, reason: str) -> Page:
    running = ", ".join(holder.task_id for holder in state.holders if not holder.is_dead)
    more = f" and {state.other_holders:,} more" if state.other_holders else ""
    text = f"{running}{more} may still run, and then beside the next task. Release it all the same?"
    if state.problem:
        text = "Delete the data of this key, and all tasks that wait for it?"
    fields = {"seen": _seen(state), "reason": reason, "sure": "yes"}
    return action(
        "Really release",
        state.key,
        "Yes, release it by force",
        fields,
        warning=text,
        text=f"Reason: {reason}",
        wants_reason=False,
    )


def _results(released: Released) -> Iterator[str]:
    for owner in released.former:
        yield f"Released the lease of {task_id(owner.id)}, held for {duration(owner.age / SECOND)}."
    for id in released.offered:
        yield f"The key is offered to {task_id(id)}, and its message is published."
    if released.forgotten:
        yield "Its data were damaged and are deleted."
    elif not released.former:
        yield "It had no holder any more."


def _seen(state: KeyState) -> str:
    """Return a text for these holders: a form for them releases no newer one, also if it is sent twice."""
    leases = sorted((holder.task_id, holder.fence) for holder in state.holders)
    return sha256(repr((leases, state.problem)).encode()).hexdigest()[:16]
