"""The page as a WSGI application."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, quote

from celery_exclusive import notices
from celery_exclusive.services import services_of
from celery_exclusive.web import signing_in, site
from celery_exclusive.web.door import Door
from celery_exclusive.web.exchange import Refused, Request, Response
from celery_exclusive.web.session import COOKIE, Reader, Session, checked_token

if TYPE_CHECKING:
    from celery_exclusive.services import Services

    Environ = dict[str, Any]
    Rights = Callable[[Environ, str], Collection[str]]
    StartResponse = Callable[[str, list[tuple[str, str]]], object]

_LONGEST_QUERY: Final = 8_192
_LONGEST_BODY: Final = 16_384
_MOST_FIELDS: Final = 20
_FORM: Final = "application/x-www-form-urlencoded"


def application(
    app: Any = None,
    *,
    token: str | None = None,
    hosts: Collection[str] | None = None,
    behind_tls: bool = False,
    rights: Rights | None = None,
) -> Page:
    """Return the page of an app's locks as a WSGI application, to be mounted under any path.

    The page shows problems, all keys, each key with its line, and why a task does not run. It is read-only
    without a token. With one, visitors sign in with it, and can release keys and drop waiting tasks.

    Example:
        from celery_exclusive.web import application

        locks = application(celery_app, token=os.environ["CELERY_LOCKS_TOKEN"])
        flask_app.wsgi_app = DispatcherMiddleware(flask_app.wsgi_app, {"/locks": locks})

    Parameters:
        app: the Celery app. Default: the only app with `install`, or the current app.
        token: the secret that visitors sign in with, 16 characters or more. None: each visitor may look, and
            none may change anything; so mount it where only operators come.
        hosts: the host names by which the page may be addressed, without ports. None: any.
        behind_tls: a proxy with TLS is in front, and the only way here. Cookies are for HTTPS alone, whatever
            `wsgi.url_scheme` says, and the last address in `X-Forwarded-For` is the visitor's.
        rights: returns what a visitor may do, some of "look", "release", "force" (release what a task holds)
            and "drop", for the WSGI environ and the name that the visitor has signed in with, or "" without
            a token. None: all. Without a token a visitor may only look.

    Raises:
        OptionError: the app has no locks, or the token is too short.

    A store that does not answer is a page with status 503. The log has each action, with the name that the
    visitor has given, and the reason.
    """
    services = services_of(app, "application()")
    return Page(services, checked_token(token), hosts, behind_tls=behind_tls, rights=rights)


class Page:
    """The WSGI application. `application` makes it."""

    def __init__(
        self,
        services: Services,
        token: str | None,
        hosts: Collection[str] | None,
        *,
        behind_tls: bool,
        rights: Rights | None,
    ) -> None:
        self._installed, self._token, self._hosts = services, token, hosts
        self._behind_tls, self._rights = behind_tls, rights
        self._door = Door()

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        try:
            response = self._respond(environ)
        except Refused as refused:
            response = Response(
                refused.status, refused.text.encode(), "text/plain; charset=utf-8", refused.headers
            )
        status = HTTPStatus(response.status)
        start_response(f"{status.value} {status.phrase}", response.all_headers)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [response.body]

    def _respond(self, environ: Environ) -> Response:
        self._check_host(str(environ.get("HTTP_HOST", "")))
        path = str(environ.get("PATH_INFO", ""))
        if not path:
            folder = quote(str(environ.get("SCRIPT_NAME", "")).rpartition("/")[2], encoding="latin-1")
            return Response(302, b"", headers=(("Location", f"./{folder}/" if folder else "/"),))
        session = self._session(str(environ.get("HTTP_COOKIE", "")))
        request = Request(path[1:], session or Reader(), _query(environ), _form(environ))
        if request.page == site.STYLE:
            return site.style()
        if self._rights and (session or not self._token) and request.page not in signing_in.PAGES:
            allowed = self._rights(environ, request.access.user)
            if "look" not in allowed:
                raise Refused(403, "You have no right to look at this page.")
            if session:
                session.rights &= {*allowed}
        if self._token is None:
            return site.respond(self._services, request)
        return signing_in.respond(
            self._services,
            request,
            self._token,
            session,
            self._door,
            self._address(environ),
            is_safe=self._behind_tls or environ.get("wsgi.url_scheme") == "https",
        )

    def _address(self, environ: Environ) -> str:
        """Return the address of a visitor. A proxy adds it to those that the visitor may have invented."""
        forwarded = str(environ.get("HTTP_X_FORWARDED_FOR", "")).rpartition(",")[2].strip()
        return (self._behind_tls and forwarded) or str(environ.get("REMOTE_ADDR", "unknown"))

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

    def _check_host(self, host: str) -> None:
        """Refuse a name that another site has given to this machine, to read the page in a browser here."""
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        if self._hosts is not None and name.strip("[]").lower() not in self._hosts:
            raise Refused(421, f"This page is served for {', '.join(sorted(self._hosts))} alone.")

    def _session(self, cookies: str) -> Session | None:
        if self._token:
            for cookie in cookies.split(";"):
                name, _, value = cookie.strip().partition("=")
                if name == COOKIE:
                    session = Session.of(self._token, value)
                    return None if session and self._door.has_ended(session) else session
        return None


def _query(environ: Environ) -> dict[str, str]:
    text = str(environ.get("QUERY_STRING", ""))
    if len(text) > _LONGEST_QUERY:
        raise Refused(414, f"An address may have {_LONGEST_QUERY:,} characters after the question mark.")
    return _fields(text)


def _form(environ: Environ) -> dict[str, str] | None:
    """Return the fields of a POST; None: a GET."""
    method = environ["REQUEST_METHOD"]
    if method in ("GET", "HEAD"):
        return None
    if method != "POST":
        raise Refused(405, "The methods are GET, HEAD and POST.", ("Allow", "GET, HEAD, POST"))
    length = str(environ.get("CONTENT_LENGTH") or "")
    if not (length.isascii() and length.isdigit()):
        raise Refused(411, "A form needs a Content-Length.")
    if len(length) > 9 or int(length) > _LONGEST_BODY:
        raise Refused(413, f"A form may have {_LONGEST_BODY:,} bytes.")
    if str(environ.get("CONTENT_TYPE", "")).partition(";")[0].strip().lower() != _FORM:
        raise Refused(415, f"A form is {_FORM}.")
    return _fields(environ["wsgi.input"].read(int(length)).decode(errors="replace"))


def _fields(text: str) -> dict[str, str]:
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except ValueError:
        raise Refused(400, f"There may be {_MOST_FIELDS} fields.") from None
