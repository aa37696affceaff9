"""The forms of actions, and the pages around them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from celery_exclusive.display import escaped
from celery_exclusive.web.layout import page
from celery_exclusive.web.markup import EMPTY, Html, button, fill, join, link

if TYPE_CHECKING:
    from celery_exclusive.services import Services
    from celery_exclusive.web.exchange import Request, Response

_LONGEST_REASON: Final = 200
_FORM: Final = """<form class="action" action="{page}" method="post">
{proof}{fields}{reason}
<p><button class="danger">{text}</button> {back}</p>
</form>"""
_REASON: Final = """<p><label for="reason">Reason, for the log</label>
<input id="reason" name="reason" required maxlength="{}" autocomplete="off"></p>"""


def form(
    request: Request, key: str, text: str, values: Mapping[str, str], *, wants_reason: bool = False
) -> Html:
    """Return the form of an action on a key, with a button of this text, and with these values."""
    fields = {"key": escaped(key), **values}
    return fill(
        _FORM,
        page=request.page,
        proof=request.access.proof(),
        fields=join(fill('<input type="hidden" name="{}" value="{}">', *field) for field in fields.items()),
        reason=fill(_REASON, _LONGEST_REASON) if wants_reason else EMPTY,
        text=text,
        back=button("key", "Cancel", key=escaped(key)),
    )


def reason_of(values: Mapping[str, str]) -> str:
    """Return the reason that a visitor has given."""
    return values.get("reason", "").strip()[:_LONGEST_REASON]


def action_page(services: Services, request: Request, title: str, key: str, *main: Html) -> Response:
    """Return a page about an action on a key."""
    name = link("key", escaped(key), key=escaped(key))
    return page(services, request, title, fill('<h1>{}</h1><p class="key">{}</p>{}', title, name, join(main)))


def done_page(services: Services, request: Request, title: str, key: str, *texts: str) -> Response:
    """Return the page that says what an action has done."""
    said = join(fill("<p>{}</p>", text) for text in texts)
    return action_page(services, request, title, key, fill('<div class="answer good">{}</div>', said))
