"""What is wrong is said at once: by the call, by the worker that does not start, by the result."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_exclusive import OptionError
from tests.servers import RedisServer
from tests.worker.lab import Lab, command

DEADLINE = 60

HEAD = """
import json, os
from celery import Celery, Task, shared_task
from celery_exclusive import Exclusive, install
app = Celery("bad", set_as_current=True)
app.conf.update(json.loads(os.environ["LAB_CONF"]))
"""


def refused(lab: Lab, **conf: Any) -> str:
    """Start a worker that must not come up; return what it said."""
    worker = lab.start_worker("bad", 1, ready=False, **conf)
    assert worker.process.wait(60) not in (0, None)
    assert " ready." not in worker.log
    return worker.log


def said_once(log: str, *words: str) -> None:
    """Somewhere in one line all these words."""
    pattern = "".join(f"(?=.*{re.escape(word)})" for word in words)
    assert re.search(pattern, log), log


def said_in_one_line(log: str, *words: str) -> None:
    """Why the worker does not start is a line of its log, without a traceback."""
    (line,) = [line for line in log.splitlines() if ": CRITICAL/" in line]
    assert "MainProcess] the worker does not start: " in line
    said_once(line, *words)
    assert "Traceback" not in log


TWO_APPS = 'other = install(Celery("other", set_as_current=False))'
DECLARATIONS = {
    "a misspelt attribute": (
        '@install(app).task(name="feeds.load", lok=Exclusive())\ndef load(url): ...',
        ["OptionError", "feeds.load", "lok=", "did you mean 'exclusive='?"],
    ),
    "a bare True": (
        '@install(app).task(name="feeds.load", exclusive=True)\ndef load(url): ...',
        ["OptionError", "feeds.load", "exclusive=True", "exclusive=Exclusive("],
    ),
    "a misspelt option": (
        '@install(app).task(name="feeds.load", exclusive=Exclusive(on_conflit="skip"))\ndef load(url): ...',
        ["OptionError", "Exclusive()", "'on_conflit'", "did you mean 'on_conflict'?"],
    ),
    "a mistyped option": (
        '@install(app).task(name="feeds.load", exclusive=Exclusive(on_conflict="skp"))\ndef load(url): ...',
        ["OptionError", "Exclusive()", "on_conflict='skp'", "did you mean 'skip'?"],
    ),
    "an unknown name in by": (
        '@install(app).task(name="feeds.load", exclusive=Exclusive("ulr"))\ndef load(url): ...',
        ["OptionError", "feeds.load", "Exclusive('ulr')", "did you mean 'url'?"],
    ),
    "an unknown name in key": (
        '@install(app).task(name="feeds.load", exclusive=Exclusive(key="feed:{ulr}"))\ndef load(url): ...',
        ["OptionError", "feeds.load", "key='feed:{ulr}'", "did you mean 'url'?"],
    ),
    "a function whose body Celery never runs": (
        '@install(app).task(name="feeds.load", exclusive=Exclusive("url"))\nasync def load(url): ...',
        ["OptionError", "feeds.load", "async def", "asyncio.run("],
    ),
    "recover for a task that is acknowledged when it begins": (
        '@install(app).task(name="feeds.load", exclusive=Exclusive(recover=True))\ndef load(url): ...',
        ["feeds.load", "recover=True", "acks_late=True"],
    ),
    "a function task of an app without install": (
        '@app.task(name="feeds.load", exclusive=Exclusive())\ndef load(url): ...',
        ["OptionError", "feeds.load", "exclusive=", "celery_exclusive.install(app)"],
    ),
    "a shared task of an app without install": (
        '@shared_task(name="feeds.load", exclusive=Exclusive())\ndef load(url): ...',
        ["OptionError", "feeds.load", "exclusive=", "celery_exclusive.install(app)"],
    ),
    "a shared task of two apps, of which the worker's is without install": (
        f"{TWO_APPS}\n@shared_task(name='feeds.load', exclusive=Exclusive())\ndef load(url): ...",
        ["the worker does not start", "feeds.load", "bad", "celery_exclusive.install(app)"],
    ),
    "a task of another app, which the worker's app without install gets, too": (
        f"{TWO_APPS}\n@other.task(name='feeds.load', exclusive=Exclusive())\ndef load(url): ...",
        ["the worker does not start", "feeds.load", "bad", "celery_exclusive.install(app)"],
    ),
    "annotations of an app without install": (
        'app.conf.task_annotations = {"*": {"exclusive": Exclusive()}}\n@app.task\ndef load(url): ...',
        ["the worker does not start", "bad", "celery_exclusive.install(app)"],
    ),
    "a task class of an app without install": (
        "class Load(Task):\n    name, exclusive = 'feeds.load', Exclusive()\napp.register_task(Load())",
        ["OptionError", "feeds.load", "exclusive=", "celery_exclusive.install(app)"],
    ),
}


@pytest.mark.proves("bad options")
@pytest.mark.parametrize("what", DECLARATIONS)
def test_a_worker_does_not_start_with_a_wrong_declaration(
    make_lab: Callable[..., Lab], tmp_path: Path, what: str
) -> None:
    declaration, words = DECLARATIONS[what]
    (tmp_path / "bad_shop.py").write_text(f"{HEAD}\n{declaration}\n")
    said_once(refused(make_lab(module="bad_shop")), *words)


SETTINGS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "unknown": (
        {"exclusive_tll": 3},
        ["exclusive_tll", "unknown", "did you mean 'exclusive_ttl'?"],
    ),
    "in capitals": (
        {"CELERY_EXCLUSIVE_TTL": 3},
        ["CELERY_EXCLUSIVE_TTL", "unknown", "exclusive_ttl"],
    ),
    "mistyped": ({"exclusive_ttl": "3"}, ["exclusive_ttl", "'3'", "a number of seconds"]),
    "of an unknown scheme": (
        {"exclusive_store": "orakel://:geheim@host"},
        ["exclusive_store", "no store for ", "orakel", "redis://"],
    ),
    "without a scheme": (
        {"exclusive_store": "geheim@localhost"},
        [
            "setting exclusive_store is a str that is not shown, expected a URL with its scheme, such as 'redis://localhost/1'"
        ],
    ),
    "of a password that is not encoded": (
        {"exclusive_store": "redis://me:1/geheim@127.0.0.1:1/3"},
        ["exclusive_store: cannot understand this redis:// URL: percent-encode"],
    ),
    "for a store in the memory of one process": (
        {"exclusive_store": "memory://"},
        ["exclusive_store: memory://", "the file sqlite:////", "--pool=threads"],
    ),
    "for a store that does not answer": (
        {"exclusive_store": "redis://me:geheim@127.0.0.1:1/3"},
        [
            "redis://me:**@127.0.0.1:1/3",
            "does not answer",
            "check that it runs and that its URL",
        ],
    ),
    "for no store at all": (
        {"broker_url": "amqp://me:geheim@127.0.0.1:1//", "result_backend": None},
        ["exclusive_store", "amqp", 'add one line: app.conf.exclusive_store = "redis://'],
    ),
    "for a result backend and a broker that cannot keep leases": (
        {"broker_url": "amqp://me:geheim@127.0.0.1:1//", "result_backend": "rpc://"},
        ["exclusive_store", "rpc", "amqp", 'add one line: app.conf.exclusive_store = "redis://'],
    ),
}


@pytest.mark.promise(
    "A store that cannot keep leases, or does not answer, is refused at the start with the fix",
    name="unfit store refused",
    broke=(
        "a worker that starts without its store; another broker accepted; a check that asks neither for "
        "the role nor for a script"
    ),
)
@pytest.mark.proves("store that cannot be one", "passwords")
@pytest.mark.parametrize("what", SETTINGS)
def test_a_worker_does_not_start_with_settings(make_lab: Callable[..., Lab], what: str) -> None:
    conf, words = SETTINGS[what]
    log = refused(make_lab(), **conf)
    said_in_one_line(log, *words)
    assert "geheim" not in log


@pytest.mark.promise(
    "A store that cannot be one (a node of a Redis Cluster without `+cluster`, a wrong password, database, "
    "host, file or setting) is one line with the fix and an exit code, from `celery worker` and `celery "
    "locks`, without a traceback; also for a publisher",
    name="store that cannot be one",
    broke=(
        'Celery\'s "Unrecoverable error" with a traceback; a banner that raises; `locks ls` of a cluster '
        "that lists nothing"
    ),
)
@pytest.mark.parametrize("what", ["a cluster", "another password", "a file of another kind"])
def test_a_worker_does_not_start_with_a_store_that_cannot_be_one(
    make_lab: Callable[..., Lab], start_redis: Callable[..., RedisServer], tmp_path: Path, what: str
) -> None:
    server = start_redis(**({"cluster-enabled": "yes"} if what == "a cluster" else {}))
    (tmp_path / "notes.txt").write_text("no database " * 100)
    url, words = {
        "a cluster": (server.url, "it is a Redis Cluster: name it redis+cluster:// in exclusive_store"),
        "another password": (
            server.url.replace("//", "//me:geheim@"),
            "correct user and password in its URL",
        ),
        "a file of another kind": (f"sqlite:///{tmp_path}/notes.txt", "notes.txt: file is not a database; "),
    }[what]
    lab = make_lab()
    log = refused(lab, exclusive_store=url)
    said_in_one_line(log, words)
    assert "geheim" not in log
    done = command(lab, "locks", "ls", exclusive_store=url)
    *_, error = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (3, "")
    assert error.startswith("Error: ")
    assert words in error
    assert "Traceback" not in done.stderr
    assert "geheim" not in done.stderr


def test_a_message_that_cannot_have_a_key_ends_as_a_failure_without_its_body(
    make_lab: Callable[..., Lab], acks: dict[str, Any], stranger: Celery
) -> None:
    lab = make_lab(module="tests.worker.shop_canvas", **acks)
    lab.start_worker("w1", 1)
    name = "tests.worker.shop_canvas.by_attribute"
    wrong = stranger.send_task(name, ["no project"], {"tag": "wrong"})
    with pytest.raises(
        OptionError, match=r"by_attribute'.*repo:\{project.pk\}.*argument project .*without a readable \.pk"
    ):
        wrong.get(timeout=DEADLINE)
    assert wrong.state == "FAILURE"
    assert not lab.journal.events("start")
    with pytest.raises(TypeError, match="argument"):
        stranger.send_task(name, ["too", "many", "arguments"]).get(timeout=DEADLINE)


def test_a_call_that_cannot_have_a_key_fails_where_it_is_made(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(module="tests.worker.shop_canvas")
    with pytest.raises(
        OptionError, match=r"by_attribute'.*repo:\{project.pk\}.*argument project .*without a readable \.pk"
    ):
        lab.send("by_attribute", "no project")
    assert lab.messages_at_the_broker() == 0


def test_a_call_cannot_bring_options_of_its_own(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(module="tests.worker.shop_canvas")
    with pytest.raises(OptionError, match=r"shop_canvas.number: exclusive=True .*exclusive=None"):
        lab.send("number", 1, "k", options={"exclusive": True})
    assert lab.messages_at_the_broker() == 0


@pytest.mark.promise("A worker's banner names the store, and no password, and says which order holds")
@pytest.mark.parametrize("origin", ["exclusive_store", "result backend", "broker"])
def test_the_banner_tells_the_store_and_where_it_was_found_but_no_password(
    make_lab: Callable[..., Lab], start_redis: Callable[..., RedisServer], origin: str
) -> None:
    server = start_redis()
    with server.client() as client:
        rights = {"keys": ["*"], "channels": ["*"], "categories": ["+@all"]}
        client.acl_setuser("me", enabled=True, passwords=["+geheim"], **rights)
    place = server.url.removeprefix("redis://").removesuffix("/0")
    conf: dict[str, Any] = {"broker_url": f"redis://me:geheim@{place}/0", "result_backend": None}
    database = 0
    if origin != "broker":
        database, conf["result_backend"] = 1, f"redis://me:geheim@{place}/1"
    if origin == "exclusive_store":
        database, conf["exclusive_store"] = 2, f"redis://me:geheim@{place}/2"
    if origin == "result backend":
        conf["broker_url"] = "amqp://me:geheim@mq.invalid"
    worker = make_lab(url=server.url, **conf).start_worker("w1", 1, ready=False)
    line = worker.wait_for_log(".> locks:")
    order = "published (with key=: arrived)" if origin == "broker" else "arrived"
    assert line.endswith(f".> locks:       redis://me:**@{place}/{database} ({origin}), order: {order}")
    assert "geheim" not in worker.log
