"""What was not signed with the secret of the workers, on brokers and stores that others can write to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import chain, chord

from celery_exclusive import Exclusive
from celery_exclusive.messages.header import Header
from celery_exclusive.messages.stored import StoredMessage
from tests.rabbit import RabbitServer
from tests.servers import RedisServer
from tests.worker.lab import Lab, Worker, command, eventually
from tests.worker.message import Message
from tests.worker.stage import RABBITS

DEADLINE = 60
SECRET = "the secret of the laboratory"
LATE = {"task_acks_late": True, "task_reject_on_worker_lost": True}
UNIQUE = "tests.worker.shop_unique"
ALIAS = "tests.worker.shop_alias"
CANVAS = "tests.worker.shop_canvas"
UNSIGNED = "without a valid signature"


def hold(lab: Lab, name: str = "wait") -> Any:
    options = {} if name == "hold" else {"hold": True}
    result = lab.send(name, "k", tag="holder", **options)
    lab.journal.wait_for("start", tag="holder")
    return result


@pytest.mark.proves("signed headers")
@pytest.mark.parametrize("secret", [None, SECRET], ids=["no secret", "a secret"])
def test_a_forged_duplicate_is_skipped_without_a_secret_and_runs_with_one(
    make_lab: Callable[..., Lab], secret: str | None
) -> None:
    lab = make_lab(module=UNIQUE, exclusive_secret=secret, **LATE)
    message = Message.withheld(lab, "once", "k", "victim")
    message.content["headers"]["exclusive"]["duplicate_of"] = "somebody"
    worker = lab.start_worker("w1", 2)
    message.deliver()
    if secret is None:
        assert message.result.get(timeout=DEADLINE)["skipped"]["existing_id"] == "somebody"
        return
    assert message.result.get(timeout=DEADLINE) == "victim"
    eventually(lambda: lab.task("once").lock_state("k").unique_holder is None, "a free key")
    assert lab.send("once", "k", "next").get(timeout=DEADLINE) == "next"
    assert worker.log.count(UNSIGNED) == 1


@pytest.mark.proves("signed headers")
@pytest.mark.parametrize("name", ["once", "queued"])
@pytest.mark.parametrize("what", ["stripped", "unsigned", "of another message"])
def test_a_message_without_a_valid_header_runs_once_and_its_unique_key_is_free_after_that(
    make_lab: Callable[..., Lab], name: str, what: str
) -> None:
    lab = make_lab(module=UNIQUE, exclusive_secret=SECRET, **LATE)
    message = Message.withheld(lab, name, "k", "a")
    other = Message.withheld(lab, name, "other", "b")
    headers = message.content["headers"]
    if what == "stripped":
        del headers["exclusive"]
    elif what == "unsigned":
        del headers["exclusive"]["sig"]
    else:
        headers["exclusive"] = other.content["headers"]["exclusive"]
    worker = lab.start_worker("w1", 2)
    message.deliver()
    assert message.result.get(timeout=DEADLINE) == "a"
    eventually(lambda: lab.task(name).lock_state("k").unique_holder is None, "a free key")
    assert lab.task(name).lock_state("other").is_unique_holder_queued
    other.deliver()
    assert other.result.get(timeout=DEADLINE) == "b"
    assert lab.journal.tags() == ["a", "b"]
    assert worker.log.count(UNSIGNED) == (what != "stripped")


@pytest.mark.promise(
    "With a secret, the header of one task counts as none at another, also under its own task id; a "
    "replacement by another task inherits the key all the same",
    name="signed for one task",
    broke="the name left out of the signature: the stranger ran beside the holder",
    also="the tests of replacements, in labs with a secret",
)
def test_a_header_of_one_task_gives_another_task_nothing(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(exclusive_secret=SECRET, **LATE)
    message = Message.withheld(lab, "wait", "k", "stranger")
    message.content["headers"]["task"] = lab.task("skip").name
    worker = lab.start_worker("w1", 2)
    holder = lab.send("skip", "k", tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    message.deliver()
    assert message.result.get(timeout=DEADLINE)["skipped"]["existing_id"] == holder.id
    lab.open("holder")
    assert holder.get(timeout=DEADLINE) == "holder"
    assert worker.log.count(UNSIGNED) == 1


def plant(lab: Lab, key: str, id: str, message: bytes) -> None:
    """Write a message to the head of a line, as whoever can write to the store."""
    base = "cx2:{0}:"
    known, *counts = lab.doors.hget(f"{base}l:{key}", "").decode().split()
    counts[3] = str(int(counts[3]) + 1)
    lab.doors.hset(f"{base}l:{key}", "", " ".join([known, *counts]))
    lab.doors.hset(f"{base}m:{key}", id, message)
    lab.doors.zadd(f"{base}q:{key}", {id: 1})


def parked(lab: Lab, key: str, id: str) -> bytes:
    message: bytes = lab.doors.hget(f"cx2:{{0}}:m:{key}", id)
    return message


def of_stranger(lab: Lab, id: str, key: str) -> bytes:
    """A message that starts `plain`, as a worker without a secret would park it."""
    name = lab.task("plain").name
    headers = {"lang": "py", "task": name, "id": id, "exclusive": Header("p", key).write()}
    body = b'[["planted"], {}, {}]'
    return StoredMessage(body, "application/json", "utf-8", headers, {}, "", "lab").dump()


@pytest.mark.proves("signed messages in line")
@pytest.mark.parametrize("what", ["unsigned", "signed for another place"])
def test_a_message_that_was_planted_into_a_line_is_not_published_but_reported_and_the_line_goes_on(
    make_lab: Callable[..., Lab], what: str
) -> None:
    lab = make_lab(exclusive_secret=SECRET, **LATE)
    worker = lab.start_worker("w1", 2)
    hold(lab)
    key = lab.task("wait").lock_state("k").key
    waiting = lab.send("wait", "k", tag="waiting")
    lab.wait_for_line(1, "wait", "k")
    (id,) = [id.decode() for id in lab.doors.zrange(f"cx2:{{0}}:q:{key}", 0, -1)]
    planted = of_stranger(lab, "planted", key) if what == "unsigned" else parked(lab, key, id)
    plant(lab, key, "planted/p", planted)
    assert lab.waiting("wait", "k") == 2
    lab.open("holder")
    assert waiting.get(timeout=DEADLINE) == "waiting"
    eventually(lambda: lab.waiting("wait", "k") == 1, "the planted message alone")
    assert lab.journal.tags() == ["holder", "waiting"]
    (line,) = [line for line in worker.log.splitlines() if "planted/p" in line]
    assert ": ERROR/" in line
    assert key in line


@pytest.mark.promise(
    "What a publisher without the secret has put in line is set aside, with an ERROR, and not published. It "
    "is there for `locks drop --to`, and runs when an app that accepts unsigned messages puts it back",
    broke="red before: of ten calls one ran, and nine were deleted",
)
def test_calls_of_a_publisher_without_the_secret_stay_and_run_when_they_are_put_back(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(exclusive_offer=0.2, **LATE)
    worker = lab.start_worker("w1", 2, exclusive_secret=SECRET)
    results = [lab.send("wait", "k", tag=tag) for tag in "abc"]
    eventually(lambda: worker.log.count("was set aside and not published") == 3, "three errors")
    results[0].get(timeout=DEADLINE)  # as a message without a header
    assert lab.journal.tags("start") == ["a"]
    ids, file = lab.folder / "ids", str(lab.folder / "line.jsonl")
    ids.write_text("\n".join(result.id for result in results[1:]))
    dropped = command(lab, "locks", "drop", "--ids", str(ids), "--to", file, "--yes", exclusive_secret=SECRET)
    assert "dropped 2 tasks" in dropped.stdout, dropped
    put = command(lab, "locks", "put", file, exclusive_secret=[SECRET, None])
    assert put.returncode == 0, put
    for tag in "bc":  # the handles of this process have heard that they were revoked
        lab.journal.wait_for("end", tag=tag)
    assert lab.journal.tags("start") == ["a", "b", "c"]


@pytest.mark.proves("signed messages in line")
def test_without_a_secret_a_planted_message_is_published(make_lab: Callable[..., Lab]) -> None:
    """The control of the test above, and what the page on security says."""
    lab = make_lab(**LATE)
    lab.start_worker("w1", 2)
    hold(lab)
    key = lab.task("wait").lock_state("k").key
    lab.send("wait", "k", tag="waiting")
    lab.wait_for_line(1, "wait", "k")
    plant(lab, key, "planted/p", of_stranger(lab, "planted", key))
    lab.open("holder")
    lab.journal.wait_for("end", tag="planted")


@pytest.mark.proves("change of the secret")
def test_a_secret_is_changed_while_tasks_wait_and_messages_are_under_way(
    make_lab: Callable[..., Lab],
) -> None:
    old, new = "the old secret of the laboratory", "the new secret of the laboratory"
    lab = make_lab(module=CANVAS, exclusive_secret=[old, new], **LATE)  # all accept the new one first
    first = lab.start_worker("w1", 2)
    hold(lab, "hold")
    waiting = [lab.send("watched", "k", tag=tag) for tag in "ab"]
    lab.wait_for_line(2, "hold", "k")
    second = lab.start_worker("w2", 2, exclusive_secret=[new, old])
    lab.open("holder")
    for result in waiting:
        result.get(timeout=DEADLINE)
    first.stop()
    lab.send("watched", "k", tag="c").get(timeout=DEADLINE)
    assert sorted(lab.journal.tags("start")) == ["a", "b", "c", "holder"]
    assert UNSIGNED not in second.log


@pytest.mark.proves("change of the secret")
def test_while_a_secret_is_introduced_unsigned_messages_wait_and_run_once(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(**LATE)
    old = lab.start_worker("w1", 2)
    hold(lab)
    waiting = [lab.send("wait", "k", tag=tag) for tag in "abc"]
    lab.wait_for_line(3, "wait", "k")
    new = lab.start_worker("w2", 2, exclusive_secret=[SECRET, None])
    lab.open("holder")
    for result in waiting:
        result.get(timeout=DEADLINE)
    assert old.stop() == 0
    lab.send("wait", "k", tag="d").get(timeout=DEADLINE)
    assert lab.journal.tags("start") == ["holder", "a", "b", "c", "d"]
    assert UNSIGNED not in new.log


# With a secret on all sides ---------------------------------------------------------------------------------


@pytest.mark.promise(
    "With a secret waiting, retries, canvases, RabbitMQ and reschedules work as without",
    name="all else with a secret",
    broke="messages that are published again without a signature",
)
@pytest.mark.parametrize("acks", ["late", "early"], indirect=True)
def test_with_a_secret_tasks_wait_retry_and_complete_their_canvases(
    make_lab: Callable[..., Lab], acks: dict[str, Any]
) -> None:
    lab = make_lab(module=CANVAS, exclusive_secret=SECRET, **acks)
    worker = lab.start_worker("w1", 3)
    hold(lab, "hold")
    waiting = [lab.send("number", n, "k") for n in range(3)]
    lab.wait_for_line(3, "hold", "k")
    retried = lab.send("maybe_again", key="r", tag="try", linger=True)
    steps = chain(lab.task("number").si(1, "c"), lab.task("number").si(2, "c")).apply_async()
    whole = chord(
        [lab.task("number").si(n, "g") for n in range(3)], lab.task("total").s(key="t")
    ).apply_async()
    lab.open("holder")
    assert [result.get(timeout=DEADLINE) for result in waiting] == [0, 1, 2]
    assert retried.get(timeout=DEADLINE) == 2
    assert steps.get(timeout=DEADLINE) == 2
    assert whole.get(timeout=DEADLINE) == 3
    assert UNSIGNED not in worker.log
    assert "no signature" not in worker.log


@pytest.mark.parametrize(
    ("protocol", "name"),
    [(1, "tests.worker.shop.wait"), (2, "tests.worker.shop_alias.wait")],
    ids=["no name in the headers", "an older name"],
)
def test_with_a_secret_a_line_goes_on_whatever_name_its_messages_have(
    make_lab: Callable[..., Lab], protocol: int, name: str
) -> None:
    lab = make_lab(module=ALIAS, exclusive_secret=SECRET, exclusive_offer=1, task_protocol=protocol)
    worker = lab.start_worker("w1", 2)
    lab.app.send_task(name, ["k"], {"tag": "holder", "hold": True})
    lab.journal.wait_for("start", tag="holder")
    results = [lab.app.send_task(name, ["k"], {"tag": tag}) for tag in "ab"]
    eventually(lambda: lab.task("wait").lock_state("k").waiting == 2, "the line")
    lab.open("holder")
    assert [result.get(timeout=DEADLINE) for result in results] == ["a", "b"]
    assert UNSIGNED not in worker.log
    assert "was not handed on" not in worker.log


def conf_of(worker: Worker) -> dict[str, Any]:
    found = worker.lab.app.control.inspect([worker.name], timeout=60, limit=1).conf(with_defaults=True) or {}
    return dict(found[worker.name])


@pytest.mark.proves("secret stays secret")
def test_the_secret_is_in_no_log_and_in_no_answer_of_a_worker(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(exclusive_secret=[SECRET, "an older " + SECRET], **LATE)
    worker = lab.start_worker("w1", 2, options=("-l", "DEBUG"))
    assert SECRET not in str(conf_of(worker))
    assert SECRET not in str(lab.app.control.inspect([worker.name], timeout=60, limit=1).report())
    hold(lab)
    lab.open("holder")
    lab.journal.wait_for("end", tag="holder")
    assert SECRET not in worker.log


@pytest.mark.promise(
    "A worker whose store is another server than its broker logs the advice to set a secret, once",
    name="advice to set a secret",
    broke="warned of whatever the store is",
)
def test_a_worker_warns_once_if_its_store_is_another_server_than_its_broker(
    make_lab: Callable[..., Lab], start_redis: Callable[..., RedisServer]
) -> None:
    told = "Set exclusive_secret to one random string"
    store = start_redis(appendonly=True)
    assert make_lab(exclusive_store=store.url).start_worker("w1", 1).log.count(told) == 1
    assert told not in make_lab(exclusive_store=store.url, exclusive_secret=SECRET).start_worker("w2", 1).log
    assert told not in make_lab().start_worker("w3", 1).log


@pytest.mark.proves("all else with a secret")
@RABBITS[1]
def test_with_a_secret_tasks_wait_on_rabbitmq_and_calls_give_values(
    make_rabbit_lab: Callable[..., Lab], rabbit_server: RabbitServer
) -> None:
    lab = make_rabbit_lab({"x-max-priority": 9}, exclusive_secret=SECRET, **LATE)
    worker = lab.start_worker("w1", 2)
    hold(lab)
    odd = {"1": [0.1, 2**40, -1, "日本", None, True, {}], "a": 1e300}
    beside = Exclusive("key", limit=2, ttl=9.5, skip_result=odd)
    lab.send("wait", "k", tag="beside", options={"exclusive": beside}).get(timeout=DEADLINE)
    waiting = [lab.send("wait", "k", tag=str(n), options={"priority": n}) for n in range(3)]
    lab.wait_for_line(3, "wait", "k")
    lab.open("holder")
    assert sorted(result.get(timeout=DEADLINE) for result in waiting) == ["0", "1", "2"]
    assert UNSIGNED not in worker.log


@pytest.mark.proves("all else with a secret")
def test_with_a_secret_a_rescheduled_task_runs_as_itself(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(module="tests.worker.shop_conflicts", exclusive_secret=SECRET, **LATE)
    worker = lab.start_worker("w1", 2)
    hold(lab, "later")
    later = lab.send("later", "k", tag="later")
    worker.wait_for_log("rescheduled in")
    lab.open("holder")
    later.get(timeout=DEADLINE)
    assert lab.journal.tags("start") == ["holder", "later"]
    assert UNSIGNED not in worker.log
