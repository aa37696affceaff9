"""Two projects in one namespace, as the second one's worker finds the first one's when it starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from celery import Celery

from celery_exclusive import Exclusive, OptionError, Unique, install
from celery_exclusive.stores.workers import WorkerRecord, by_number
from celery_exclusive.worker.neighbours import described, keep_record, look_at_neighbours
from celery_exclusive.worker.steps import own_record

SECRET, OTHER = "a secret of sixteen or more", "another secret of sixteen or more"
START = 1_800_000_000
Start = Callable[..., WorkerRecord]


@pytest.fixture
def start(make_app: Callable[..., Celery]) -> Start:
    """Starts a worker, as far as its neighbours are concerned; `warned` notes the warnings."""

    def start(name: str | None, task: str = "tasks.digest", *, key: str | None = None, since: int = 0,
              queue: str | None = None, elders: bool = False, **conf: Any) -> WorkerRecord:  # fmt: skip
        app = install(make_app(task_default_queue=queue or name or "celery", **conf))
        app.main = name

        @app.task(name=task, shared=False, exclusive=Exclusive(key=key), unique=Unique(key=key))
        def digest() -> None: ...

        app.finalize()
        services = app._celery_exclusive  # type: ignore[attr-defined]
        record = described(services, own_record("celery@web1"))
        record = replace(record, since=START + since)
        warned[:] = [] if elders else look_at_neighbours(services, record)
        keep_record(services, record)
        return record

    warned.clear()
    return start


warned: list[str] = []


@pytest.mark.promise(
    "A worker does not start in a namespace of another project, which has another app name and other "
    "queues, if both have a task of one name with keys of its own, or if their secrets differ. It names the "
    "line to add",
    name="other projects",
    broke="red before: it started, skipped the other's calls, and deleted its waiting tasks",
)
@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({}, "task tasks.digest of both"),
        ({"task": "shop.report", "exclusive_secret": SECRET}, "secret differ"),
    ],
    ids=["one name", "another secret"],
)
def test_a_worker_of_another_project_with_its_keys_or_secret_is_refused(
    start: Start, other: dict[str, Any], words: str
) -> None:
    start("shop", **other)
    with pytest.raises(OptionError, match=rf"{words}.*exclusive_prefix = 'billing'"):
        start("billing")


@pytest.mark.proves("other projects")
@pytest.mark.parametrize(
    "tasks", [{"task": "billing.report"}, {"key": "month"}], ids=["other tasks", "a key on purpose"]
)
def test_a_project_that_shares_no_key_of_a_task_is_warned_of(start: Start, tasks: dict[str, Any]) -> None:
    start("shop")
    start("billing", **tasks)
    assert len(warned) == 1
    assert "app 'shop'" in warned[0]


@pytest.mark.proves("other projects")
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"name": "shop"}, {"name": "shop", "queue": "mails"}),
        ({"name": None}, {"name": "shop"}),
        ({"name": "shop"}, {"name": "store", "queue": "shop"}),
        ({"name": "shop", "exclusive_secret": SECRET}, {"name": "shop", "exclusive_secret": [None, SECRET]}),
    ],
    ids=["another queue", "no name", "an app with another name", "a secret that is introduced"],
)
def test_workers_of_one_project_start_beside_each_other(
    start: Start, first: dict[str, Any], second: dict[str, Any]
) -> None:
    for worker in (first, second):
        start(**worker)
        assert not [text for text in warned if "accepts less" not in text]


@pytest.mark.proves("change of the secret")
@pytest.mark.parametrize("secret", [None, OTHER, [OTHER, None]])
def test_a_worker_warns_of_a_worker_of_its_app_with_another_secret(start: Start, secret: Any) -> None:
    start("shop", exclusive_secret=SECRET)
    start("shop", exclusive_secret=secret)
    assert len(warned) == 1
    assert "another exclusive_secret" in warned[0]
    start("shop", exclusive_secret=[SECRET, OTHER, None])
    assert len(warned) == 1, "the first one does not verify all that others sign"


@pytest.mark.proves("other projects")
def test_of_two_workers_that_start_at_once_the_younger_is_refused(start: Start) -> None:
    start("shop", since=1)
    start("billing", elders=True)
    with pytest.raises(OptionError):
        start("shop", since=2, elders=True)


@pytest.mark.proves("other projects")
def test_a_worker_that_is_refused_after_another_start_refuses_no_later_one(start: Start) -> None:
    start("shop")
    with pytest.raises(OptionError):
        start("billing", since=1, elders=True)
    start("shop", since=2)
    start("billing", "billing.report", since=3)
    assert len(warned) == 1
    assert "app 'shop'" in warned[0]


def test_a_record_of_an_older_release_is_read_and_says_nothing_of_its_app(start: Start) -> None:
    of_this = start("shop")
    older = b'{"number": 7, "nodename": "a", "pid": 1, "host": "b", "release": "0.1.0", "since": 1}'
    ((read,),) = by_number([older]).values()
    assert (read.app, read.secrets) == ("", "")
    assert by_number([of_this.text]) == {of_this.number: [of_this]}


def test_a_record_of_many_tasks_and_long_names_is_bounded(start: Start) -> None:
    record = start("x" * 300)
    large = replace(record, tasks="01234" * 5_000, queues="01234" * 5_000)
    assert len(large.text) < 3_000
    assert by_number([large.text])
