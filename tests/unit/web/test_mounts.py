"""The page below a path of other applications, as docs/page.md shows it."""

from __future__ import annotations

from typing import Any
from wsgiref.util import shift_path_info

import pytest
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


@pytest.mark.promise(
    "Mounted below a path, in Flask or by hand, the page signs visitors in and keeps its cookie to itself",
    broke="a cookie for all paths; links from the root",
)
@pytest.mark.parametrize("mount", [_in_flask, _by_hand])
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
