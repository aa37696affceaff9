"""Signing in with the token: a cookie, and the proof that a form is from this page."""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Mapping
from hashlib import sha256
from typing import Final
from urllib.parse import quote, unquote

from celery_exclusive.errors import OptionError
from celery_exclusive.web.markup import EMPTY, Html, fill

COOKIE: Final = "celery_exclusive_locks"
LASTS: Final = 12 * 3_600
"""The seconds after which a visitor has to sign in again."""
SHORTEST_TOKEN: Final = 16
ALL_RIGHTS: Final = frozenset({"release", "force", "drop"})
_PROOF: Final = "proof"


class Session:
    """The access of a visitor with a cookie. No process remembers it: the token of the page signs it."""

    has_sessions = True

    def __init__(self, token: str, cookie: str, user: str) -> None:
        self._token, self.cookie, self.user = token, cookie, user
        self.rights = ALL_RIGHTS

    @classmethod
    def begin(cls, token: str, user: str) -> tuple[str, Session]:
        """Begin a session for a visitor with the token; return its cookie, too."""
        content = ".".join([str(int(time.time()) + LASTS), secrets.token_hex(8), quote(user, safe="")])
        cookie = f"{content}.{_signature(token, 'session', content)}"
        return cookie, cls(token, cookie, user)

    @classmethod
    def of(cls, token: str, cookie: str) -> Session | None:
        """Return the session of a cookie; None: the cookie is not valid, or not any more."""
        content, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(signature.encode(), _signature(token, "session", content).encode()):
            return None
        user = content.split(".", 2)[2]
        session = cls(token, cookie, unquote(user))
        return session if session.expires > time.time() else None

    @property
    def expires(self) -> int:
        return int(self.cookie.partition(".")[0])

    def proof(self) -> Html:
        return fill(
            '<input type="hidden" name="{}" value="{}">',
            _PROOF,
            _signature(self._token, "form", self.cookie),
        )

    def is_proven(self, form: Mapping[str, str]) -> bool:
        expected = _signature(self._token, "form", self.cookie)
        return hmac.compare_digest(form.get(_PROOF, "").encode(), expected.encode())

    def note(self, key: str, text: str) -> None:
        """Note nothing: the log of the process has the action."""


class Reader:
    """The access of visitors of a page without a token: they may look, and change nothing."""

    has_sessions = False
    user = ""
    rights = frozenset[str]()

    def proof(self) -> Html:
        return EMPTY

    def is_proven(self, form: Mapping[str, str]) -> bool:  # noqa: ARG002 - as of `Access`
        return False

    def note(self, key: str, text: str) -> None:
        """Note nothing: a reader does nothing."""


def checked_token(token: str | None) -> str | None:
    """Return the token of a page.

    Raises:
        OptionError: it is too short.
    """
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise OptionError(
            f"the token of the page needs {SHORTEST_TOKEN} characters or more: "
            "python -c 'import secrets; print(secrets.token_urlsafe())' prints a good one"
        )
    return token


def is_token(token: str, given: str) -> bool:
    """Whether this is the token, in a time that does not depend on the difference."""
    return hmac.compare_digest(*(sha256(text.encode(errors="replace")).digest() for text in (token, given)))


def _signature(token: str, purpose: str, content: str) -> str:
    text = f"{purpose}:{content}".encode(errors="replace")
    return hmac.new(token.encode(errors="replace"), text, sha256).hexdigest()
