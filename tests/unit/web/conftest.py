from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html import unescape
from http.cookies import SimpleCookie
from io import BytesIO
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest
from celery import Celery

from celery_exclusive import install
from celery_exclusive.core.operations import Acquire
from celery_exclusive.core.records import SECOND
from celery_exclusive.web import application

TOKEN = "a token for tests"


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    html: str
    url: str

    @property
    def text(self) -> str:
        """What a browser shows, without the title."""
        body = self.html.partition("<body>")[2] or self.html
        return unescape(re.sub("<[^>]*>", "", body))

    @property
    def links(self) -> list[str]:
        return [urljoin(self.url, unescape(link)) for link in re.findall(r'href="([^"]*)"', self.html)]

    @property
    def fields(self) -> dict[str, str]:
        """The hidden fields of the form of an action."""
        (form,) = re.findall(r'<form class="action".*?</form>', self.html, re.DOTALL)
        found = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', form)
        return {name: unescape(value) for name, value in found}


@dataclass
class Visitor:
    """A browser without a window: it follows no link by itself, and keeps the cookie."""

    page: Any
    mount: str = ""
    cookie: str = ""
    environ: dict[str, Any] = field(default_factory=dict)

    def get(self, page: str = "", /, method: str = "GET", **query: str) -> Answer:
        return self._ask(method, page, urlencode(query), b"")

    def post(self, page: str, form: dict[str, str], **more: Any) -> Answer:
        return self._ask("POST", page, "", urlencode(form).encode(), **more)

    def sign_in(self, token: str = TOKEN, name: str = "Ada", **form: str) -> Answer:
        return self.post("sign-in", {"token": token, "name": name, **form})

    def open(self, url: str) -> Answer:
        parts = urlsplit(url)
        assert parts.path.startswith(f"{self.mount}/")
        return self._ask("GET", parts.path[len(self.mount) + 1 :], parts.query, b"")

    def _ask(self, method: str, page: str, query: str, body: bytes, **more: Any) -> Answer:
        environ = {
            "REQUEST_METHOD": method,
            "SCRIPT_NAME": self.mount,
            "PATH_INFO": f"/{page}",
            "QUERY_STRING": query,
            "HTTP_COOKIE": f"other=1; {self.cookie}",
            **self.environ,
            **more,
        }
        if method == "POST":
            form = "application/x-www-form-urlencoded"
            environ = {"CONTENT_LENGTH": str(len(body)), "CONTENT_TYPE": form, **environ}
            environ["wsgi.input"] = BytesIO(body)
        setup_testing_defaults(environ)
        began: list[Any] = []
        asked = self.page if more else validator(self.page)  # which refuses what a good client never sends
        answer = asked(environ, lambda status, headers, _=None: began.extend((status, headers)))
        html = b"".join(answer).decode()
        if not more:
            answer.close()
        status, headers = began
        if kept := dict(headers).get("Set-Cookie"):
            (morsel,) = SimpleCookie(kept).values()
            self.cookie = f"{morsel.key}={morsel.value}"
        query = f"?{query}" if query else ""
        return Answer(int(status[:3]), dict(headers), html, f"{self.mount}/{page}{query}")


@dataclass
class Desk:
    """An app with a store in this process, whose clock the test sets."""

    app: Celery
    now: int = 1_800_000_000 * SECOND

    @property
    def store(self) -> Any:
        return self.app._celery_exclusive.store  # type: ignore[attr-defined]

    def pass_time(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)

    def acquire(self, key: str, *ids: str, ttl: float = 600, **options: Any) -> None:
        """Let the first of these tasks hold a key, and the others wait."""
        for id in ids:
            given = {"message": b"{}"} if id != ids[0] else {}
            self.store.apply(
                key, Acquire(f"{id}/00000000", "0123456789abcdef", round(ttl * SECOND), **given, **options)
            )

    def visitor(self, *, signed_in: bool = False, mount: str = "", **options: Any) -> Visitor:
        if signed_in:
            options["token"] = TOKEN
        visitor = Visitor(application(self.app, **options), mount)
        if signed_in:
            assert visitor.sign_in().status == 303
        return visitor


@pytest.fixture
def desk(make_app: Callable[..., Celery]) -> Iterator[Desk]:
    desk = Desk(install(make_app()))
    desk.store._store.clock = lambda: desk.now
    yield desk
    desk.store.clear()
