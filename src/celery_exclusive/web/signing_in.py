"""The page where visitors sign in with the token, and sign out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from celery_exclusive import notices
from celery_exclusive.web import site
from celery_exclusive.web.door import PAUSE, TRIES, Door
from celery_exclusive.web.exchange import Refused, Request, Response
from celery_exclusive.web.layout import bare_page
from celery_exclusive.web.markup import EMPTY, Html, fill, url
from celery_exclusive.web.session import COOKIE, LASTS, Session, is_token

if TYPE_CHECKING:
    from celery_exclusive.services import Services

PAGES: Final = ("sign-in", "sign-out")
_LONGEST_NAME: Final = 50
_FORM: Final = """<h1>Locks</h1>{problem}
<form class="action" action="sign-in" method="post">
<p><label for="name">Your name, for the log of actions</label>
<input id="name" name="name" required maxlength="{longest}" autocomplete="username" value="{name}"></p>
<p><label for="token">Token</label>
<input id="token" name="token" type="password" required autocomplete="current-password"></p>
<input type="hidden" name="target" value="{target}">
<p><button>Sign in</button></p>
</form>"""


def respond(
    services: Services,
    request: Request,
    token: str,
    session: Session | None,
    door: Door,
    address: str,
    *,
    is_safe: bool,
) -> Response:
    """Return the page that a visitor asks for, or else the one to sign in. `is_safe`: the page has HTTPS."""
    if request.page == "sign-in" and request.form is not None:
        return _sign_in(request.form, token, door, address, is_safe=is_safe)
    if session is None:
        is_page = request.form is None and (request.page in site.LOOKING or request.page in site.ACTING)
        return _form(url(request.page, **request.query) if is_page else "", "")
    if request.page == "sign-out":
        if request.form is None or not session.is_proven(request.form):
            raise Refused(403, "Use the button to sign out.")
        door.end(session)
        return _moved("./", _cookie("", 0, is_safe=is_safe))
    return site.respond(services, request)


def _sign_in(form: Mapping[str, str], token: str, door: Door, address: str, *, is_safe: bool) -> Response:
    name, target = form.get("name", "").strip()[:_LONGEST_NAME], form.get("target", "")
    if door.is_closed_to(address):
        wait = ("Retry-After", str(PAUSE))
        raise Refused(429, f"After {TRIES} wrong tokens from your address wait {PAUSE} seconds.", wait)
    if not is_token(token, form.get("token", "")):
        door.note_wrong_token(address)
        notices.wrong_token(name, address)
        return _form(target, name, Html('<p class="answer bad">That is not the token.</p>'))
    if not name:
        return _form(target, name, Html('<p class="answer bad">Give a name for the log.</p>'))
    cookie, _ = Session.begin(token, name)
    return _moved(_own(target), _cookie(cookie, LASTS, is_safe=is_safe))


def _cookie(value: str, lasts: int, *, is_safe: bool) -> str:
    return f"{COOKIE}={value}; Max-Age={lasts}; HttpOnly; SameSite=Strict{'; Secure' * is_safe}"


def _own(target: str) -> str:
    """Return the URL of the page that a visitor wanted to see: one of these pages, whatever the form says."""
    name, _, query = target.partition("?")
    if name not in site.LOOKING and name not in site.ACTING:
        return "./"
    return url(name, **dict(parse_qsl(query, max_num_fields=20)))


def _moved(target: str, cookie: str) -> Response:
    return Response(303, b"", headers=(("Location", target), ("Set-Cookie", cookie)))


def _form(target: str, name: str, problem: Html = EMPTY) -> Response:
    html = fill(_FORM, problem=problem, longest=_LONGEST_NAME, name=name, target=target)
    return bare_page("Sign in", html, 403)
