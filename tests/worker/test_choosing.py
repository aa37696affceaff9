"""Publisher and workers find one store, or are told; what a store cannot keep is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.concurrency.thread import TaskPool

from celery_exclusive import Debounce, Exclusive, OptionError, Unique, install
from celery_exclusive.stores import base
from celery_exclusive.stores.base import Capabilities
from celery_exclusive.stores.memory import MemoryStore
from celery_exclusive.worker.checks import refuse_unfit, warnings
from tests.servers import RedisServer
from tests.worker.lab import Lab, command, eventually

ELSEWHERE = "in another store than this worker"
SHOP = "tests.worker.shop_unique"


def publish_by(lab: Lab, prefix: str, tag: str) -> None:
    """Publish `once` from a process of its own whose app keeps its locks in this namespace."""
    name, arguments = f"{SHOP}.once", f'["{prefix} {tag}", "{tag}"]'
    done = command(lab, "call", name, "--args", arguments, exclusive_prefix=prefix)
    assert not done.returncode, done.stderr


@pytest.mark.promise(
    "All processes of an app find the store of the broker, whatever results they have: a call of a process "
    "without the result backend of its worker runs when the one before it has finished",
    name="one store for all processes",
    broke="red before: the second call skipped for a day; the result backend first",
)
def test_a_call_of_a_process_without_the_result_backend_of_its_worker_runs_after_the_one_before_it(
    make_lab: Callable[..., Lab], start_redis: Callable[..., RedisServer]
) -> None:
    lab = make_lab(module=SHOP, result_backend=None)
    worker = lab.start_worker("w1", 2, result_backend=start_redis().url)
    for tag in ("first", "second"):
        result = lab.send("once", "k", tag)
        assert result.outcome == "published"
        worker.wait_for_log(f"[{result.id}] succeeded")
    assert lab.journal.tags() == ["first", "second"]
    assert ELSEWHERE not in worker.log


@pytest.mark.promise(
    "A worker that meets calls of publishers with another store reports an error, once each, that says "
    "which key nobody releases, and names the setting; never of its own store, also after that "
    "lost its data",
    name="different stores",
    broke="epoch not published; own epoch forgotten; reported again",
)
def test_a_worker_tells_once_of_each_publisher_whose_calls_are_dropped_in_another_store(
    make_lab: Callable[..., Lab], start_redis: Callable[..., RedisServer]
) -> None:
    store = start_redis()
    lab = make_lab(module=SHOP, exclusive_store=store.url, exclusive_ttl=0.6)
    worker = lab.start_worker("w1", 2)
    before = lab.send("once", "before", "reads the epoch")
    worker.wait_for_log(f"[{before.id}] succeeded")
    with store.client() as client:
        client.flushall()  # the next who asks makes a new epoch
    lab.send("once", "k", "with the former epoch")
    publish_by(lab, "cx", "with the new epoch")
    for prefix, tag, errors in (("other", "a", 1), ("other", "b", 1), ("third", "c", 2)):
        publish_by(lab, prefix, tag)
        eventually(lambda: worker.log.count(ELSEWHERE) >= errors, f"{errors} errors")  # noqa: B023
    lab.journal.wait_for("end", 6)
    assert worker.stop() == 0
    told = [line for line in worker.log.splitlines() if ELSEWHERE in line]
    assert len(told) == 2
    for line in told:
        assert ": ERROR/" in line
        assert "publisher gen" in line
        assert f"task {SHOP}.once looks" in line
        assert f"no worker here releases key u:{SHOP}.once:" in line
        assert f'exclusive_store = "redis://127.0.0.1:{store.port}/0"' in line
        assert 'exclusive_prefix = "cx"' in line


@pytest.mark.promise(
    "Epochs that a publisher makes up fill neither log nor memory: a worker reports a hundred",
    name="invented epochs",
    broke="300 warnings of 300 messages; marks kept whole, or all of them",
)
def test_a_publisher_that_makes_up_epochs_of_stores_does_not_flood_the_log(
    make_lab: Callable[..., Lab], stranger: Celery
) -> None:
    lab = make_lab(exclusive_ttl=0.6, task_acks_late=True)
    worker = lab.start_worker("w1", 2)
    key = lab.task("wait").lock_state("k").key
    for number in range(300):
        header = {"v": 1, "id": "p", "exclusive": key, "store": f"epoch {number}"}
        last = stranger.send_task(lab.task("wait").name, ["k"], headers={"exclusive": header})
    last.get(timeout=60)
    worker.wait_for_log(ELSEWHERE)
    assert worker.stop() == 0
    assert 1 <= worker.log.count("another store than this worker") <= 100


@pytest.mark.proves("different stores")
def test_a_message_with_a_unique_key_keeps_the_epoch_of_its_publisher_in_the_line(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(module="tests.worker.shop_canvas")
    lab.start_worker("w1", 2)
    lab.send("hold", "k")
    lab.journal.wait_for("start", tag="holder")
    waits = lab.send("watched", "k", tag="waits", options={"unique": Unique("key")})
    lab.wait_for_line(1, "hold", "k")
    lab.open("holder")
    epoch = lab.app._celery_exclusive.store.epoch()  # type: ignore[attr-defined]
    messages = lab.journal.wait_for("message", 2, id=waits.id)
    assert [message["headers"]["exclusive"]["store"] for message in messages] == [epoch, epoch]
    lab.journal.wait_for("end", tag="waits")


@pytest.mark.proves("which store, warnings")
def test_a_broker_of_files_brings_a_store_of_its_own(make_lab: Callable[..., Lab], tmp_path: Path) -> None:
    (tmp_path / "mail").mkdir()
    folders = dict.fromkeys(("data_folder_in", "data_folder_out"), str(tmp_path / "mail"))
    lab = make_lab(
        broker_url="filesystem://",
        result_backend=None,
        broker_transport_options={**folders, "control_folder": str(tmp_path / "control")},
    )
    worker = lab.start_worker("w1", 2)
    assert f".> locks:       sqlite:///{tmp_path}/mail/locks.db (broker)" in worker.log
    assert "only processes on this machine" not in worker.log
    lab.send("wait", "k", tag="a", hold=True)
    lab.journal.wait_for("start", tag="a")
    lab.send("wait", "k", tag="b")
    lab.wait_for_line(1, "wait", "k")
    lab.open("a")
    lab.journal.wait_for("end", tag="b")
    assert lab.journal.most_open(key="k") == 1
    assert ELSEWHERE not in worker.log


@pytest.mark.promise(
    "A choice that serves one machine, or that `cache.clear()` empties, is a warning; a store without a "
    "line is refused for tasks that wait, and for `recover=True`; a `visibility_timeout` below a `ttl` is "
    "a warning",
    name="which store, warnings",
    broke="no warning; always a warning",
)
def test_a_store_for_one_machine_and_a_broker_for_many_is_a_warning(
    make_lab: Callable[..., Lab], tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/locks.db"
    lab = make_lab(broker_url="amqp://mq.invalid", result_backend="rpc://", exclusive_store=url)
    worker = lab.start_worker("w1", 1, ready=False)
    line = worker.wait_for_log("only processes on this machine")
    assert ": WARNING/" in line
    assert f"store {url}: " in line


@pytest.mark.proves("which store, warnings")
def test_the_redis_of_djangos_cache_is_the_store_with_a_warning_that_a_clear_empties_it(
    make_lab: Callable[..., Lab], start_redis: Callable[..., RedisServer], tmp_path: Path
) -> None:
    cache = start_redis()
    (tmp_path / "dj_settings.py").write_text(DJANGO_SETTINGS.format(url=cache.url))
    (tmp_path / "dj_shop.py").write_text(DJANGO_SHOP)
    lab = make_lab(module="dj_shop", broker_url="amqp://mq.invalid", result_backend="rpc://")
    worker = lab.start_worker("w1", 1, ready=False)
    assert "cache.clear()" in worker.wait_for_log(f"store redis://127.0.0.1:{cache.port}/0: cache")
    assert (
        f".> locks:       redis://127.0.0.1:{cache.port}/0 (Django's default cache), order: arrived"
        in worker.log
    )


DJANGO_SETTINGS = """
CACHES = {{"default": {{"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": "{url}"}}}}
SECRET_KEY = "none"
"""
DJANGO_SHOP = """
import json, os
os.environ["DJANGO_SETTINGS_MODULE"] = "dj_settings"
from celery import Celery
from celery_exclusive import Exclusive, install
app = install(Celery("dj"))
app.conf.update(json.loads(os.environ["LAB_CONF"]))
@app.task(exclusive=Exclusive())
def rebuild(): ...
"""


def work() -> None: ...


@pytest.mark.proves("no store found")
@pytest.mark.parametrize(
    ("conf", "options", "is_told"),
    [
        ({}, {"unique": Unique()}, True),
        ({}, {"exclusive": Exclusive(order="published")}, True),
        ({}, {"exclusive": Exclusive()}, False),
        ({"exclusive_store": "redis://results/1"}, {"unique": Unique()}, False),
        ({"broker_url": "redis://mq"}, {"unique": Unique()}, False),
    ],
)
def test_a_store_that_publishers_ask_and_may_not_find_is_warned_of_with_the_setting_that_names_it(
    monkeypatch: pytest.MonkeyPatch, conf: dict[str, Any], options: dict[str, Any], is_told: bool
) -> None:
    app = install(Celery("guesser", broker="amqp://mq", backend="redis://results/1", set_as_current=False))
    app.conf.update(conf)
    app.task(name="a", shared=False, **options)(work)
    services: Any = app._celery_exclusive  # type: ignore[attr-defined]
    monkeypatch.setattr(services.store._store, "check", list)  # there is no server
    expected = "it was found in the result backend, which a process that only publishes may not have"
    assert [expected in text for text in warnings(services)].count(True) == is_told
    app.close()


class WithoutLine(MemoryStore):
    capabilities = Capabilities(line=False)


@pytest.mark.proves("which store, warnings")
@pytest.mark.parametrize(
    ("broker", "timeout", "is_told"),
    [("redis://", 59, True), ("redis://", 60, False), ("amqp://", 59, False)],
)
def test_a_visibility_timeout_below_the_ttl_is_warned_of(broker: str, timeout: int, is_told: bool) -> None:
    app = install(Celery("impatient", broker=broker, set_as_current=False))
    app.conf.update(
        exclusive_store="memory://",
        exclusive_ttl=60,
        broker_transport_options={"visibility_timeout": timeout},
    )
    app.task(name="feeds.sync", shared=False, exclusive=Exclusive())(work)
    app.task(name="plain", shared=False)(work)
    said = [text for text in warnings(app._celery_exclusive) if "visibility" in text]  # type: ignore[attr-defined]
    expected = "the visibility_timeout of 59 s is below the ttl of task feeds.sync"
    assert [expected in text for text in said] == [True] * is_told
    app.close()


DEBOUNCED = {"unique": Debounce(wait=1, max_wait=5)}


@pytest.mark.proves("which store, warnings")
@pytest.mark.parametrize(
    ("backend", "options", "is_told"),
    [
        ("rpc://", {"unique": Unique()}, True),
        ("rpc://", DEBOUNCED, True),  # which raises nothing
        ("rpc://", {"unique": Unique(), "ignore_result": True}, False),
        ("rpc://", {"unique": Unique(on_conflict="raise")}, False),
        ("rpc://", {"exclusive": Exclusive()}, False),
        ("redis://results/1", {"unique": Unique()}, False),
    ],
)
def test_results_by_rpc_for_which_duplicates_are_published_are_warned_of(
    backend: str, options: dict[str, Any], is_told: bool
) -> None:
    app = install(Celery("caller", broker="redis://", backend=backend, set_as_current=False))
    app.conf.exclusive_store = "memory://"
    app.task(name="feeds.sync", shared=False, **options)(work)
    expected = "result_backend rpc: duplicates of task feeds.sync are published"
    found = [text for text in warnings(app._celery_exclusive) if expected in text]  # type: ignore[attr-defined]
    assert len(found) == is_told
    assert [text for text in found if "on_conflict='raise'" in text] == found * (options != DEBOUNCED)
    app.close()


@pytest.mark.proves("store without lines", "which store, warnings")
def test_a_store_without_a_line_is_refused_for_tasks_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(base._factories, "lineless", WithoutLine)
    app = install(Celery("lineless", broker="memory://", set_as_current=False))
    app.conf.exclusive_store = "lineless://"
    services: Any = app._celery_exclusive  # type: ignore[attr-defined]
    app.task(name="a", shared=False, exclusive=Exclusive(on_conflict="skip"))(work)
    refuse_unfit(services, TaskPool)
    assert not warnings(services)
    app.task(name="c", shared=False, acks_late=True, exclusive=Exclusive(on_conflict="skip", recover=True))(
        work
    )
    with pytest.raises(OptionError, match=r"lineless:// keeps no messages, and task c with .*recover=True"):
        refuse_unfit(services, TaskPool)
    with pytest.raises(
        OptionError, match=r"lineless:// keeps no line, and task b with Exclusive\(\) has to wait"
    ):
        app.task(name="b", shared=False, exclusive=Exclusive())(work)
    app.close()


@pytest.mark.promise(
    "A worker refuses a broker with which nothing was proven, each kind that "
    "[Brokers](how-to/brokers.md) names, "
    "until a setting accepts it, and then warns; one that Celery would not reach; one that is only read "
    "from, or only written to; SQS and PGMQ with a Celery before 5.7",
    name="unproven brokers",
    broke="no refusal: such a worker starts, or connects to localhost",
)
def test_a_starting_worker_refuses_a_broker_with_which_nothing_was_proven_until_a_setting_accepts_it():
    app = install(Celery("unproven", broker="gcpubsub://projects/p", set_as_current=False))
    app.conf.update(exclusive_store="memory://")
    app.task(name="a", shared=False, exclusive=Exclusive())(work)
    services: Any = app._celery_exclusive  # type: ignore[attr-defined]
    with pytest.raises(OptionError, match="gcpubsub:// is not proven"):
        refuse_unfit(services, TaskPool)
    app.close()
    accepted = install(Celery("accepted", broker="gcpubsub://projects/p", set_as_current=False))
    accepted.conf.update(exclusive_store="memory://", exclusive_unproven_broker=True)
    accepted.task(name="a", shared=False, exclusive=Exclusive())(work)
    services = accepted._celery_exclusive  # type: ignore[attr-defined]
    refuse_unfit(services, TaskPool)
    (warning,) = (text for text in warnings(services) if "gcpubsub" in text)
    assert warning.endswith("exclusive_unproven_broker accepts it")
    accepted.conf.broker_url = "redis+cluster://mq"
    with pytest.raises(OptionError, match="Celery has no transport"):
        refuse_unfit(services, TaskPool)
    accepted.close()


@pytest.mark.proves("store without lines")
def test_a_store_without_a_line_that_was_not_named_is_refused_when_the_worker_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(base._factories, "lineless", WithoutLine)
    app = install(Celery("lineless", broker="amqp://", backend="lineless://", set_as_current=False))
    app.task(name="b", shared=False, exclusive=Exclusive())(work)
    with pytest.raises(OptionError, match="lineless:// keeps no line, and task b"):
        refuse_unfit(app._celery_exclusive, TaskPool)  # type: ignore[attr-defined]
    app.close()
