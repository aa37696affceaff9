"""The pages by their names, and the errors as pages."""

from __future__ import annotations

import logging
from collections.abc import Callable
from http import HTTPStatus
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from celery_exclusive.errors import ExclusiveError, LockHeld, OptionError, StoreUnavailable
from celery_exclusive.operate.patience import NoAnswer
from celery_exclusive.web import dropping, limiting, looking, releasing
from celery_exclusive.web.exchange import Page, Refused, Request
from celery_exclusive.web.templates import render

if TYPE_CHECKING:
    from celery_exclusive.services import Services

_logger = logging.getLogger("celery_exclusive")

LOOKING: Final[dict[str, Callable[[Services, Request], Page]]] = {
    "": looking.problems,
    "keys": looking.keys,
    "key": looking.key,
    "why": looking.why,
}
ACTING: Final[dict[str, Callable[[Services, Request], Page]]] = {
    "release": releasing.release,
    "drop": dropping.drop,
    **dict.fromkeys(limiting.CHANGES, limiting.change),
}
_RIGHTS: Final = dict.fromkeys(limiting.CHANGES, "force")
"""The right that a page needs, if it has another name: a higher limit runs bodies side by side, too."""
STYLE: Final = "style.css"
_STATUSES: Final = {LockHeld: 409, StoreUnavailable: 503, NoAnswer: 503, OptionError: 400}


def respond(services: Services, request: Request) -> tuple[str, int]:
    """Return the page that a visitor asks for, and its status. Never raises: an error is a page, too."""
    try:
        page = _page(services, request)
        return render(services, request, page), page.status
    except Refused as refused:
        return problem(services, request, refused.status, refused.text)
    except ExclusiveError as error:
        status = next((code for kind, code in _STATUSES.items() if isinstance(error, kind)), 500)
        return problem(services, request, status, str(error))
    except Exception as error:
        _logger.exception("the page %r of locks could not be made", request.page)
        text = f"This page could not be made ({type(error).__name__}). The log has the error."
        return problem(services, request, 500, text)


def style() -> bytes:
    return files("celery_exclusive.web").joinpath(STYLE).read_bytes()


def problem(services: Services, request: Request, status: int, text: str) -> tuple[str, int]:
    page = Page("problem.html", HTTPStatus(status).phrase, {"text": text}, status)
    return render(services, request, page), status


def _page(services: Services, request: Request) -> Page:
    if request.page in LOOKING:
        if request.form is not None:
            raise Refused(400, "This page only shows.")
        return LOOKING[request.page](services, request)
    if request.page not in ACTING:
        raise Refused(404, "There is no such page.")
    if _RIGHTS.get(request.page, request.page) not in request.access.rights:
        raise Refused(403, f"You have no right to {request.page}, or this page has no token to sign in with.")
    if request.form is not None and not request.access.is_proven(request.form):
        raise Refused(
            403, "This form is too old, or is not from this page. Go back, load it again, and repeat."
        )
    return ACTING[request.page](services, request)
