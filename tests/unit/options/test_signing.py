"""Which headers and parked messages are accepted, and which are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from kombu.utils.json import dumps, loads

from celery_exclusive import Exclusive, Unique, install
from celery_exclusive.core.claim import Claim
from celery_exclusive.core.operations import Acquire, Release
from celery_exclusive.core.records import SECOND
from celery_exclusive.messages.header import HEADER, Header, read_header
from celery_exclusive.messages.stored import StoredMessage
from celery_exclusive.options.signing import Signer

OLD, NEW = "the old secret of the shop", "the new secret of the shop"
HEADER_OF_A = Header(
    "1a2b3c4d",
    "x:k",
    ("u:日本", "finished"),
    ("exclusive",),
    {"unique": {"skip_result": {10: (1, 0.1), 9: None, "a": "\ud800"}}},
    since=0.1 + 0.2,
)


def journey(fields: dict[str, Any]) -> Any:
    """What arrives of a header."""
    return loads(dumps(fields))


def read(
    fields: dict[str, Any], signer: Signer, task_id: str = "a", task_name: str = "shop.load"
) -> Header | None:
    services: Any = SimpleNamespace(signer=signer)
    return read_header(services, {HEADER: journey(fields)}, task_id, task_name)


def test_a_signed_header_is_read_whole_after_its_journey() -> None:
    signer = Signer((NEW,), "cx")
    header = read(signer.sign_header(HEADER_OF_A.write(), "a", "shop.load"), signer)
    assert header == Header.of(journey(HEADER_OF_A.write()))
    assert header
    assert header.unique == ("u:日本", "finished")


@pytest.mark.promise(
    "With `exclusive_secret` a header is accepted only if it was signed for its task id, whatever else was "
    "written into it",
    name="signed headers",
    broke=(
        "signatures without task id, namespace, or lengths; the header not checked; a publisher's lease "
        "that is not taken over"
    ),
)
@pytest.mark.parametrize("field", [*HEADER_OF_A.write(), "unknown"])
def test_a_header_with_one_field_changed_is_not_accepted(field: str) -> None:
    signer = Signer((NEW,), "cx")
    signed = signer.sign_header(HEADER_OF_A.write(), "a", "shop.load")
    changed = "other" if field != "v" else True
    assert read({**signed, field: changed}, signer) is None


@pytest.mark.parametrize("signature", [None, 7, "", "é", "0" * 64, ["0" * 64], "\ud800"])
def test_a_header_with_another_signature_is_not_accepted(signature: Any) -> None:
    signer = Signer((NEW, None), "cx")
    signed = signer.sign_header(HEADER_OF_A.write(), "a", "shop.load")
    assert read({**signed, "sig": signature}, signer) is None


@pytest.mark.proves("signed headers")
def test_a_header_of_another_task_namespace_or_secret_is_not_accepted() -> None:
    signer = Signer((NEW,), "cx")
    signed = signer.sign_header(HEADER_OF_A.write(), "a", "shop.load")
    assert read(signed, signer, task_id="b") is None
    assert read(signed, Signer((NEW,), "cy")) is None
    assert read(signed, Signer((OLD,), "cx")) is None
    assert read(signed, Signer((NEW + " ",), "cx")) is None


@pytest.mark.proves("signed headers")
def test_a_header_without_a_signature_is_accepted_only_without_a_secret_or_where_none_is_among_them() -> None:
    fields = HEADER_OF_A.write()
    assert read(fields, Signer((), "cx"))
    assert read(fields, Signer((NEW, None), "cx"))
    assert read(fields, Signer((NEW,), "cx")) is None
    assert read(fields, Signer((NEW, OLD), "cx")) is None


def test_without_a_secret_a_signed_header_is_read_like_any_other() -> None:
    signed = Signer((NEW,), "cx").sign_header(HEADER_OF_A.write(), "a", "shop.load")
    assert read(signed, Signer((), "cx"))
    assert Signer((), "cx").sign_header(HEADER_OF_A.write(), "a", "shop.load") == HEADER_OF_A.write()


@pytest.mark.promise(
    "A secret can be introduced and changed while tasks wait",
    name="change of the secret",
    broke="only the first secret is accepted",
)
@pytest.mark.parametrize("secrets", [(NEW, OLD), (OLD, NEW)])
def test_a_signature_of_an_old_secret_is_accepted_until_the_secret_is_removed(secrets: Any) -> None:
    before, now, after = Signer((OLD,), "cx"), Signer(secrets, "cx"), Signer((NEW,), "cx")
    old = before.sign_header(HEADER_OF_A.write(), "a", "shop.load")
    kept = before.sign_parked(b"{}", "x:k", "a/p")
    assert read(old, now)
    assert now.open_parked(kept, "x:k", "a/p") == b"{}"
    assert read(old, after) is None
    assert after.open_parked(kept, "x:k", "a/p") is None
    signs_first = after if secrets[0] == NEW else before
    assert read(now.sign_header(HEADER_OF_A.write(), "a", "shop.load"), signs_first)


@pytest.mark.promise(
    "A message in a line is published only if it was signed for this key and this id. Another one is "
    "reported once, and the line goes on",
    name="signed messages in line",
    broke="signatures without key, without id; not verified; not removed",
)
@pytest.mark.parametrize("place", [("x:other", "a/p"), ("x:k", "b/p"), ("x:k", "a/q"), ("x:ka", "/p")])
def test_a_parked_message_copied_to_another_key_or_id_is_not_accepted(place: tuple[str, str]) -> None:
    signer = Signer((NEW,), "cx")
    kept = signer.sign_parked(b'{"v":1}', "x:k", "a/p")
    assert signer.open_parked(kept, "x:k", "a/p") == b'{"v":1}'
    assert signer.open_parked(kept, *place) is None
    assert Signer((NEW,), "cy").open_parked(kept, "x:k", "a/p") is None


@pytest.mark.parametrize(
    "change",
    [
        lambda kept: kept[:-1],
        lambda kept: kept + b" ",
        lambda kept: kept.replace(b"{", b"["),
        lambda kept: b"signed " + b"0" * 64 + kept[71:],
        lambda kept: b"signed \xff",
        lambda kept: b"signed ",
        lambda kept: b"",
        lambda kept: kept[72:],
    ],
    ids=[
        "shorter",
        "longer",
        "other content",
        "other signature",
        "no text",
        "a mark alone",
        "nothing",
        "stripped",
    ],
)
def test_a_parked_message_with_one_byte_changed_is_not_accepted(change: Callable[[bytes], bytes]) -> None:
    signer = Signer((NEW,), "cx")
    kept = signer.sign_parked(b'{"v":1}', "x:k", "a/p")
    assert signer.open_parked(change(kept), "x:k", "a/p") is None


@pytest.mark.proves("change of the secret")
def test_an_app_without_a_secret_leaves_a_signed_message_to_apps_that_have_one() -> None:
    kept = Signer((NEW,), "cx").sign_parked(b"{}", "x:k", "a/p")
    with pytest.raises(LookupError, match="exclusive_secret"):
        Signer((), "cx").open_parked(kept, "x:k", "a/p")
    assert Signer((), "cx").open_parked(b"{}", "x:k", "a/p") == b"{}"
    assert Signer((NEW, None), "cx").open_parked(b"{}", "x:k", "a/p") == b"{}"


@pytest.mark.proves("change of the secret")
def test_a_secret_behind_none_signs_nothing_and_verifies_both() -> None:
    signer = Signer((None, NEW), "cx")
    assert signer.sign_parked(b"{}", "x:k", "a/p") == b"{}"
    assert signer.sign_header({"id": "p"}, "a", "t") == {"id": "p"}
    kept = Signer((NEW,), "cx").sign_parked(b"{}", "x:k", "a/p")
    assert {signer.open_parked(it, "x:k", "a/p") for it in (kept, b"{}")} == {b"{}"}
    assert signer.open_parked(kept[:-1], "x:k", "a/p") is None
    assert Signer((OLD,), "cx").open_parked(kept, "x:k", "a/p") is None


@pytest.mark.proves("secret stays secret")
def test_the_secret_is_not_in_the_text_of_a_signer_or_of_an_installation(
    make_app: Callable[..., Celery],
) -> None:
    app = install(make_app(exclusive_secret=[NEW, OLD]))
    services = app._celery_exclusive  # type: ignore[attr-defined]
    for shown in (services.signer, services.settings, services):
        assert NEW not in repr(shown)
        assert OLD not in repr(shown)


# Published and parked -------------------------------------------------------------------------------------


@pytest.fixture
def shop(make_app: Callable[..., Celery]) -> Iterator[Celery]:
    app = install(make_app(exclusive_secret=NEW))

    @app.task(name="shop.load", shared=False, exclusive=Exclusive("n"), unique=Unique())
    def load(n: int) -> None: ...

    app.finalize()
    yield app
    app._celery_exclusive.store.clear()  # type: ignore[attr-defined]


@pytest.mark.proves("signed for one task")
def test_a_call_is_published_with_a_signature_for_its_task_id(
    shop: Celery, published: list[dict[str, Any]]
) -> None:
    task: Any = shop.tasks["shop.load"]
    task.delay(1)
    task.apply_async((2,), unique=None)
    task.apply_async((3,), unique=None, task_id="mine")
    services = shop._celery_exclusive  # type: ignore[attr-defined]
    for headers in published:
        assert headers["task"] == "shop.load"
        assert read_header(services, headers, headers["id"])
        assert read_header(services, headers, "another") is None
        assert read_header(services, {**headers, "task": "shop.another"}, headers["id"]) is None
    assert published[2]["id"] == "mine"


@pytest.mark.proves("signed headers")
def test_a_retry_of_a_message_with_a_forged_header_follows_nothing_of_it(
    shop: Celery, published: list[dict[str, Any]]
) -> None:
    task: Any = shop.tasks["shop.load"]
    header = Header("p", "x:forged", values={"exclusive": {"limit": 100}}).write()
    task.apply_async((1,), task_id="t", retries=1, unique=None, headers={HEADER: header})
    assert published[0][HEADER]["exclusive"] != "x:forged"
    assert published[0][HEADER].get("values") is None


class Published(list[StoredMessage]):
    """Stands where a Republisher would send to the broker."""

    def publish(self, stored: StoredMessage, *, at_head: bool = False) -> None:
        self.append(stored)


@pytest.fixture
def republisher(monkeypatch: pytest.MonkeyPatch) -> Published:
    sent = Published()
    monkeypatch.setattr(
        "celery_exclusive.messages.republish.Republisher.publish",
        lambda _, stored, **way: sent.publish(stored),
    )
    return sent


def park(store: Any, key: str, id: str) -> None:
    header = {
        "id": id.partition("/")[0],
        "task": "shop.load",
        HEADER: Header(id.partition("/")[2], key).write(),
    }
    stored = StoredMessage(b"[[1], {}, {}]", "application/json", "utf-8", header, {}, "", "celery")
    store.apply(key, Acquire(id, "token", 30 * SECOND, message=stored.dump()))


@pytest.mark.proves("signed messages in line")
def test_a_message_that_was_changed_in_the_store_is_removed_and_reported_once_and_the_line_goes_on(
    shop: Celery, republisher: Published, caplog: pytest.LogCaptureFixture
) -> None:
    store = shop._celery_exclusive.store  # type: ignore[attr-defined]
    holder = Claim("x:k", "holder/p", "t", 30 * SECOND)
    store.apply("x:k", holder.acquire())
    for id in ("copied/p", "unsigned/p", "genuine/p"):
        park(store, "x:k", id)
    parked = store._memory.keys["x:k"].messages
    parked["copied/p"] = parked["genuine/p"]
    parked["unsigned/p"] = parked["unsigned/p"].partition(b" ")[2].partition(b" ")[2]
    store.apply("x:k", Release("holder/p", "t"))
    shop._celery_exclusive.courier.close()  # type: ignore[attr-defined]
    assert [stored.headers["id"] for stored in republisher] == ["genuine"]
    told = [record for record in caplog.records if "no signature" in record.message]
    assert [record.levelname for record in told] == ["ERROR", "ERROR"]
    assert "copied/p" in told[0].message
    assert "x:k" in told[0].message
    assert store.inspect("x:k").waiting == 1
