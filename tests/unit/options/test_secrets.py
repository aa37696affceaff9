"""What a URL hides: no password is in an error, a representation or a report, however badly it is written."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_exclusive import OptionError, install
from celery_exclusive.brokers import broker_id
from celery_exclusive.display import safe_url
from celery_exclusive.messages.header import Header
from celery_exclusive.messages.stored import StoredMessage
from celery_exclusive.options.settings import Settings
from celery_exclusive.stores.base import open_store
from celery_exclusive.stores.choose import choose
from celery_exclusive.stores.redis.address import parse

HALVES = "hunter", "drowssap"
PASSWORDS = [
    f"hunter{sign}drowssap" for sign in ("/", "#", "@", "?", "%", " ", ":", "[", "]", "\n", "\u2100", "%2")
]
NUMBERS = ["1/drowssap", "1#drowssap", "1?drowssap", "1/2@drowssap", "1?a=drowssap"]
"""What begins like a port."""
SCHEMES = ["redis", "rediss", "redis+socket", "valkey", "sqlite", "sentinel", "orakel", "", "memcached"]
WITH_USERS = ["postgresql", "postgresql+psycopg", "mysql", "mariadb+pymysql"]
"""What stands alone before an "@" is the name of a user there."""


def assert_hides(text: str) -> None:
    assert not [half for half in HALVES if half in text], text


def told(call: Callable[[], Any]) -> str:
    """What is shown of a store that opens, or of the error that it ends with."""
    try:
        return str(call().url)
    except OptionError as error:
        return str(error)


@pytest.mark.promise(
    "No part of a password is in an error, a representation, the banner or a report, however badly its URL "
    "is written (17 passwords with / # @ ? % : [ ] and spaces, encoded or not; Celery 5.4 to 5.7)",
    name="passwords",
    broke="all red before; the texts of `urlsplit`, of the setting, of what stands before `://`",
)
@pytest.mark.parametrize("password", [*PASSWORDS, *NUMBERS])
def test_a_url_shows_no_part_of_a_password_that_is_not_encoded(password: str) -> None:
    for scheme in (*SCHEMES, *WITH_USERS):
        alone = f"{scheme}://{password.replace(':', '')}@example.org"
        for url in (
            f"{scheme}://:{password}@example.org/1",
            f"{scheme}://me:{password}@example.org:6380/1?db=2",
            *([alone] if scheme in SCHEMES else []),
            f"{scheme}://example.org?password={password}",
            f"{scheme}:/:{password}@example.org",
            f":{password}@example.org",
        ):
            assert_hides(told(partial(open_store, url)))
            assert_hides(safe_url(url))


def test_a_url_shows_its_place() -> None:
    assert safe_url("redis://me:a/b#c@d@example.org:6380/1?db=2") == "redis://**@example.org:6380/1"
    assert safe_url("redis://example.org?password=p@ss") == "redis://**"
    assert safe_url("sqlite:////srv/locks.db?timeout=3") == "sqlite:////srv/locks.db"


@pytest.mark.proves("passwords")
@pytest.mark.parametrize("url", ["redis://:{}@h/x", "redis://:{}@h:x", "redis://:{}@h?socket_timeout=x"])
def test_a_url_that_is_wrong_elsewhere_shows_no_password(url: str) -> None:
    text = told(lambda: open_store(url.format("hunter%2Fdrowssap")))
    assert "exclusive_store: " in text
    assert_hides(text)


@pytest.mark.proves("passwords")
@pytest.mark.parametrize("password", [*PASSWORDS, *NUMBERS])
def test_a_url_that_was_found_and_does_not_fit_shows_no_password(password: str) -> None:
    conf: Any = SimpleNamespace(
        result_backend=f"mongodb:/:{password}@h", broker_write_url=f":{password}@h", get=lambda *_: None
    )
    with pytest.raises(OptionError, match="nothing that can keep locks") as refused:
        choose(conf, None)
    assert_hides(str(refused.value))


@pytest.mark.proves("passwords")
@pytest.mark.parametrize("sign", "/#?[]\u2100")
def test_a_broker_whose_url_cannot_be_understood_shows_no_password(sign: str) -> None:
    with pytest.raises(OptionError, match=r"^broker_url: cannot understand this amqp:// URL") as refused:
        broker_id({"broker_url": f"amqp://me:hunter{sign}drowssap@h//"})
    assert_hides(str(refused.value))


@pytest.mark.proves("passwords")
@pytest.mark.parametrize("name", ["exclusive_store"])
@pytest.mark.parametrize("value", [":hunter@h", ["redis://:hunter@h"], b"redis://:hunter@h"])
def test_a_setting_that_may_hold_a_secret_is_refused_without_its_value(name: str, value: Any) -> None:
    with pytest.raises(
        OptionError, match=f"setting {name} is a {type(value).__name__} that is not shown"
    ) as wrong:
        Settings(**{name: value})
    assert_hides(str(wrong.value))


@pytest.mark.proves("passwords")
def test_representations_show_neither_passwords_nor_messages() -> None:
    url = "redis://:hunter@h"
    stored = StoredMessage(
        b"hunter", "application/json", "utf-8", {"exclusive": Header("p").write()}, {}, "", "q"
    )
    shown = f"{Settings(exclusive_store=url, exclusive_ttl=7)} {parse(url)} {stored}"
    assert_hides(shown)
    assert "exclusive_ttl=7" in shown


CONFIGURED: dict[str, Callable[[Celery], None]] = {
    "by update": lambda app: app.conf.update(
        exclusive_store="redis://:hunter@h/1", exclusive_secret="hunter"
    ),
    "by object": lambda app: app.config_from_object(
        {"exclusive_store": "redis://:hunter@h/1", "exclusive_secret": "hunter"}
    ),
    "in Django": lambda app: app.config_from_object(
        SimpleNamespace(CELERY_EXCLUSIVE_STORE="redis://:hunter@h/1", CELERY_EXCLUSIVE_SECRET="hunter"),
        namespace="CELERY",
    ),
    "misspelt": lambda app: app.conf.update(exclusive_stor="redis://:hunter@h/1"),
}


@pytest.mark.proves("reports without secrets")
@pytest.mark.parametrize("way", CONFIGURED)
@pytest.mark.parametrize("order", ["installed first", "installed last", "loaded between"])
def test_a_report_shows_where_the_store_is_and_no_secret(way: str, order: str) -> None:
    app = Celery("reported", broker="memory://", set_as_current=False)
    if order == "installed first":
        install(app)
    CONFIGURED[way](app)
    if order == "loaded between":
        assert app.conf.task_default_queue
    install(app)
    for shown in (app.conf.humanize(), app.conf.humanize(with_defaults=True), repr(app.conf.table())):
        assert "redis://**@h/1" in shown
        assert_hides(shown)
    assert "redis://:hunter@h/1" in repr(app.conf.table(censored=False))
    app.close()
