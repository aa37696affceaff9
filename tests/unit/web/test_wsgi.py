"""The page between other software: mounts, methods, sizes, hosts and headers."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from celery_exclusive.errors import OptionError
from celery_exclusive.web import application
from tests.unit.web.conftest import Desk


@pytest.mark.promise(
    "Each response of the page forbids scripts, frames, other sites and caches, also an error",
    broke="errors without the headers",
)
def test_each_response_forbids_scripts_frames_and_caches(desk: Desk):
    visitor = desk.visitor()
    answers = [visitor.get(page) for page in ("", "keys", "style.css", "no-such-page")]
    answers += [visitor.get(method="PUT"), visitor.get("keys", q="x" * 9_000)]
    assert [answer.status for answer in answers] == [200, 200, 200, 404, 405, 414]
    for answer in answers:
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith(
            "default-src 'none'; style-src 'self'; form-action 'self'; frame-ancestors 'none'"
        )
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        for word in ("<script", "style=", "onclick", "javascript:", "http://", "https://"):
            assert word not in answer.html


def test_a_head_has_the_headers_of_a_get_and_no_body(desk: Desk):
    visitor = desk.visitor()
    asked, headed = visitor.get("style.css"), visitor.get("style.css", method="HEAD")
    assert (headed.status, headed.html, headed.headers) == (200, "", asked.headers)
    assert int(headed.headers["Content-Length"]) == len(asked.html)


@pytest.mark.promise(
    "The page works under any path: each of its links stays below it",
    broke="links from the root",
)
@pytest.mark.parametrize("mount", ["", "/ops/locks"])
def test_every_link_stays_below_the_mount(desk: Desk, mount: str):
    desk.acquire("x:k", *(f"task{number}" for number in range(60)))
    visitor = desk.visitor(signed_in=True, mount=mount)
    seen, found = set[str](), {f"{mount}/"}
    while found - seen:
        url = min(found - seen)
        seen.add(url)
        if "drop?" in url:
            continue  # for 60 tasks
        answer = visitor.open(url)
        assert answer.status == 200, url
        found |= {link.partition("#")[0] for link in answer.links if not link.startswith("#")}
        found = {url for url in found if "task" not in url or "task1" in url}
    assert all(url.startswith(f"{mount}/") for url in seen)
    assert len(seen) > 10


@pytest.mark.parametrize(
    ("mount", "place"), [("/ops/locks", "./locks/"), ("/lö".encode().decode("latin-1"), "./l%C3%B6/")]
)
def test_a_mount_without_its_slash_is_completed(desk: Desk, mount: str, place: str):
    visitor = desk.visitor(mount=mount)
    visitor.environ["PATH_INFO"] = ""
    answer = visitor.get()
    assert (answer.status, answer.headers["Location"]) == (302, place)


@pytest.mark.promise(
    "A page for one machine answers no other name of its address, so no site can read it by DNS rebinding",
    broke="the name not checked",
)
@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9808", 200),
        ("localhost", 200),
        ("LOCALHOST:1", 200),
        ("[::1]:9808", 200),
        ("[::1]", 200),
        ("evil.example", 421),
        ("evil.example:9808", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost:evil.example", 200),
        ("", 421),
        ("[", 421),
        ("user@localhost", 421),
        ("localhost/evil", 421),
    ],
)
def test_another_name_of_the_host_is_refused(desk: Desk, host: str, status: int):
    visitor = desk.visitor(hosts={"localhost", "127.0.0.1", "::1"})
    visitor.environ["HTTP_HOST"] = host
    answer = visitor.get()
    assert answer.status == status
    assert ("memory://" in answer.html) == (status == 200)


@pytest.mark.parametrize(
    ("environ", "status"),
    [
        ({"CONTENT_LENGTH": ""}, 403),
        ({"CONTENT_LENGTH": "-1"}, 403),
        ({"CONTENT_LENGTH": "²"}, 403),
        ({"CONTENT_LENGTH": "20000"}, 413),
        ({"CONTENT_LENGTH": "9" * 4_000}, 413),
        ({"CONTENT_TYPE": "multipart/form-data; boundary=x"}, 403),
        ({"CONTENT_TYPE": "application/json"}, 403),
        ({"CONTENT_TYPE": "APPLICATION/x-www-form-urlencoded; charset=utf-8"}, 403),
    ],
)
def test_a_form_of_another_kind_or_size_is_refused(desk: Desk, environ: dict[str, Any], status: int):
    assert desk.visitor(signed_in=True).post("release", {"key": "x:k"}, **environ).status == status


def test_bytes_that_are_no_text_are_no_key(desk: Desk):
    visitor = desk.visitor()
    visitor.environ["QUERY_STRING"] = "key=%ff%fe%00"
    assert visitor.get("key").status == 200
    visitor.environ["PATH_INFO"] = "/\xff\xfe"
    assert visitor.get().status == 404
    assert visitor.post("keys", {}).status == 404


@pytest.mark.parametrize("query", ["\xff", "q=\xe4&x=%ff"])
def test_a_byte_that_no_browser_sends_is_refused(desk: Desk, query: str):
    visitor = desk.visitor()
    visitor.environ["QUERY_STRING"] = query
    assert visitor.get().status == 400


def test_the_names_of_a_query_are_no_names_of_the_page(desk: Desk):
    desk.acquire("x:k", "holder", "waits")
    names = ("self", "caller", "page", "target", "file", "request", "_Context__self", "kwargs")
    for page in ("", "keys", "key", "why"):
        query = {"key": "x:k", "q": "waits"} | dict.fromkeys(
            set(names) - ({"page"} if page == "keys" else set()), "1"
        )
        answer = desk.visitor().get(page, **query)
        assert (answer.status, "self=1" in answer.html) == (200, True)


def test_an_error_of_a_callable_is_one_line_of_the_log(desk: Desk, caplog: pytest.LogCaptureFixture):
    def rights(*_: Any) -> Any:
        raise ZeroDivisionError("a\nsecret")

    visitor = desk.visitor(rights=rights)
    visitor.environ["PATH_INFO"] = "/x\n2030-01-01 WARNING forged"
    answer = visitor.get()
    assert (answer.status, "secret" in answer.html) == (500, False)
    assert "\n2030" not in caplog.text
    assert "\\x0a2030" in caplog.text


def test_a_page_without_flask_says_what_to_install(desk: Desk, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "flask", None)
    monkeypatch.delitem(sys.modules, "celery_exclusive.web.wsgi", raising=False)
    with pytest.raises(OptionError, match=r"pip install 'celery-exclusive\[web\]'"):
        application(desk.app)
