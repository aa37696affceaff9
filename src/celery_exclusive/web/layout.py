"""The frame of all pages: the head, the way around, the search, and the foot."""

from __future__ import annotations

from time import gmtime, strftime
from typing import TYPE_CHECKING, Final

from celery_exclusive.web.exchange import Request, Response
from celery_exclusive.web.markup import EMPTY, Html, fill, join, link, url

if TYPE_CHECKING:
    from celery_exclusive.services import Services

REFRESH: Final = 5
"""The seconds after which a page that refreshes itself is loaded again."""
_FRAME: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
{refresh}<title>{title} - locks</title>
<link rel="stylesheet" href="style.css">
</head>
<body>
{body}
</body>
</html>
"""
_BODY: Final = """<a class="skip" href="#main">Skip to the content</a>
<header>
<nav aria-label="Pages">{pages}</nav>
<form class="why" role="search" action="why" method="get">
<label for="search">Why does it not run?</label>
<input id="search" name="q" type="search" value="{query}" placeholder="Task id, key, task ARGS" required
 autocomplete="off" spellcheck="false" maxlength="1000">
<button>Ask</button>
</form>
</header>
<main id="main" tabindex="-1">
{main}
</main>
<footer>{foot}</footer>"""
_SIGN_OUT: Final = """<form class="visitor" action="sign-out" method="post">{proof}
<span>Signed in as {user}</span> <button>Sign out</button></form>"""


def page(
    services: Services,
    request: Request,
    title: str,
    main: Html,
    status: int = 200,
    *,
    refreshes: bool = False,
    seen: str = "",
) -> Response:
    """Return a page as a response. One that `refreshes` can load itself again, and learns what was `seen`."""
    is_live = refreshes and "live" in request.query
    body = fill(
        _BODY,
        pages=join(
            _page_link(request, name, text) for name, text in (("", "Problems"), ("keys", "All keys"))
        ),
        query=request.query.get("q", "") if request.page == "why" else "",
        main=main,
        foot=_foot(services, request, seen, refreshes=refreshes),
    )
    refresh = fill('<meta http-equiv="refresh" content="{}">\n', REFRESH) if is_live else EMPTY
    return Response(status, fill(_FRAME, refresh=refresh, title=title, body=body).encode())


def bare_page(title: str, main: Html, status: int) -> Response:
    """Return a page that shows nothing of the store."""
    body = fill('<main class="bare">{}</main>', main)
    return Response(status, fill(_FRAME, refresh=EMPTY, title=title, body=body).encode())


def _page_link(request: Request, name: str, text: str) -> Html:
    current = Html(' aria-current="page"') if request.page == name else EMPTY
    return fill('<a href="{}"{}>{}</a>', url(name), current, text)


def _foot(services: Services, request: Request, seen: str, *, refreshes: bool) -> Html:
    now = strftime("%H:%M:%S UTC", gmtime())
    where = fill(
        "<span>Store <code>{}</code>, prefix <code>{}</code></span>",
        services.store.url,
        services.settings.exclusive_prefix,
    )
    parts = [where, fill("<span>as of {}</span>", now)]
    if refreshes:
        parts.append(_refresh(request, seen))
    if not request.access.rights:
        parts.append(Html("<span>read-only</span>"))
    if request.access.has_sessions:
        parts.append(fill(_SIGN_OUT, proof=request.access.proof(), user=request.access.user))
    return join(parts, " ")


def _refresh(request: Request, seen: str) -> Html:
    """Return the links that load this page again, now or every few seconds."""
    query = {"seen": seen, **request.query}
    query.pop("live", None)
    if "live" in request.query:
        return link(request.page, "Stop refreshing", **query)
    again = link(request.page, "Refresh", **query)
    return join([again, link(request.page, f"every {REFRESH} s", **query, live=1)], " ")
