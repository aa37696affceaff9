"""A page that shows locks in a browser, as a WSGI application. It needs `celery-exclusive[web]`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

from celery_exclusive.errors import OptionError
from celery_exclusive.services import services_of

if TYPE_CHECKING:
    from celery_exclusive.web.wsgi import Rights

__all__ = ["application"]


def application(
    app: Any = None,
    *,
    token: str | None = None,
    hosts: Collection[str] | None = None,
    behind_tls: bool = False,
    rights: Rights | None = None,
) -> Callable[[dict[str, Any], Any], Iterable[bytes]]:
    """Return the page of an app's locks as a WSGI application, to be mounted under any path.

    The page shows problems, all keys, each key with its line, and why a task does not run. It is read-only
    without a token. With one, visitors sign in with it, can release, pause and limit keys, and drop waiting
    tasks. It needs `celery-exclusive[web]`.

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
        rights: returns what a visitor may do, some of "look", "release", "force" (release what a task holds,
            pause and limit keys) and "drop", for the WSGI environ and the name that the visitor has signed in
            with, or "" without a token. None: all. Without a token a visitor may only look.

    Raises:
        OptionError: the app has no locks, the token is too short, or Flask is not installed.

    A store that does not answer is a page with status 503. The log has each action, with the name that the
    visitor has given, and the reason.
    """
    services = services_of(app, "application()")
    try:
        from celery_exclusive.web.wsgi import make
    except ModuleNotFoundError as error:
        if error.name not in ("flask", "jinja2"):
            raise
        raise OptionError("the page of locks needs Flask: pip install 'celery-exclusive[web]'") from error
    return make(services, token=token, hosts=hosts, behind_tls=behind_tls, rights=rights)
