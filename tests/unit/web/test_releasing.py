"""Signing in and acting on the page, asked as a WSGI server asks it."""

from __future__ import annotations

import logging
import re
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from urllib.parse import urlencode

import pytest

from celery_exclusive.core.operations import AcquireAlone
from celery_exclusive.errors import OptionError
from celery_exclusive.web import application
from tests.unit.web.conftest import TOKEN, Desk, Visitor


def _holders(desk: Desk, key: str = "x:k") -> list[str]:
    return [owner.id.partition("/")[0] for owner in desk.store.inspect(key).holders]


@pytest.fixture
def visitor(desk: Desk) -> Visitor:
    desk.acquire("x:k", "holder", "next")
    return desk.visitor(signed_in=True)


@pytest.mark.promise(
    "The page releases a held key only after two questions, with a reason, and only from the holders that "
    "the visitor has seen; the log names the visitor, the holder and the reason",
    name="release on the page",
    broke="the second question or the reason left out; a form sent twice releases the next holder",
)
def test_a_held_key_is_released_after_two_questions_with_a_reason(
    desk: Desk, visitor: Visitor, caplog: pytest.LogCaptureFixture
):
    first = visitor.get("release", key="x:k")
    assert "holder" in first.text
    assert visitor.post("release", first.fields).status == 400
    second = visitor.post("release", {**first.fields, "reason": "it hangs"})
    assert "may still run" in second.text
    assert _holders(desk) == ["holder"]
    done = visitor.post("release", second.fields)
    assert (done.status, "Released the lease of holder" in done.text) == (200, True)
    assert _holders(desk) == []
    (record,) = (record for record in caplog.records if "was released" in record.message)
    assert record.levelno == logging.WARNING
    assert record.message.startswith(
        "lock x:k was released by force by Ada (it hangs): it was held by holder"
    )
    assert desk.store.inspect("x:k").line[0].is_offered


@pytest.mark.proves("release on the page")
def test_a_form_that_is_sent_twice_does_not_release_the_next_holder(desk: Desk, visitor: Visitor):
    second = visitor.post("release", {**visitor.get("release", key="x:k").fields, "reason": "it hangs"})
    assert visitor.post("release", second.fields).status == 200
    assert visitor.post("release", second.fields).status == 409
    epoch = desk.store.epoch()
    desk.acquire("x:k", "next", promoted=epoch)
    assert _holders(desk) == ["next"]
    assert visitor.post("release", second.fields).status == 409
    assert _holders(desk) == ["next"]


def test_a_key_that_no_task_holds_is_not_released(desk: Desk, visitor: Visitor):
    assert visitor.get("release", key="x:free").status == 404
    assert visitor.get("release").status == 400


def test_a_queued_key_is_released_after_one_question(desk: Desk, visitor: Visitor):
    desk.store.apply("u:k", AcquireAlone("queued/00000000", "00000000", 10**9, phase="queued"))
    asked = visitor.get("release", key="u:k")
    assert "reason" not in asked.html
    assert "Released the lease of queued" in visitor.post("release", asked.fields).text
    assert _holders(desk, "u:k") == []


@pytest.mark.promise(
    "A page with a token shows nothing of the store to a visitor without it, a page without one changes "
    "nothing, and no other site can send its forms",
    name="rights of the page",
    broke="the proof of a form not checked; a cookie of another token accepted; an action done by GET",
)
def test_nothing_is_shown_before_a_visitor_has_signed_in(desk: Desk):
    desk.acquire("x:k", "holder")
    visitor = desk.visitor(token=TOKEN)
    for page in ("", "keys", "key", "why", "release", "sign-out", "no-such-page"):
        answer = visitor.get(page, key="x:k")
        assert (answer.status, "Sign in" in answer.text, "memory://" in answer.html) == (403, True, False)
    assert visitor.get("style.css").status == 200
    assert visitor.sign_in(token="another token here").status == 403
    assert visitor.sign_in(name=" ").status == 403
    assert visitor.get().status == 403
    assert visitor.sign_in().status == 303
    assert visitor.get().status == 200


def test_signing_in_leads_to_the_page_that_was_asked_for(desk: Desk):
    visitor = desk.visitor(token=TOKEN)
    asked = visitor.get("key", key="x=a&b\n")
    assert visitor.sign_in(**asked.fields).headers["Location"] == "key?key=x%3Da%26b%0A"
    many = {str(number): "1" for number in range(40)}
    assert visitor.sign_in(target=f"keys?{urlencode(many)}").headers["Location"].count("=1") == 40


@pytest.mark.parametrize(
    "target", ["//evil.example/", "https://evil.example", "sign-out", "\\evil", "key\r\nX: 1"]
)
def test_a_form_to_sign_in_leads_nowhere_else(desk: Desk, target: str):
    assert desk.visitor(token=TOKEN).sign_in(target=target).headers["Location"] == "./"


def test_the_cookie_is_kept_from_scripts_other_sites_and_plain_connections(desk: Desk):
    visitor = desk.visitor(token=TOKEN)
    kept = visitor.sign_in().headers["Set-Cookie"]
    assert "; HttpOnly; SameSite=Strict" in kept
    assert "Secure" not in kept
    visitor.environ["wsgi.url_scheme"] = "https"
    assert "; Secure;" in visitor.sign_in().headers["Set-Cookie"]


@pytest.mark.proves("rights of the page")
def test_a_cookie_that_was_changed_or_is_of_another_token_is_none(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
):
    visitor = desk.visitor(signed_in=True)
    name, _, good = visitor.cookie.partition("=")
    assert visitor.get().status == 200
    other = desk.visitor(token="another token here")
    other.cookie = visitor.cookie
    assert other.get().status == 403
    content, _, signature = good.partition(".")
    eve = urlsafe_b64encode(urlsafe_b64decode(content + "==").replace(b"Ada", b"Eve")).decode().rstrip("=")
    assert eve != content
    for bad in ("", "x", good[:-1], f"{eve}.{signature}", "9" + good, f"..{good}", "é" + good):
        visitor.cookie = f"{name}={bad}"
        assert visitor.get().status == 403
    visitor.cookie = f"{name}={good}"
    later = time.time() + 12 * 3_600 + 2
    monkeypatch.setattr("itsdangerous.timed.time.time", lambda: later)
    assert visitor.get().status == 403


@pytest.mark.proves("rights of the page")
@pytest.mark.parametrize("proof", [None, "", "0" * 64, "é"])
def test_a_form_of_another_site_is_refused(desk: Desk, visitor: Visitor, proof: str | None):
    fields = visitor.get("release", key="x:k").fields
    del fields["proof"]
    if proof is not None:
        fields["proof"] = proof
    answer = visitor.post("release", {**fields, "reason": "r", "sure": "yes"})
    assert (answer.status, _holders(desk)) == (403, ["holder"])
    assert visitor.post("sign-out", fields).status == 403
    assert visitor.get().status == 200


@pytest.mark.proves("rights of the page")
def test_a_get_changes_nothing(desk: Desk, visitor: Visitor):
    second = visitor.post("release", {**visitor.get("release", key="x:k").fields, "reason": "r"})
    for method in ("GET", "HEAD"):
        assert visitor.get("release", method=method, **second.fields).status == 200
    assert _holders(desk) == ["holder"]


@pytest.mark.proves("rights of the page")
def test_a_page_without_a_token_only_shows(desk: Desk):
    desk.acquire("x:k", "holder", "next")
    visitor = desk.visitor()
    shown = visitor.get("key", key="x:k")
    assert "read-only" in shown.text
    assert not any("release" in link or "drop" in link for link in shown.links)
    for page in ("release", "drop", "sign-in", "sign-out"):
        assert visitor.get(page, key="x:k").status in (403, 404)
        assert visitor.post(page, {"key": "x:k", "sure": "yes"}).status in (403, 404)
    assert _holders(desk) == ["holder"]


@pytest.mark.promise(
    "Signing out ends a session also for a copy of its cookie. After ten wrong tokens an address, and no "
    "other, has to pause; the log has the address, behind a proxy with TLS the one that it names; there "
    "the cookie is for HTTPS alone. A callable limits what a visitor of a mounted page may do",
    name="sessions of the page",
    broke="red before: the copy signed in for 12 hours; any number of tries; no address in the log",
)
def test_signing_out_ends_the_session_and_not_only_the_cookie(desk: Desk, visitor: Visitor):
    copy, other = visitor.cookie, Visitor(visitor.page)
    other.sign_in(name="Eve")
    (proof,) = re.findall('name="proof" value="([^"]+)"', visitor.get().html)
    assert visitor.post("sign-out", {"proof": proof}).status == 303
    assert visitor.get().status == 403
    visitor.cookie = copy
    assert visitor.get().status == 403
    assert other.get().status == 200


@pytest.mark.proves("sessions of the page")
def test_an_address_has_to_pause_after_ten_wrong_tokens(desk: Desk, monkeypatch: pytest.MonkeyPatch):
    visitor, other = desk.visitor(token=TOKEN), desk.visitor(token=TOKEN)
    other.page = visitor.page
    visitor.environ["REMOTE_ADDR"], other.environ["REMOTE_ADDR"] = "192.0.2.1", "192.0.2.2"
    for number in range(10):
        visitor.environ["HTTP_X_FORWARDED_FOR"] = f"192.0.2.{number}"  # is nothing without a proxy
        assert visitor.sign_in(token="another token here").status == 403
    paused = visitor.sign_in()
    assert (paused.status, paused.headers["Retry-After"]) == (429, "60")
    assert other.sign_in().status == 303
    monkeypatch.setattr("celery_exclusive.web.door.PAUSE", 0)
    assert visitor.sign_in().status == 303


@pytest.mark.proves("sessions of the page")
def test_all_ipv6_addresses_of_a_network_pause_together(desk: Desk):
    visitor = desk.visitor(token=TOKEN)
    for number in range(10):
        visitor.environ["REMOTE_ADDR"] = f"2001:db8:0:1::{number}"
        assert visitor.sign_in(token="another token here").status == 403
    expected = {"2001:db8:0:1:ffff::1": 429, "2001:db8:0:2::1": 303, "::ffff:192.0.2.1": 303, "no ip": 303}
    for address, status in expected.items():
        visitor.environ["REMOTE_ADDR"] = address
        assert visitor.sign_in().status == status, address


@pytest.mark.proves("sessions of the page")
def test_behind_a_proxy_with_tls_its_visitors_are_told_apart_and_cookies_are_safe(
    desk: Desk, caplog: pytest.LogCaptureFixture
):
    visitor = desk.visitor(token=TOKEN, behind_tls=True)
    for forwarded in ("198.51.100.7", 'in"vented, 198.51.100.7'):
        visitor.environ["HTTP_X_FORWARDED_FOR"] = forwarded
        for _ in range(5):
            visitor.sign_in(token="x\n", name="Eve\n<b>")
    assert r"a visitor from 198.51.100.7 with the name Eve\x0a<b> has shown a wrong token" in caplog.text
    assert visitor.sign_in().status == 429
    visitor.environ["HTTP_X_FORWARDED_FOR"] = "198.51.100.8"
    assert "; Secure;" in visitor.sign_in().headers["Set-Cookie"]
    (proof,) = re.findall('name="proof" value="([^"]+)"', visitor.get().html)
    assert visitor.post("sign-out", {"proof": proof}).headers["Set-Cookie"].count("; Secure;") == 1


@pytest.mark.proves("sessions of the page")
def test_a_callable_limits_what_a_visitor_may_do(desk: Desk):
    desk.acquire("x:k", "holder", "next")
    rights = {"Ada": {"look", "release"}, "Bob": {"look", "drop"}, "Eve": {"drop"}}
    visitor = desk.visitor(token=TOKEN, rights=lambda _environ, name: rights.get(name, {}))
    statuses = dict[str, list[int]]()
    for name in ("Ada", "Bob", "Eve"):
        visitor.sign_in(name=name)
        asked = [visitor.get(page, key="x:k", id="next") for page in ("key", "release", "drop")]
        statuses[name] = [answer.status for answer in asked]
    assert statuses == {"Ada": [200, 403, 403], "Bob": [200, 403, 200], "Eve": [403] * 3}
    rights["Ada"] |= {"force"}
    visitor.sign_in(name="Ada")
    assert visitor.get("release", key="x:k").status == 200
    reader = desk.visitor(rights=lambda environ, _name: environ["REMOTE_USER"].split())
    for user, status in (("", 403), ("look release force drop", 200)):
        reader.environ["REMOTE_USER"] = user
        assert reader.get().status == status
        assert reader.get("release", key="x:k").status == 403


def test_a_token_that_is_no_text_is_one(desk: Desk):
    token = "a token for tests \udcff"
    assert (
        Visitor(application(desk.app, token=token))
        .sign_in(token=token.encode(errors="replace").decode())
        .status
        == 303
    )


@pytest.mark.parametrize("token", ["", "fifteen letters"])
def test_a_short_token_is_refused(desk: Desk, token: str):
    with pytest.raises(OptionError, match="16 characters or more"):
        application(desk.app, token=token)
