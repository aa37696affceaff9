"""Requests to the page, and the page to show, without a word of Flask or Django."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""The headers of every response."""


class Access(Protocol):
    """The rights of a visitor.

    `user`: the name in the log. `rights`: "release", "drop", and "force" to release what a task holds, and to
    change what a key lets start. `has_sessions`: visitors sign in and out. `proof`: the name and the value of
    the field that proves that a form is from this page.
    """

    @property
    def user(self) -> str: ...
    @property
    def rights(self) -> Collection[str]: ...
    @property
    def has_sessions(self) -> bool: ...
    @property
    def proof(self) -> tuple[str, str]: ...

    def is_proven(self, form: Mapping[str, str]) -> bool:
        """Whether a form is from this page, and not from a page of another site."""
        ...

    def note(self, key: str, text: str) -> None:
        """Note what an action has done to a key, besides the log of the process."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request for a page of the folder: `page` "" is the first one. HEAD is a GET here."""

    page: str
    access: Access
    query: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, str] | None = None
    """The fields of a POST. None: a GET."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page to be shown. One that `refreshes` itself is told what was `seen` the first time."""

    template: str
    title: str
    values: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200
    refreshes: bool = False
    seen: str = ""


class Refused(Exception):
    """A request that is answered with an error page: the status, and a sentence for the visitor."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(status, text)
        self.status, self.text = status, text
