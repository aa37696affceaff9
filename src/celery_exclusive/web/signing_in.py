"""Signing in with the token, and out: sessions are Flask's, in a cookie that the token signs."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

import flask
from flask.sessions import SecureCookieSessionInterface

from celery_exclusive import notices
from celery_exclusive.errors import OptionError
from celery_exclusive.web import site
from celery_exclusive.web.door import LASTS, PAUSE, TRIES, Door
from celery_exclusive.web.exchange import Refused
from celery_exclusive.web.templates import template, url

if TYPE_CHECKING:
    from flask.typing import ResponseReturnValue

COOKIE: Final = "celery_exclusive_locks"
SHORTEST_TOKEN: Final = 16
_LONGEST_NAME: Final = 50


class Visitor:
    """The access of a visitor with a session, whose forms have its proof, or of one that may only look."""

    def __init__(self, user: str = "", proof: str = "") -> None:
        self.user, self.proof = user, ("proof", proof)
        self.has_sessions = bool(proof)
        self.rights = {"release", "force", "drop"} if proof else set[str]()

    def is_proven(self, form: Mapping[str, str]) -> bool:
        name, proof = self.proof
        return bool(proof) and hmac.compare_digest(form.get(name, "").encode(), proof.encode())

    def note(self, key: str, text: str) -> None:
        """Note nothing: the log of the process has the action."""


class SignIn:
    def __init__(self, app: flask.Flask, token: str, *, behind_tls: bool) -> None:
        if len(token) < SHORTEST_TOKEN:
            raise OptionError(
                f"the token of the page needs {SHORTEST_TOKEN} characters or more: "
                "python -c 'import secrets; print(secrets.token_urlsafe())' prints a good one"
            )
        self._token, self._door, self._behind_tls = token, Door(), behind_tls
        app.session_interface = _Sessions(behind_tls=behind_tls)
        app.config.update(
            SECRET_KEY=token.encode(errors="replace"),
            SESSION_COOKIE_NAME=COOKIE,
            SESSION_COOKIE_SAMESITE="Strict",
            SESSION_REFRESH_EACH_REQUEST=False,
            PERMANENT_SESSION_LIFETIME=timedelta(seconds=LASTS),
        )
        for name, answer in (("sign-in", self.sign_in), ("sign-out", self.sign_out)):
            app.add_url_rule(f"/{name}", name, answer, methods=["POST"], provide_automatic_options=False)

    def visitor(self) -> Visitor | None:
        """Return the visitor of the session; None: there is no session, or not any more."""
        user, proof = flask.session.get("user"), flask.session.get("proof")
        return Visitor(user, proof) if user and proof and not self._door.has_ended(proof) else None

    def sign_in(self) -> ResponseReturnValue:
        form = flask.request.form
        name, target = form.get("name", "").strip()[:_LONGEST_NAME], form.get("target", "")
        address = self._address()
        if self._door.is_closed_to(address):
            text = f"After {TRIES} wrong tokens from your address wait {PAUSE} seconds."
            return text, 429, {"Content-Type": "text/plain", "Retry-After": f"{PAUSE}"}
        if not _is_same(self._token, form.get("token", "")):
            self._door.note_wrong_token(address)
            notices.wrong_token(name, address)
            return ask_to_sign_in(target, name, "That is not the token.")
        if not name:
            return ask_to_sign_in(target, name, "Give a name for the log.")
        flask.session.permanent = True
        flask.session.update(user=name, proof=secrets.token_urlsafe())
        return flask.redirect(_own(target), 303)

    def _address(self) -> str:
        """Return the address of a visitor. A proxy adds it to those that the visitor may have invented."""
        environ = flask.request.environ
        forwarded = str(environ.get("HTTP_X_FORWARDED_FOR", "")).rpartition(",")[2].strip()
        return (self._behind_tls and forwarded) or str(environ.get("REMOTE_ADDR", "unknown"))

    def sign_out(self) -> ResponseReturnValue:
        visitor = self.visitor()
        if visitor is None or not visitor.is_proven(flask.request.form):
            raise Refused(403, "Use the button to sign out.")
        self._door.end(flask.session["proof"])
        flask.session.clear()
        return flask.redirect("./", 303)


def ask_to_sign_in(target: str, name: str = "", problem: str = "") -> ResponseReturnValue:
    html = template("sign-in.html", target=target, name=name, problem=problem, longest=_LONGEST_NAME)
    return html, 403


class _Sessions(SecureCookieSessionInterface):
    salt = COOKIE
    digest_method = staticmethod(sha256)

    def __init__(self, *, behind_tls: bool) -> None:
        self._behind_tls = behind_tls

    def get_cookie_path(self, app: flask.Flask) -> str:  # noqa: ARG002 - as of Flask
        """Return none: the browser takes the folder of the page."""
        return None  # type: ignore[return-value]

    def get_cookie_secure(self, app: flask.Flask) -> bool:  # noqa: ARG002 - as of Flask
        return self._behind_tls or flask.request.is_secure


def _is_same(token: str, given: str) -> bool:
    """Whether this is the token, in a time that does not depend on the difference."""
    return hmac.compare_digest(*(sha256(text.encode(errors="replace")).digest() for text in (token, given)))


def _own(target: str) -> str:
    """Return the URL of the page that a visitor wanted to see: one of these pages, whatever the form says."""
    name, _, query = target.partition("?")
    if name not in site.LOOKING and name not in site.ACTING:
        return "./"
    return url(name, **dict(parse_qsl(query)))
