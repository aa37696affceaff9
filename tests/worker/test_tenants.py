"""Identity that is no argument: the class of an app names the tenant in a header of each message."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from celery import Celery
from celery.signals import before_task_publish

from celery_exclusive import lock
from tests.worker.lab import Lab, eventually
from tests.worker.stage import Stage, on_stages

pytestmark = pytest.mark.promise(
    "Headers of a message can be part of every key: missing, other and equal values; from any code that "
    "adds them, also after the call; in a retry, in line, by `apply()`, from a stranger, on Redis and "
    "RabbitMQ",
    name="key headers",
    broke=(
        "red before: the second tenant's call was dropped; receivers called too late; the text of a header "
        "not escaped, a missing one like None"
    ),
)

SHOP = "tests.worker.shop_tenants"
DEADLINE = 60
HEADER = "_schema_name"
REDIS = on_stages("prefork", brokers=("redis",), lates=(True,))


@pytest.fixture(params=["by its app", "by a receiver"])
def added(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """The settings with which the header is added in this way."""
    is_by_receiver = request.param == "by a receiver"
    yield {"tenants_by_receiver": is_by_receiver}
    if is_by_receiver:
        before_task_publish.disconnect(import_module(SHOP).add_tenant)


def of(tenant: str) -> dict[str, str]:
    return {HEADER: tenant}


def send(lab: Lab, tenant: str, name: str, *args: Any, by_name: bool = False, **options: Any) -> Any:
    """Publish a task of this tenant."""
    app, shop = lab.app, import_module(SHOP)
    mark = shop.tenant.set(tenant)
    try:
        if by_name:
            return app.send_task(f"{SHOP}.{name}", args, **options)
        return lab.task(name).apply_async(args, **options)
    finally:
        shop.tenant.reset(mark)


@on_stages("prefork", lates=(True,))
@pytest.mark.parametrize("by_name", [False, True], ids=["by its task", "by its name"])
@pytest.mark.parametrize("name", ["once", "by_function"])
def test_the_same_call_of_two_tenants_is_two_calls(
    stage: Stage, name: str, added: dict[str, Any], by_name: bool
) -> None:
    conf = {} if name == "once" else {"exclusive_key_headers": ()}
    lab = stage.make_lab(SHOP, **conf, **added)
    calls = [send(lab, tenant, name, 1, "a", by_name=by_name) for tenant in ("acme", "acme", "zeta")]
    assert [call.outcome for call in calls] == ["published", "skipped", "published"]
    assert calls[1].existing_id == calls[0].id
    stage.start_worker(lab)
    for call in calls:
        assert call.get(timeout=DEADLINE) == "a"
    assert sorted(event["key"] for event in lab.journal.events("start")) == ["acme", "zeta"]
    stage.assert_nothing_is_left(lab)


@on_stages("prefork", lates=(True,))
@pytest.mark.parametrize("name", ["alone", "shared"])
def test_a_lock_of_one_tenant_holds_up_no_other_one(stage: Stage, name: str) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab, slots=3)
    send(lab, "acme", name, 1, "holder", True)
    lab.journal.wait_for("start", tag="holder")
    behind = send(lab, "acme", name, 1, "behind")
    eventually(lambda: lab.task(name).lock_state(1, headers=of("acme")).waiting == 1, "one in line")
    assert send(lab, "zeta", name, 1, "other").get(timeout=DEADLINE) == "other"
    assert not behind.ready()
    lab.open("holder")
    assert behind.get(timeout=DEADLINE) == "behind"
    assert [(event["tag"], event["key"]) for event in lab.journal.events("start")] == [
        ("holder", "acme"),
        ("other", "zeta"),
        ("behind", "acme"),
    ]


@REDIS
@pytest.mark.parametrize("name", ["once", "by_function", "again"])
def test_a_worker_makes_the_same_keys_of_a_message_from_a_stranger(stage: Stage, name: str) -> None:
    """Its publisher has no library, so the worker makes the keys, also those of its retry."""
    lab = stage.make_lab(SHOP)
    worker = stage.start_worker(lab, slots=3)
    ours = send(lab, "acme", name, 1, "ours", True)
    lab.journal.wait_for("start", tag="ours")
    with Celery("stranger", set_as_current=False) as stranger:
        stranger.conf.update({**lab.conf, "result_backend": None})
        for tenant in ("acme", "zeta"):
            stranger.send_task(f"{SHOP}.{name}", (1, f"of {tenant}"), headers=of(tenant))
    lab.journal.wait_for("end", 2 if name == "again" else 1, tag="of zeta")
    worker.wait_for_log("skipped: unique key")
    assert "of acme" not in lab.journal.tags("start")
    lab.open("ours", "ours")
    assert ours.get(timeout=DEADLINE) == "ours"
    stage.assert_nothing_is_left(lab)


@REDIS
def test_a_retry_and_a_way_through_the_line_keep_the_keys_of_the_tenant(
    stage: Stage, added: dict[str, Any]
) -> None:
    lab = stage.make_lab(SHOP, **added)
    stage.start_worker(lab, slots=4)
    for tenant in ("acme", "zeta"):
        send(lab, tenant, "again", 1, "holder", True)
    lab.journal.wait_for("start", 2, tag="holder")
    waiting = [send(lab, tenant, "again", 1, "waiting", unique=None) for tenant in ("acme", "zeta")]
    for tenant in ("acme", "zeta"):
        eventually(lambda: lab.task("again").lock_state(1, headers=of(tenant)).waiting == 1, "one in line")  # noqa: B023
    lab.open(*["holder"] * 4)
    for call in waiting:
        assert call.get(timeout=DEADLINE) == "waiting"
    lab.journal.wait_for("key", 8)
    keys = {tenant: lab.task("again").lock_state(1, headers=of(tenant)).key for tenant in ("acme", "zeta")}
    for tenant, key in keys.items():
        starts = [event["tag"] for event in lab.journal.events("start", key=tenant)]
        assert sorted(starts) == ["holder", "holder", "waiting", "waiting"]
        seen = [event["retries"] for event in lab.journal.events("key", key=key)]
        assert sorted(seen) == [0, 0, 1, 1]
    stage.assert_nothing_is_left(lab)


@REDIS
def test_a_call_from_inside_a_body_has_the_tenant_of_that(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    holder = send(lab, "acme", "once", 7, "spawned", queue="nowhere")
    stage.start_worker(lab)
    assert send(lab, "acme", "spawn", 7).get(timeout=DEADLINE) == ["skipped", holder.id]
    assert send(lab, "zeta", "spawn", 7).get(timeout=DEADLINE) == ["published", None]


@REDIS
def test_apply_acquires_the_lock_of_its_tenant(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab)
    send(lab, "acme", "once", 1, "held", True)
    lab.journal.wait_for("start", tag="held")
    shop, outcomes = import_module(SHOP), []
    for tenant in ("acme", "zeta"):
        mark = shop.tenant.set(tenant)
        outcomes.append(lab.task("once").apply((1, "applied")).outcome)
        shop.tenant.reset(mark)
    assert outcomes == ["skipped", "published"]
    lab.open("held")
    lab.journal.wait_for("end", tag="held")


@REDIS
def test_a_lock_and_a_shared_key_of_a_tenant_are_one_by_its_text(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab)
    assert lab.task("shared").lock_state(1, headers=of("acme")).key == f"x=1 {HEADER}=acme"
    with lock(f"1 {HEADER}=acme", app=lab.app):
        behind = send(lab, "acme", "shared", 1, "behind")
        eventually(lambda: lab.task("shared").lock_state(1, headers=of("acme")).waiting == 1, "one in line")
        assert send(lab, "zeta", "shared", 1, "other").get(timeout=DEADLINE) == "other"
    assert behind.get(timeout=DEADLINE) == "behind"
