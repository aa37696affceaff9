"""The arguments of a stored message: as log lines show them, and none that must not be seen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from celery_exclusive import Exclusive, Unique, install
from celery_exclusive.messages.header import HEADER, Header
from celery_exclusive.messages.stored import StoredMessage
from celery_exclusive.operate.calls import UNKNOWN, StoredCall, read_call

TASK, KEY, ID = "shop.load", "x:shop.load:1", "a/p"


@pytest.fixture
def app() -> Iterator[Celery]:
    app = install(Celery("shop", broker="memory://", set_as_current=False))
    app.conf.exclusive_store = "memory://calls"

    @app.task(name=TASK, shared=False, exclusive=Exclusive("url"), unique=Unique())
    def load(url: str, full: bool = False) -> None: ...

    @app.task(name="shop.all", shared=False, exclusive=Exclusive())
    def load_all(password: str = "") -> None: ...

    app.finalize()
    yield app
    app.close()


def stored(task: object = TASK, header: dict[str, Any] | None = None, **headers: Any) -> bytes:
    headers = {"argsrepr": "('u',)", "kwargsrepr": "{}", **headers}
    ours = Header("p", KEY, **(header or {})).write()
    return StoredMessage(b"", "", "", {"task": task, HEADER: ours, **headers}, {}, "", "feeds").dump()


def read(app: Any, kept: bytes, key: str = KEY) -> StoredCall:
    return read_call(app._celery_exclusive, key, ID, kept)


@pytest.mark.promise(
    "Commands show the arguments of a stored message as log lines do: by name where they can be read back, "
    "of a key only the ones that make it, shortened; what the caller masked stays masked, for a retry too. "
    "With `exclusive_preview=False`, without a valid signature, and of a message that cannot be read they "
    "show none",
    name="arguments in commands",
    broke="argsrepr of a masked retry shown; exclusive_preview not asked; the message opened without its id",
)
def test_arguments_are_shown_by_their_names(app: Celery) -> None:
    assert read(app, stored()) == StoredCall(TASK, "feeds", "url='u', full=False", "url='u'")
    by_name = stored(argsrepr="()", kwargsrepr="{'url': 'u', 'full': True}")
    assert read(app, by_name).args == "url='u', full=True"
    assert read(app, stored(), "u:shop.load:2").args_of_key == "url='u', full=False"
    assert read(app, stored("shop.all", argsrepr="('p',)")).args_of_key == ""


@pytest.mark.proves("arguments in commands")
def test_long_arguments_are_shortened(app: Celery) -> None:
    shown = read(app, stored(argsrepr=repr(("u" * 500,)))).args
    assert shown is not None
    assert shown.startswith("url='uuu")
    assert len(shown) <= 80


@pytest.mark.proves("arguments in commands")
def test_arguments_that_celery_has_cut_are_shown_as_it_has_written_them(app: Celery) -> None:
    call = read(app, stored(argsrepr="('u...',)"))
    assert call.args == call.args_of_key == "('u...',) {}"
    assert read(app, stored("unknown.task", argsrepr="(1,)")).args == "(1,) {}"


@pytest.mark.proves("secret arguments")
def test_arguments_that_may_have_a_secret_are_not_shown_as_they_are_written(app: Celery) -> None:
    assert read(app, stored("shop.all", argsrepr="('hunter2',)")).args == "password=**"
    assert read(app, stored("shop.all", argsrepr="('hunt...',)")).args == "**"
    for headers in (
        {"kwargsrepr": "{'password': 'hunt...'}"},
        {"argsrepr": "(<object>, {'api_key': 'hunter2'})"},
    ):
        assert read(app, stored(**headers)).args == "**"
        assert read(app, stored("unknown.task", **headers)).args == "**"


@pytest.mark.proves("arguments in commands")
def test_masked_arguments_stay_masked_and_a_retry_of_them_shows_none(app: Celery) -> None:
    masked = {"masked": True}
    assert read(app, stored(header=masked, argsrepr="(***)")).args == "(***)"
    assert read(app, stored(header=masked, argsrepr="('secret',)", retries=1)) == StoredCall(TASK, "feeds")


@pytest.mark.proves("arguments in commands")
def test_no_arguments_are_shown_where_logs_show_none(app: Celery) -> None:
    app.conf.exclusive_preview = False
    assert read(app, stored()) == StoredCall(TASK, "feeds")


@pytest.mark.proves("arguments in commands")
def test_a_message_without_a_valid_signature_is_not_shown(app: Any) -> None:
    app.conf.exclusive_secret = "a secret of sixteen or more"
    services = app._celery_exclusive
    signed = services.signer.sign_parked(stored(), KEY, ID)
    assert read(app, signed).task == TASK
    assert read(app, stored()) == read_call(services, KEY, "b/p", signed) == UNKNOWN


@pytest.mark.proves("arguments in commands")
@pytest.mark.parametrize(
    "kept",
    [
        b"",
        b"\xff",
        b"null",
        b"[]",
        b"{" * 100_000,
        b'{"v": 9}',
        b'{"v": 1, "body": 1, "coding": "text"}',
        stored().replace(b'"v": 1', b'"v": 2'),
    ],
    ids=lambda kept: repr(kept[:12]),
)
def test_a_message_that_cannot_be_read_is_unknown(app: Celery, kept: bytes) -> None:
    assert read(app, kept) == UNKNOWN


@pytest.mark.proves("arguments in commands")
@pytest.mark.parametrize(
    "text", ["(" * 900, "-" * 1900 + "1", "9" * 1900, "[]", "{1: 2}", "open('x')", "\0", 7, None]
)
def test_arguments_of_another_program_are_only_text(app: Celery, text: Any) -> None:
    for headers in ({"argsrepr": text}, {"argsrepr": "()", "kwargsrepr": text}):
        call = read(app, stored(**headers))
        assert call.task == TASK
        assert all(shown is None or len(shown) <= 80 for shown in (call.args, call.args_of_key))
