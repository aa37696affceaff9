"""The page as a WSGI application, by Flask."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import flask
from flask import Flask
from werkzeug.exceptions import HTTPException

from celery_exclusive import notices
from celery_exclusive.display import OneLine
from celery_exclusive.web import site
from celery_exclusive.web.exchange import HEADERS, Refused, Request
from celery_exclusive.web.signing_in import SignIn, Visitor, ask_to_sign_in
from celery_exclusive.web.templates import url

if TYPE_CHECKING:
    from flask.typing import ResponseReturnValue

    from celery_exclusive.services import Services

    Rights = Callable[[dict[str, Any], str], Collection[str]]

_LONGEST_QUERY: Final = 8_192
_LONGEST_BODY: Final = 16_384


def make(
    services: Services,
    *,
    token: str | None,
    hosts: Collection[str] | None,
    behind_tls: bool,
    rights: Rights | None,
) -> Flask:
    pages = _Pages(services, hosts, rights)
    made = Flask("celery_exclusive.web", static_folder=None)
    made.debug = False
    made.config.update(MAX_CONTENT_LENGTH=_LONGEST_BODY, PROPAGATE_EXCEPTIONS=False)
    made.url_map.merge_slashes = False
    made.before_request(pages.check)
    made.after_request(_with_headers)
    made.logger.addFilter(OneLine())
    made.register_error_handler(HTTPException, _as_text)
    made.register_error_handler(Refused, lambda error: _as_text(HTTPException(error.text), error.status))
    for path in ("/", "/<name>"):
        made.add_url_rule(path, path, pages.show, methods=["GET", "POST"], provide_automatic_options=False)
    style = lambda: (site.style(), {"Content-Type": "text/css"})  # noqa: E731
    made.add_url_rule(f"/{site.STYLE}", site.STYLE, style, provide_automatic_options=False)
    if token is not None:
        pages.sign_in = SignIn(made, token, behind_tls=behind_tls)
    return made


class _Pages:
    sign_in: SignIn | None = None

    def __init__(self, services: Services, hosts: Collection[str] | None, rights: Rights | None) -> None:
        self._installed, self._hosts, self._rights = services, hosts, rights

    def check(self) -> ResponseReturnValue | None:
        """Refuse a name that another site has given to this machine, to read the page in a browser here."""
        asked = flask.request
        host = str(asked.environ.get("HTTP_HOST", ""))
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        if self._hosts is not None and name.strip("[]").lower() not in self._hosts:
            raise Refused(421, f"This page is served for {', '.join(sorted(self._hosts))} alone.")
        if len(asked.query_string) > _LONGEST_QUERY:
            raise Refused(414, f"An address may have {_LONGEST_QUERY:,} characters after the question mark.")
        if not asked.query_string.isascii():
            raise Refused(400, "A byte of the address is no ASCII: a browser writes %C3%A4 for an ä.")
        if asked.environ.get("PATH_INFO"):
            return None
        folder = quote(asked.root_path.rpartition("/")[2])
        return flask.redirect(f"./{folder}/" if folder else "/")

    def show(self, name: str = "") -> ResponseReturnValue:
        asked = flask.request
        form = asked.form.to_dict() if asked.method == "POST" else None
        visitor = self.sign_in.visitor() if self.sign_in else Visitor()
        if visitor is None:
            is_page = form is None and (name in site.LOOKING or name in site.ACTING)
            return ask_to_sign_in(url(name, **asked.args.to_dict()) if is_page else "")
        if self._rights:
            allowed = self._rights(asked.environ, visitor.user)
            if "look" not in allowed:
                raise Refused(403, "You have no right to look at this page.")
            visitor.rights &= {*allowed}
        return site.respond(self._services, Request(name, visitor, asked.args.to_dict(), form))

    @cached_property
    def _services(self) -> Services:
        """The services of the app with all its tasks, which are imported for the first request."""
        app = self._installed.app
        try:
            app.loader.import_default_modules()
        except Exception as error:  # noqa: BLE001 - when things are broken, an operator needs the page most
            notices.trouble("not all tasks could be imported", error)
        app.finalize()
        return self._installed


def _as_text(error: HTTPException, status: int | None = None) -> ResponseReturnValue:
    """Return an error without HTML, with the headers that belong to its status."""
    response = error.get_response()
    response.status_code = status or error.code or 500
    response.set_data(error.description or "")
    response.headers["Content-Type"] = "text/plain; charset=utf-8"
    return response


def _with_headers(response: flask.Response) -> flask.Response:
    response.headers.update(HEADERS)
    return response
