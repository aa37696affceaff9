"""The page below a path of other applications, as docs/how-to/monitor.md shows it."""

from __future__ import annotations

import asyncio
from typing import Any
from wsgiref.util import shift_path_info

import pytest
from a2wsgi import WSGIMiddleware
from flask import Flask
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client

from celery_exclusive.web import application
from tests.unit.web.conftest import TOKEN, Desk


def _in_flask(page: Any) -> Any:
    flask = Flask("shop")
    flask.wsgi_app = DispatcherMiddleware(flask.wsgi_app, {"/ops/locks": page})
    return flask


def _by_hand(page: Any) -> Any:
    def mounted(environ: Any, start_response: Any) -> Any:
        assert environ["PATH_INFO"].startswith("/ops/locks/")
        shift_path_info(environ)
        shift_path_info(environ)
        return page(environ, start_response)

    return mounted


def _in_fastapi(page: Any) -> Any:
    """As a Mount of Starlette calls an application: the path of the scope begins with its root path."""

    def mounted(environ: Any, start_response: Any) -> Any:
        headers = {name[5:]: text for name, text in environ.items() if name.startswith("HTTP_")}
        headers |= {name: environ.get(name, "") for name in ("CONTENT_TYPE", "CONTENT_LENGTH")}
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": environ["REQUEST_METHOD"],
            "path": environ["PATH_INFO"],
            "root_path": "/ops/locks",
            "query_string": environ["QUERY_STRING"].encode(),
            "headers": [
                (it.lower().replace("_", "-").encode(), text.encode()) for it, text in headers.items()
            ],
        }
        sent = list[Any]()

        async def receive() -> Any:
            return {"type": "http.request", "body": environ["wsgi.input"].read()}

        async def send(message: Any) -> None:
            sent.append(message)

        locks = WSGIMiddleware(page)
        asyncio.run(locks(scope, receive, send))
        locks.executor.shutdown()
        status, *body = sent
        headers = [(name.decode(), text.decode()) for name, text in status["headers"]]
        start_response(f"{status['status']} -", headers)
        return [message["body"] for message in body]

    return mounted


@pytest.mark.promise(
    "Mounted below a path, in Flask, FastAPI or by hand, the page signs visitors in and keeps its cookie to "
    "itself",
    broke="a cookie for all paths; links from the root",
)
@pytest.mark.parametrize("mount", [_in_flask, _in_fastapi, _by_hand])
def test_a_mounted_page_signs_visitors_in(desk: Desk, mount: Any) -> None:
    desk.acquire("x:k", "holder")
    client = Client(mount(application(desk.app, token=TOKEN)))
    url = "http://shop.example/ops/locks/"
    assert client.get(f"{url}keys").status_code == 403
    made = client.post(f"{url}sign-in", data={"name": "Ada", "token": TOKEN, "target": "keys"})
    assert (made.status_code, made.headers["Location"]) == (303, "keys")
    assert "Path" not in made.headers["Set-Cookie"]  # the browser takes the folder of the page
    shown = client.get(f"{url}key?key=x:k")
    assert (shown.status_code, "release?key=x%3Ak" in shown.text) == (200, True)
