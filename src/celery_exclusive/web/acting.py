"""The pages of actions. A GET shows what an action does, and a POST with the form of that page does it."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from celery_exclusive.core.claim import task_id
from celery_exclusive.core.records import SECOND
from celery_exclusive.display import duration, escaped
from celery_exclusive.leases import operator_release
from celery_exclusive.operate.states import KeyState, key_state
from celery_exclusive.web.exchange import Refused, Request, Response
from celery_exclusive.web.layout import page
from celery_exclusive.web.looking import named_key
from celery_exclusive.web.markup import EMPTY, Html, button, fill, join, link
from celery_exclusive.web.parts import holder_table, state_text

if TYPE_CHECKING:
    from celery_exclusive.leases.operator_release import Released
    from celery_exclusive.services import Services

_LONGEST_REASON: Final = 200
_FORM: Final = """<form class="action" action="{page}" method="post">
{proof}{fields}{reason}
<p><button class="danger">{text}</button> {back}</p>
</form>"""
_REASON: Final = """<p><label for="reason">Reason, for the log</label>
<input id="reason" name="reason" required maxlength="{}" autocomplete="off"></p>"""
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


def release(services: Services, request: Request) -> Response:
    """Release a key. One that is held asks twice, and wants a reason."""
    form = request.form
    state = key_state(services, named_key(request.query if form is None else form))
    if not (state.holders or state.problem):
        raise Refused(404 if form is None else 409, f"No task holds {escaped(state.key)}.")
    forced = needs_force(state)
    if form is None:
        return _ask(services, request, state, forced=forced)
    if form.get("seen") != _seen(state):
        raise Refused(409, f"{escaped(state.key)} has other holders by now. Nothing was released.")
    reason = form.get("reason", "").strip()[:_LONGEST_REASON]
    if forced and not reason:
        raise Refused(400, "A release by force needs a reason.")
    if forced and form.get("sure") != "yes":
        return _ask_again(services, request, state, reason)
    released = operator_release.release(
        services, state.key, force=forced, reason=reason, by=request.access.user
    )
    return _released(services, request, state.key, released)


def needs_force(state: KeyState) -> bool:
    """Whether a running task loses the key by a release, or tasks are deleted."""
    running = any(holder.phase == "running" and not holder.is_dead for holder in state.holders)
    return bool(running or state.other_holders or state.problem)


def _ask(services: Services, request: Request, state: KeyState, *, forced: bool) -> Response:
    text = _DAMAGED if state.problem else _HELD if forced else _UNHELD
    reason = fill(_REASON, _LONGEST_REASON) if forced else EMPTY
    form = _form(request, state, "Release by force…" if forced else "Release", {}, reason)
    main = [state_text(state, services.store.url), fill("<p>{}</p>", text), _holders(state), form]
    return _page(services, request, "Release", state, main)


def _ask_again(services: Services, request: Request, state: KeyState, reason: str) -> Response:
    text = "Delete the data of this key, and all tasks that wait for it?" if state.problem else _sure(state)
    form = _form(request, state, "Yes, release it by force", {"reason": reason, "sure": "yes"})
    main = [fill('<p class="answer bad">{}</p>', text), fill("<p>Reason: {}</p>", reason), form]
    return _page(services, request, "Really release", state, main)


def _sure(state: KeyState) -> str:
    running = [holder.task_id for holder in state.holders if not holder.is_dead]
    more = f" and {state.other_holders:,} more" if state.other_holders else ""
    return (
        f"{', '.join(running)}{more} may still run, and then beside the next task. Release it all the same?"
    )


def _released(services: Services, request: Request, key: str, released: Released) -> Response:
    texts = [
        f"Released the lease of {task_id(owner.id)}, held for {duration(owner.age / SECOND)}."
        for owner in released.former
    ]
    texts += [
        f"The key is offered to {task_id(id)}, and its message is published." for id in released.offered
    ]
    if released.forgotten:
        texts.append("Its data were damaged and are deleted.")
    said = join(fill("<p>{}</p>", text) for text in texts or ["It had no holder any more."])
    main = fill(
        '<div class="answer good">{}</div><p>{}</p>', said, link("key", "Show the key", key=escaped(key))
    )
    return page(
        services, request, "Released", fill('<h1>Released</h1><p class="key">{}</p>{}', escaped(key), main)
    )


def _page(services: Services, request: Request, title: str, state: KeyState, main: list[Html]) -> Response:
    head = fill(
        '<h1>{}</h1><p class="key">{}</p>', title, link("key", escaped(state.key), key=escaped(state.key))
    )
    return page(services, request, title, fill("{}{}", head, join(main)))


def _holders(state: KeyState) -> Html:
    return holder_table(state) if state.holders else EMPTY


def _form(
    request: Request, state: KeyState, text: str, values: Mapping[str, str], reason: Html = EMPTY
) -> Html:
    fields = {"key": escaped(state.key), "seen": _seen(state), **values}
    return fill(
        _FORM,
        page=request.page,
        proof=request.access.proof(),
        fields=join(fill('<input type="hidden" name="{}" value="{}">', *field) for field in fields.items()),
        reason=reason,
        text=text,
        back=button("key", "Cancel", key=escaped(state.key)),
    )


def _seen(state: KeyState) -> str:
    """Return a text for these holders: a form for them releases no newer one, also if it is sent twice."""
    leases = sorted((holder.task_id, holder.fence) for holder in state.holders)
    return sha256(repr((leases, state.problem)).encode()).hexdigest()[:16]
