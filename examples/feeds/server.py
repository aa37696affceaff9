"""An HTTP server with feeds to import, so that the example needs no internet.

`python server.py` serves the folder `documents/` until Ctrl-C. One of the sites is slow, one
answers 304 to its own ETag, one sends a document that is not well-formed; all take their time.
"""

from __future__ import annotations

import argparse
import hashlib
import signal
import time
import urllib.parse
import urllib.request
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

DOCUMENTS = Path(__file__).resolve().parent / "documents"
SLOW = "observatory-log.atom"
TAGGED = "city-status.atom"

_TYPES = {
    ".rss": "application/rss+xml",
    ".rdf": "application/rdf+xml",
    ".atom": "application/atom+xml",
    ".xml": "application/xml",
}
_DELAY = 0.25
_SLOW_DELAY = 1.0
_PIECES = 8


@dataclass(frozen=True)
class Site:
    """One document and how its site behaves; `delay` in seconds."""

    name: str
    body: bytes
    content_type: str
    etag: str = ""
    delay: float = _DELAY

    @property
    def is_slow(self) -> bool:
        """Whether it is the site that sends drop by drop."""
        return self.delay > _DELAY


def sites(folder: Path = DOCUMENTS) -> list[Site]:
    """Read the feed documents of a folder, sorted by name."""
    found = [
        Site(
            name=path.name,
            body=path.read_bytes(),
            content_type=_TYPES[path.suffix],
            etag=_etag(path.read_bytes()) if path.name == TAGGED else "",
            delay=_SLOW_DELAY if path.name == SLOW else _DELAY,
        )
        for path in sorted(folder.iterdir())
        if path.suffix in _TYPES
    ]
    if not found:
        raise FileNotFoundError(f"{folder} has no feed documents ({', '.join(sorted(_TYPES))})")
    return found


def mirror(url: str) -> Site:
    """Fetch a live feed once, to serve it from here: the demo's load never reaches its site."""
    request = urllib.request.Request(url, headers={"User-Agent": "celery-exclusive-example/1.0"})
    with urllib.request.urlopen(request, timeout=20) as response:
        parts = urllib.parse.urlsplit(url)
        return Site(
            name=f"{parts.netloc}{parts.path}".strip("/"),
            body=response.read(),
            content_type=response.headers.get("Content-Type", "application/xml"),
        )


class FeedServer:
    """Serves sites on a free loopback port, from a thread of this process.

    At least one of the sites is slow: if none is, the first becomes so.
    """

    def __init__(self, served: Iterable[Site], port: int = 0) -> None:
        listed = list(served)
        if not any(site.is_slow for site in listed):
            listed[0] = replace(listed[0], delay=_SLOW_DELAY)
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.sites = {_path(site): site for site in listed}
        base = f"http://127.0.0.1:{self._server.server_port}"
        self.urls = [base + _path(site) for site in listed]
        self.slow_url = next(base + _path(site) for site in listed if site.is_slow)

    def __enter__(self) -> Self:
        Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    sites: dict[str, Site]

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away (its worker was killed) is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        site = self.server.sites.get(self.path)
        if site is None:
            self.send_error(HTTPStatus.NOT_FOUND)
        elif site.etag and self.headers.get("If-None-Match") == site.etag:
            time.sleep(site.delay)
            self._head(site, HTTPStatus.NOT_MODIFIED)
        else:
            time.sleep(0 if site.is_slow else site.delay)
            self._head(site, HTTPStatus.OK)
            self._send(site)

    def _head(self, site: Site, status: HTTPStatus) -> None:
        self.send_response(status)
        if site.etag:
            self.send_header("ETag", site.etag)
        if status is HTTPStatus.OK:
            self.send_header("Content-Type", site.content_type)
            self.send_header("Content-Length", str(len(site.body)))
        self.end_headers()

    def _send(self, site: Site) -> None:
        if not site.is_slow:
            self.wfile.write(site.body)
            return
        step = len(site.body) // _PIECES + 1
        for begin in range(0, len(site.body), step):
            self.wfile.write(site.body[begin : begin + step])
            time.sleep(site.delay / _PIECES)

    def log_message(self, *_: object) -> None:
        """Stay quiet: the demo has a table to draw."""


def _path(site: Site) -> str:
    return "/" + urllib.parse.quote(site.name, safe="")


def _etag(body: bytes) -> str:
    return f'"{hashlib.sha256(body).hexdigest()[:16]}"'


def main() -> None:
    """Serve a folder until Ctrl-C."""
    parser = argparse.ArgumentParser(description="Serve feed documents on loopback.")
    parser.add_argument("--feeds", type=Path, default=DOCUMENTS, metavar="DIR", help="folder with documents")
    parser.add_argument("--port", type=int, default=0, help="default: a free one")
    options = parser.parse_args()
    with FeedServer(sites(options.feeds), options.port) as server:
        print(*server.urls, sep="\n", flush=True)
        with suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
