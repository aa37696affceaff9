"""A parked message comes back whole, and a task stays what its author made of it."""

from __future__ import annotations

import pickle
from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, group
from celery.result import AsyncResult

from celery_exclusive.errors import ExclusiveError
from tests.worker.lab import Lab, eventually

DEADLINE = 60
UNICODE = "grüße, 日本語, \U0001f9ea, ￿, \x00, \u2028"


@pytest.fixture
def shop(make_lab: Callable[..., Lab], acks: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Lab:
    """One worker of four, which also takes pickle and a second queue."""
    monkeypatch.setenv("C_FORCE_ROOT", "1")  # as root, Celery refuses pickle otherwise
    lab = make_lab(
        module="tests.worker.shop_canvas",
        accept_content=["json", "pickle"],
        task_send_sent_event=True,
        **acks,
    )
    lab.start_worker("w1", 4, options=("-Q", "lab,side"))
    return lab


def hold(lab: Lab) -> None:
    lab.send("hold", "k")
    lab.journal.wait_for("start", tag="holder")


def publish_into_line(lab: Lab, name: str = "watched", *args: Any, **options: Any) -> AsyncResult:
    """Publish while the key is taken, and let it pass when it waits in line."""
    hold(lab)
    result = lab.task(name).apply_async(*args, **options)
    lab.wait_for_line(1, "hold", "k")
    lab.open("holder")
    return result


def deliveries(lab: Lab, id: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The message as it came first and as it came back, without what tells one delivery from another.

    One that was published to an exchange comes back to its queue, and its header tells of the exchange.
    """
    first, second = lab.journal.wait_for("message", 2, id=id)
    assert second["headers"]["exclusive"].pop("promoted")
    assert first["headers"]["exclusive"].get("promoted") is None
    assert second["headers"]["exclusive"].pop("offered").startswith("x")
    assert first["headers"]["exclusive"].get("offered") is None
    assert first["headers"]["exclusive"].get("route") is None
    route = second["headers"]["exclusive"].pop("route", None)
    if route:
        assert (route, second["delivery_info"]["exchange"]) == (["lab", "lab", "lab"], "")
        second["delivery_info"]["exchange"] = "lab"
    for message in (first, second):
        for name in ("at", "pid"):
            del message[name]
        message["properties"] = {name: message["properties"].get(name) for name in KEPT}
    return first, second


KEPT = ("correlation_id", "reply_to", "priority", "delivery_mode")
HOUR = timedelta(hours=1)
OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "task id": lambda: {"task_id": "chosen by hand"},
    "headers": lambda: {"headers": {"tenant": 7, "trace": {"parent": ["00", "é"]}}},
    "priority": lambda: {"priority": 5},
    "expires": lambda: {"expires": 3600},
    "time limits": lambda: {"time_limit": 80, "soft_time_limit": 70},
    "reply to": lambda: {"reply_to": "a-mailbox"},
    "correlation id": lambda: {"correlation_id": "c-1"},
    "retries": lambda: {"retries": 2},
    "eta in the past": lambda: {"eta": datetime.now(timezone.utc) - HOUR},
    "countdown": lambda: {"countdown": 0.5},
    "shadow": lambda: {"shadow": "another name"},
    "relatives": lambda: {"root_id": "the root", "parent_id": "the parent"},
    "no result": lambda: {"ignore_result": True},
    "reprs": lambda: {"argsrepr": "(...)", "kwargsrepr": "{...}"},
    "another queue": lambda: {"queue": "side"},
    "an exchange": lambda: {"exchange": "lab", "routing_key": "lab"},
    "delivery mode": lambda: {"delivery_mode": 1},
    "pickle": lambda: {"serializer": "pickle"},
    "json and zlib": lambda: {"compression": "zlib"},
    "pickle and bzip2": lambda: {"serializer": "pickle", "compression": "bzip2"},
}


@pytest.mark.promise(
    "A message returns from the line whole",
    name="parked message returns whole",
    broke="headers that are not kept",
    figure="20 kinds of message, early and late",
)
def test_every_message_comes_back_from_the_line_as_it_went(shop: Lab) -> None:
    hold(shop)
    results = {
        what: shop.task("watched").apply_async(("k", what), {"stored": UNICODE}, **options())
        for what, options in OPTIONS.items()
    }
    shop.wait_for_line(len(OPTIONS), "hold", "k")
    shop.open("holder")
    shop.journal.wait_for("end", len(OPTIONS) + 1)
    for what, result in results.items():
        first, second = deliveries(shop, result.id)
        assert (what, second) == (what, first)
        if what != "no result":
            assert result.get(timeout=DEADLINE) == {"got": {"stored": UNICODE}}
    assert sorted(shop.journal.tags("start")) == sorted([*OPTIONS, "holder"])


@pytest.mark.proves("parked message returns whole")
def test_the_body_sees_the_same_request_as_without_a_line(shop: Lab) -> None:
    def publish(task: Any) -> AsyncResult:
        signature = task.signature(("k", "told"), {"stored": UNICODE})
        signature.stamp(deploy="blue")
        expires = datetime(2222, 2, 2, tzinfo=timezone.utc)
        return signature.apply_async(
            headers={"tenant": 7}, priority=5, expires=expires, time_limit=80, soft_time_limit=70,
            shadow="another name", reply_to="a-mailbox", compression="zlib", root_id="r", parent_id="p",
        )  # fmt: skip

    free = publish(shop.task("watched"))
    (seen,) = shop.journal.wait_for("request", id=free.id)
    hold(shop)
    parked = publish(shop.task("watched"))
    shop.wait_for_line(1, "hold", "k")
    shop.open("holder")
    (seen_from_the_line,) = shop.journal.wait_for("request", id=parked.id)
    same, request = seen["request"], seen_from_the_line["request"]
    assert request["headers"].pop("exclusive")["promoted"]
    for told in (same, request):
        for name in ("id", "correlation_id", "exclusive", "properties", "reply_to", "callbacks"):
            told.pop(name, None)
        told["headers"].pop("exclusive", None)
        assert told["stamps"] == {"deploy": "blue"}
        assert told["headers"]["tenant"] == 7
        assert told["timelimit"] == [80, 70]
        assert told["shadow"] == "another name"
    assert request == same


def test_a_message_with_callbacks_comes_back_with_them(shop: Lab) -> None:
    link = shop.task("unlocked_list").s().set(task_id="linked")
    result = publish_into_line(shop, "watched", ("k",), link=link)
    first, second = deliveries(shop, result.id)
    assert second == first
    assert shop.app.AsyncResult("linked").get(timeout=DEADLINE) == {"got": {}}


def test_a_member_of_a_group_comes_back_as_one(shop: Lab) -> None:
    hold(shop)
    result = group(shop.task("watched").s("k", str(n)) for n in range(3)).apply_async()
    shop.wait_for_line(3, "hold", "k")
    shop.open("holder")
    result.get(timeout=DEADLINE)
    for index, member in enumerate(result.results):
        first, second = deliveries(shop, member.id)
        assert second == first
        assert (second["headers"]["group"], second["headers"]["group_index"]) == (result.id, index)


@pytest.mark.promise(
    "1 MB of arguments passes the line, and any string is a key",
    name="large and odd arguments",
)
def test_a_megabyte_of_arguments_passes_the_line(shop: Lab) -> None:
    stored = UNICODE * 40_000
    assert len(stored.encode()) > 1_000_000
    result = publish_into_line(shop, "watched", ("k",), {"stored": stored})
    assert result.get(timeout=DEADLINE) == {"got": {"stored": stored}}


@pytest.mark.proves("parked message returns whole")
def test_bytes_pass_the_line(shop: Lab) -> None:
    data = bytes(range(256)) * 100
    result = publish_into_line(
        shop, "watched", ("k",), {"data": data}, serializer="pickle", compression="zlib"
    )
    assert b64decode(result.get(timeout=DEADLINE)["got"]["data"]) == data
    first, second = deliveries(shop, result.id)
    assert second == first
    assert pickle.loads(b64decode(second["body"]))[1] == {"data": data}
    assert b64encode(data).decode() not in str(second["headers"])


@pytest.mark.proves("revoked and expired")
def test_a_task_that_expires_in_line_is_revoked_and_the_next_one_passes(shop: Lab) -> None:
    hold(shop)
    expired = shop.task("watched").apply_async(("k", "expired"), expires=1)
    shop.wait_for_line(1, "hold", "k")
    following = shop.task("watched").apply_async(("k", "next"))
    shop.wait_for_line(2, "hold", "k")
    moment = datetime.fromisoformat(shop.journal.events("message", id=expired.id)[0]["headers"]["expires"])
    eventually(lambda: datetime.now(timezone.utc) > moment, "the moment when it expires")
    shop.open("holder")
    following.get(timeout=DEADLINE)
    eventually(lambda: expired.state == "REVOKED", "REVOKED")
    assert shop.journal.tags("start") == ["holder", "next"]
    shop.wait_for_line(0, "hold", "k")


# By name


def test_a_call_by_name_of_a_registered_task_is_exclusive(shop: Lab) -> None:
    hold(shop)
    result = shop.app.send_task("tests.worker.shop_canvas.watched", ["k", "named"], headers={"tenant": 7})
    shop.wait_for_line(1, "hold", "k")
    shop.open("holder")
    assert result.get(timeout=DEADLINE) == {"got": {}}
    assert shop.journal.most_open(key="k") == 1


def test_a_call_by_name_from_a_stranger_is_exclusive_and_comes_back_as_it_went(
    shop: Lab, stranger: Celery
) -> None:
    hold(shop)
    results = [
        stranger.send_task(
            "tests.worker.shop_canvas.watched",
            ["k"],
            {"tag": str(n), "stored": UNICODE},
            headers={"tenant": n},
        )
        for n in range(3)
    ]
    shop.wait_for_line(3, "hold", "k")
    shop.open("holder")
    for n, result in enumerate(results):
        assert result.get(timeout=DEADLINE) == {"got": {"stored": UNICODE}}
        first, second = shop.journal.events("message", id=result.id)
        assert second["body"] == first["body"]
        assert second["headers"].pop("exclusive")["promoted"]
        assert second["headers"] == first["headers"]
        assert second["headers"]["tenant"] == n
    assert shop.journal.most_open(key="k") == 1
    assert len(shop.journal.tags("start")) == 4


def test_an_installed_publisher_that_does_not_know_the_task_can_switch_its_lock_off(
    shop: Lab, stranger: Celery
) -> None:
    from celery_exclusive import install

    hold(shop)
    result = install(stranger).send_task(
        "tests.worker.shop_canvas.unlockable", ["k"], {"tag": "free"}, exclusive=None
    )
    assert result.get(timeout=DEADLINE) is None


# Tasks of unusual make


@pytest.mark.proves("kinds of tasks")
@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("shared", "odd"),
        ("own_call", ["called", "odd"]),
        ("counted", "odd pieces"),
        ("watched_by_name", "odd"),
    ],
)
def test_a_task_of_unusual_make_waits_and_then_runs_as_its_author_meant(
    shop: Lab, name: str, result: Any
) -> None:
    if name == "own_call":  # it would skip
        published = shop.task(name).delay("k", tag="odd")
    else:
        published = publish_into_line(shop, name, ("k",), {"tag": "odd"})
    assert published.get(timeout=DEADLINE) == result
    assert shop.journal.tags("start")[-1] == "odd"
    assert shop.journal.most_open(key="k") == 1
    if name == "own_call":
        assert len(shop.journal.events("call")) == 1
    if name == "counted":
        assert [event["unit"] for event in shop.journal.wait_for("success")] == ["pieces"]
    if name == "watched_by_name":
        assert len(shop.journal.events("message", id=published.id)) == 2


@pytest.mark.promise(
    "Class-based and shared tasks and tasks by `base=` are exclusive; a subclass or a call switches the "
    "lock off",
    name="kinds of tasks",
)
def test_a_task_class_with_named_and_other_arguments_is_exclusive_by_them(shop: Lab) -> None:
    feed = shop.task("Import")
    feed.delay("https://a", tag="first", hold=True)
    shop.journal.wait_for("start", tag="first")
    same = feed.delay(feed_url="https://a", tag="second", anything=1)
    other = feed.delay("https://b", tag="other")
    assert other.get(timeout=DEADLINE) == ["https://b", "other"]
    shop.wait_for_line(1, "Import", "https://a")
    shop.open("first")
    assert same.get(timeout=DEADLINE) == ["https://a", "second"]
    assert shop.journal.tags("start") == ["first", "other", "second"]


@pytest.mark.proves("kinds of tasks")
def test_a_subclass_can_switch_the_lock_off(shop: Lab) -> None:
    shop.task("Import").delay("https://a", tag="locked", hold=True)
    shop.journal.wait_for("start", tag="locked")
    free = shop.task("FreeImport")
    for tag in ("one", "other"):
        free.delay("https://a", tag=tag, hold=True)
    shop.journal.wait_for("start", tag="one")
    shop.journal.wait_for("start", tag="other")
    shop.open("locked", "one", "other")
    shop.journal.wait_for("end", 3)
    assert shop.journal.most_open() == 3


@pytest.mark.proves("kinds of tasks")
def test_a_call_can_switch_the_lock_off(shop: Lab) -> None:
    hold(shop)
    task = shop.task("unlockable")
    assert task.apply_async(("k",), exclusive=None).get(timeout=DEADLINE) is None
    assert task.signature(("k",)).set(exclusive=None).delay().get(timeout=DEADLINE) is None
    shop.open("holder")


# What stays as it was


def test_delay_returns_celerys_own_result_under_the_id_of_the_call(shop: Lab) -> None:
    result = shop.task("number").delay(5, "k")
    assert type(result) is AsyncResult or type(result).__mro__[1] is AsyncResult
    assert result.get(timeout=DEADLINE) == 5
    assert result.state == "SUCCESS"
    assert shop.task("number").apply_async((6, "k"), task_id="mine").id == "mine"


def test_a_direct_call_is_a_plain_call(shop: Lab) -> None:
    hold(shop)
    assert shop.task("unlockable")("k", lease=False) is None
    for call in (shop.task("unlockable"), shop.task("unlockable").run):
        with pytest.raises(ExclusiveError, match=r"unlockable holds no lease.*a direct call is a plain"):
            call("k")
    shop.open("holder")


@pytest.mark.promise(
    "`position` is the place that a call would get in line; a body that runs without its lock is not "
    "called free; a period of one call is no queue",
    name="position",
    broke="always 0; the lock alone; a period is queued",
)
@pytest.mark.promise(
    "A look at a lock changes nothing; direct calls, `.map` and `task_always_eager` acquire no lock",
    name="looks and direct calls",
)
def test_looking_at_a_lock_changes_nothing(shop: Lab) -> None:
    hold(shop)
    shop.send("number", 1, "k")
    shop.wait_for_line(1, "hold", "k")

    def kept() -> dict[bytes, bytes | None]:
        return {key: shop.doors.dump(key) for key in shop.doors.scan_iter("cx2:*") if b"reaped" not in key}

    def look() -> tuple[Any, ...]:
        state = shop.task("number").lock_state(1, "k")
        return state.key, state.is_running, state.is_queued, state.waiting, state.position

    before = kept()
    for _ in range(10):
        assert look() == ("x=shared:k", True, True, 1, 2)
        free = shop.task("number").lock_state(1, "nobody's")
        assert not free.is_running
        assert not free.holders
        assert free.position == 0
    (holder,) = shop.task("number").lock_state(1, "k").holders
    assert holder.task_id == shop.journal.events("start")[0]["id"]
    assert holder.age > 0
    assert 0 < holder.remaining <= 60
    changed = {key for key, value in kept().items() if before.get(key) != value}
    assert changed <= {b"cx2:{0}:l:x=shared:k", b"cx2:{0}:due"}  # the heartbeat's and the reaper's
    shop.open("holder")


def test_a_message_that_another_version_wrote_gets_its_key_on_the_worker(shop: Lab) -> None:
    hold(shop)
    number = shop.task("number")
    result = number.apply_async((1, "k"), headers={"exclusive": {"v": 99, "secret": "of the future"}})
    shop.wait_for_line(1, "hold", "k")
    shop.open("holder")
    assert result.get(timeout=DEADLINE) == 1


BASED = """
import json, os
from pathlib import Path
from celery import Celery
from celery_exclusive import Exclusive, Task
from tests.worker.journal import eventually

app = Celery("based")
app.conf.update(json.loads(os.environ["LAB_CONF"]))

@app.task(base=Task, exclusive=Exclusive(), bind=True)
def alone(self, hold=False):
    Path("inside").touch()
    eventually(lambda: not hold or self.lock_state().waiting, "another in line")
    return self.lease.fence
"""


@pytest.mark.proves("kinds of tasks")
def test_a_task_whose_base_installs_the_app_is_exclusive(
    make_lab: Callable[..., Lab], tmp_path: Path, stranger: Celery
) -> None:
    (tmp_path / "based_shop.py").write_text(BASED)
    make_lab(module="based_shop").start_worker("based", 2, options=("-Q", "based"))
    first = stranger.send_task("based_shop.alone", [True], queue="based")
    eventually((tmp_path / "inside").exists, "the first inside")
    second = stranger.send_task("based_shop.alone", queue="based")
    assert first.get(timeout=DEADLINE) < second.get(timeout=DEADLINE)
