"""A small server for the page, for one operator or a few."""

from __future__ import annotations

import ipaddress
import socket
from contextlib import suppress
from socketserver import ThreadingMixIn
from threading import Lock
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
"""The names by which a browser on this machine addresses the page."""


class Server(ThreadingMixIn, WSGIServer):
    """Has a thread for each connection: browsers hold some open that they do not use yet. Port 0: any."""

    daemon_threads = True
    request_queue_size = 128
    _most_connections = 200

    def __init__(self, host: str, port: int, application: Any) -> None:
        if ":" in host:
            self.address_family = socket.AF_INET6
        self._connections: dict[Any, None] = {}
        self._lock = Lock()
        super().__init__((host, port), _Handler)
        self.set_app(application)
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.server_port}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread. Of too many the oldest one ends: most likely it says nothing."""
        with self._lock:
            self._connections[request] = None
            if len(self._connections) > self._most_connections:
                oldest = next(iter(self._connections))
                del self._connections[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)


class _Handler(WSGIRequestHandler):
    timeout = 30
    """The seconds for which a visitor may leave a request half-sent."""

    def handle(self) -> None:
        """Serve a connection. One that sends nothing in time, or that its browser resets, ends quietly."""
        with suppress(TimeoutError, ConnectionError):
            super().handle()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as Python calls it
        """Log no requests: the log has the actions."""


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can reach a server of this host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
