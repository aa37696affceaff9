"""The page of locks in Django's admin, with its users, permissions, forms and log."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from django.http import HttpResponse
from django.middleware.csrf import get_token

from celery_exclusive.contrib.django.project import services
from celery_exclusive.web.exchange import HEADERS, Request
from celery_exclusive.web.site import STYLE, respond, style


class AdminAccess:
    """The access of a user of the admin.

    Parameters:
        rights: the actions that the permissions of the user allow, as of `Access`.
        log: writes a message about a key into the log of the admin.
    """

    has_sessions = False

    def __init__(self, request: Any, log: Callable[[str, str], None], rights: Collection[str]) -> None:
        self._request, self._log, self.rights = request, log, rights

    @property
    def user(self) -> str:
        return f"{self._request.user} in Django's admin"

    @property
    def proof(self) -> tuple[str, str]:
        return "csrfmiddlewaretoken", get_token(self._request)

    def is_proven(self, form: Mapping[str, str]) -> bool:  # noqa: ARG002 - as of `Access`
        """Django has refused a form of another site before."""
        return True

    def note(self, key: str, text: str) -> None:
        self._log(key, text)


def show(request: Any, page: str, access: AdminAccess) -> HttpResponse:
    """Return the response to a request for a page."""
    if page == STYLE:
        return HttpResponse(style(), "text/css", headers=HEADERS)
    form = request.POST.dict() if request.method == "POST" else None
    html, status = respond(services(), Request(page, access, request.GET.dict(), form))
    return HttpResponse(html.encode(), status=status, headers=HEADERS)
