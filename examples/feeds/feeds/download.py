"""One conditional HTTP request for one feed."""

from __future__ import annotations

import io
import urllib.error
import urllib.request
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from typing import Any

import feedparser

_AGENT = "celery-exclusive-example/1.0"
_TIMEOUT = 20.0


class BadFeed(Exception):
    """There is nothing at that address that can be read as a feed; the text says why."""


@dataclass(frozen=True)
class Document:
    """A feed as the site sent it, with what is needed to ask again only for news."""

    body: bytes
    content_type: str
    url: str
    etag: str
    modified: str

    def parse(self) -> Any:
        """Hand the bytes to feedparser, which finds format and encoding out by itself."""
        headers = {"content-type": self.content_type, "content-location": self.url}
        try:
            parsed = feedparser.parse(io.BytesIO(self.body), response_headers=headers)
        except Exception as error:  # whatever its innards raise at a broken date, character, encoding, ...
            raise BadFeed(f"feedparser cannot read it: {error!r}") from error
        if not any(parsed.get(part) for part in ("bozo", "version", "feed", "entries")):
            raise BadFeed("it is no feed")
        return parsed


def download(url: str, *, etag: str = "", modified: str = "") -> Document | None:
    """Return the document behind `url`, or None if it has not changed (304); BadFeed if there is none."""
    request = urllib.request.Request(url, headers={"User-Agent": _AGENT})
    if etag:
        request.add_header("If-None-Match", etag)
    if modified:
        request.add_header("If-Modified-Since", modified)
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
            return Document(
                body=response.read(),
                content_type=response.headers.get("Content-Type", ""),
                url=response.geturl(),
                etag=response.headers.get("ETag", ""),
                modified=response.headers.get("Last-Modified", ""),
            )
    except urllib.error.HTTPError as error:
        if error.code == HTTPStatus.NOT_MODIFIED:
            return None
        raise BadFeed(str(error)) from error
    except (OSError, HTTPException) as error:
        raise BadFeed(str(error) or repr(error)) from error
